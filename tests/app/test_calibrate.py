"""Calibrating on a device that answers by a known distortion of what the H200's tree says of an H100."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conv_advisor.app.cli import cli
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.sweep import calibrate as calibrating
from conv_advisor.app.sweep.calibrate import Calibration, calibrate, fit_of, lender_of
from conv_advisor.data.errors import InvalidInput, ModelRejected, NotEnoughData, WorkerError
from conv_advisor.data.gpus import gpus
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.kernels.spent import Spent
from conv_advisor.models.adapting import adapt as adapting
from conv_advisor.models.adapting.correction import family_of
from conv_advisor.models.adapting.least_sure import FIRST, least_sure, to_measure
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.tree.arrays import DOMAIN, LARGE_DOMAIN
from conv_advisor.models.tree.file import TreeModel

H100 = gpus()["nvidia-h100-80gb-hbm3"].device

SLOW = "cuda.implicit_gemm_tma"
"""What the tree chooses most often in NHWC, where others come close."""


class Distorted:
    """A GPU whose times are those that the H200's tree predicts, 1.2 times as long, `SLOW` 1.8."""

    device_id = "cuda:0"

    def __init__(self, tree: TreeModel, *, fails_after: int = 10**6, outcome: Outcome = Outcome.MEASURED) -> None:
        self._advisor = Advisor(tree, H100)
        self._left, self._outcome = fails_after, outcome
        self.error: BaseException = WorkerError("the GPU is lost")
        self.calls: list[tuple[ConvProblem, tuple[str, ...]]] = []

    def run(self, task: object, *args: object, deadline_s: float) -> object:
        if not args and self._left > 0:
            return H100
        if not args:
            raise self.error
        problem, names = args[0], args[1]
        assert isinstance(problem, ConvProblem)
        assert isinstance(names, (list, tuple))
        if self._left <= 0:
            raise self.error
        self._left -= 1
        self.calls.append((problem, tuple(names)))
        return [replace(self._measured(problem, name), run_id=str(args[3])) for name in names], Spent()

    def __enter__(self) -> Distorted:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def _measured(self, problem: ConvProblem, name: str) -> Measurement:
        times = {choice.variant: choice.time_ms for choice in self._advisor.advise(problem).ranking}
        time_ms = times[name] * (1.8 if name == SLOW else 1.2)
        return Measurement(problem, name, H100, self._outcome, samples_ms=(time_ms,) * 5, workspace_bytes=0)


@pytest.fixture(scope="module")
def tree() -> TreeModel:
    return Registry(Path("nowhere")).active("nvidia-h200")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'timings.db'}") as store:
        yield store


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    """Sixty layers and no more, since this device measures thousands a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrating, "least_sure", lambda advisor, seed: islice(least_sure(advisor, seed), 60))
        yield


@pytest.fixture(scope="module")
def measured(tree: TreeModel, _few: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """What was measured to the end, in a store that no test adds to."""
    with Store(f"sqlite:///{tmp_path_factory.mktemp('measured') / 'timings.db'}") as store:
        yield store


@pytest.fixture(scope="module")
def calibrated(tree: TreeModel, measured: Store) -> Calibration:
    """By the measurements of `measured`."""
    return calibrate(measured, Distorted(tree), H100, tree, limit_s=600)


def test_layers_are_the_same_for_a_seed_and_of_every_precision_and_layout(tree):
    advisor = Advisor(tree, H100)
    first = [advice.problem for advice in islice(least_sure(advisor, 0), 48)]
    assert first == [advice.problem for advice in islice(least_sure(advisor, 0), 48)]
    assert first != [advice.problem for advice in islice(least_sure(advisor, 1), 48)]
    assert len(set(first)) == 48
    assert len({(problem.dtype, problem.layout) for problem in first[:24]}) == 8


def test_the_first_of_a_ranking_are_measured_and_one_of_each_family_that_is_near(tree):
    advice = next(least_sure(Advisor(tree, H100), 0))
    names = to_measure(advice)
    assert names[:FIRST] == tuple(choice.variant for choice in advice.ranking[:FIRST])
    others = [family_of(name) for name in names[FIRST:]]
    assert len(set(others)) == len(others)


def test_what_is_slower_there_is_learned_and_what_it_gained_is_said(tree, calibrated):
    done = calibrated
    assert done.found is not None, done.missing
    assert done.is_better
    assert done.found.after.slowdown < done.found.before.slowdown
    assert done.found.after.time_error < done.found.before.time_error
    assert done.found.model.device == H100
    assert done.found.model.card["adapted_from"] == {"device": "nvidia-h200", "model": tree.id}
    assert not done.ended
    mine = Advisor(done.found.model)
    assert mine.loan is None
    problem = ConvProblem.parse("14-1-3-256-128", dtype="float16", layout="nhwc")
    assert mine.advise(problem).trust.borrowed_from is None
    assert mine.advise(problem).trust.confidence is not None
    assert not mine.advise(problem).trust.is_calibrated


@pytest.mark.usefixtures("calibrated")
def test_run_again_it_measures_nothing_twice(tree, measured):
    again = Distorted(tree)
    done = calibrate(measured, again, H100, tree, limit_s=600)
    assert not again.calls
    assert done.found is not None


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "interrupted"), (WorkerError("the GPU is lost"), "the GPU is lost")]
)
def test_what_was_measured_until_it_was_interrupted_or_lost_counts(tree, store, error, said):
    engine = Distorted(tree, fails_after=45)
    engine.error = error
    done = calibrate(store, engine, H100, tree, limit_s=600)
    assert said in done.ended
    assert done.n_problems == 45
    assert done.found is not None


@pytest.mark.parametrize("fails_after", [45, 3])
def test_the_command_says_what_it_gained_or_what_is_missing(tree, tmp_path, monkeypatch, fails_after):
    from conv_advisor.app.cli import calibrate as command
    from conv_advisor.app.workers import engine as engines

    device = Distorted(tree, fails_after=fails_after)
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path))
    monkeypatch.setattr(command, "resolve_devices", lambda text, settings: [text])
    monkeypatch.setattr(engines, "Engine", lambda *_, **__: device)
    done = CliRunner().invoke(cli, ["calibrate", "--device", "cuda:0"])
    if fails_after == 3:
        assert isinstance(done.exception, NotEnoughData)
        assert "the GPU is lost" in str(done.exception)
        assert Registry(load_settings().models_home).devices() == ["nvidia-h200"]
        return
    assert done.exit_code == 0, done.output
    assert "of NVIDIA H100 80GB HBM3 is in use." in done.output
    assert "It ended early, since its worker was lost: " in done.output
    assert "45 problems measured there; the tree was that of NVIDIA H200" in done.output
    assert Registry(load_settings().models_home).active(H100.id).device == H100


def test_too_little_is_kept_and_said(tree, store):
    engine = Distorted(tree, fails_after=3)
    done = calibrate(store, engine, H100, tree, limit_s=600)
    assert done.found is None
    assert "allowed: at least 20 and 5; what was measured is kept" in done.missing
    assert len(store.measured_keys(H100.id)) == 3


def test_times_of_a_throttled_or_shared_gpu_do_not_count(tree, store):
    done = calibrate(store, Distorted(tree, outcome=Outcome.UNSTEADY), H100, tree, limit_s=600)
    assert done.found is None
    assert "did not count: the device was throttled or shared" in done.missing


def test_out_of_memory_is_an_outcome_like_any(tree, store):
    done = calibrate(store, Distorted(tree, outcome=Outcome.OUT_OF_MEMORY), H100, tree, limit_s=600)
    assert done.found is None
    assert set(done.outcomes) == {"out_of_memory"}


def test_in_no_time_nothing_is_measured(tree, store):
    engine = Distorted(tree)
    assert calibrate(store, engine, H100, tree, limit_s=0).found is None
    assert not engine.calls


@pytest.mark.usefixtures("calibrated")
def test_a_precision_that_was_not_measured_is_abstained_from(tree, measured):
    fit = fit_of(measured, H100, tree)
    model = adapting.adapted(fit.on(fit.costs.where(lambda problem: problem.dtype != "bfloat16")))
    trust = Advisor(model).advise(ConvProblem.parse("14-1-3-256-128", dtype="bfloat16", layout="nhwc")).trust
    assert trust.abstains
    assert trust.reason
    assert "precision and layout are bfloat16 nhwc; trained on" in trust.reason
    with pytest.raises(NotEnoughData, match="no precision and layout has the 3 measured layers"):
        adapting.adapted(fit.on(fit.costs.take([0])))


@pytest.mark.usefixtures("calibrated")
def test_a_tree_that_keeps_no_layers_lends_none(tree, measured):
    arrays = {name: values for name, values in tree.arrays.items() if name not in (DOMAIN, LARGE_DOMAIN)}
    fit = fit_of(measured, H100, replace(tree, arrays=arrays))
    with pytest.raises(ModelRejected, match="keeps no domain"):
        adapting.adapted(fit)


def test_the_lender_is_the_nearest_and_never_one_that_was_adapted_itself(tree, calibrated, tmp_path):
    registry = Registry(tmp_path)
    assert lender_of(H100, registry).id == tree.id
    assert calibrated.found is not None
    registry.add(calibrated.found.model)
    registry.activate(H100.id, calibrated.found.model.id)
    assert lender_of(H100, registry).id == tree.id
    assert lender_of(tree.device, registry).id == tree.id
    with pytest.raises(InvalidInput, match="allowed: a GPU"):
        lender_of(Device("cpu", "A CPU", "cpu"), registry)
    with pytest.raises(NotEnoughData, match="no figures are published for it"):
        lender_of(Device("gpu-of-mine", "Mine", "cuda", "5.0"), registry)


def test_a_tree_of_another_device_or_that_was_changed_is_refused_by_name(calibrated, tmp_path):
    assert calibrated.found is not None
    mine, registry = calibrated.found.model, Registry(tmp_path)
    registry.add(mine)
    registry.activate(H100.id, mine.id)
    folder = tmp_path / "models" / H100.id
    (folder).rename(tmp_path / "models" / "nvidia-a100-sxm4-80gb")
    with pytest.raises(ModelRejected, match=f"it is a tree of {H100.id}, and not of nvidia-a100-sxm4-80gb"):
        Registry(tmp_path).get("nvidia-a100-sxm4-80gb", mine.id)
    (tmp_path / "models" / "nvidia-a100-sxm4-80gb").rename(folder)
    file = folder / mine.id / "tree.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelRejected, match="sha256 is"):
        Registry(tmp_path).get(H100.id, mine.id)
