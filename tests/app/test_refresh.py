"""Refreshing a device that answers as its tree says it was, but for what an upgrade has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import geometric_mean

import pytest
from typer.testing import CliRunner

from conv_advisor.app.cli import cli
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.sweep.calibrate import lender_of
from conv_advisor.app.sweep.refresh import REFRESHED, Refreshed, base_of, known_before, refresh
from conv_advisor.data.errors import InvalidInput, NotEnoughData, WorkerError
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.store import Store
from conv_advisor.kernels.spent import Spent
from conv_advisor.models.adapting.least_sure import least_sure
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.tree.file import TreeModel, with_card
from conv_advisor.models.upgrades import moves

BEFORE = Device("gpu-of-mine", "A GPU of mine", "cuda", "9.0", 132, versions={"driver": "580.1", "cudnn": "9.19.0"})
NOW = replace(BEFORE, versions={"driver": "590.2", "cudnn": "9.19.0"})
LAST_YEAR = datetime(2025, 11, 1, tzinfo=UTC)
N_PROBLEMS = 320
SLOWER = "cudnn.graph"
"""What the upgrade made 1.5 times as slow."""

Outcomes = Callable[[str], Outcome]


class Upgraded:
    """The GPU after an upgrade."""

    device_id = "cuda:0"

    def __init__(self, tree: TreeModel, *, fails_after: int = 10**6, outcome: Outcomes | None = None) -> None:
        self._advisor, self._left = Advisor(tree, NOW), fails_after
        self._outcome = outcome or (lambda _name: Outcome.MEASURED)
        self.slower = 1.5
        self.clocks_mhz = 1980, 1980
        self.error: BaseException = WorkerError("the GPU is lost")
        self.calls: list[tuple[ConvProblem, str]] = []

    def run(self, task: object, *args: object, deadline_s: float) -> object:
        if not args and self._left > 0:
            return NOW
        if not args or self._left <= 0:
            raise self.error
        problem, names = args[0], args[1]
        assert isinstance(problem, ConvProblem)
        assert isinstance(names, (list, tuple))
        self._left -= 1
        self.calls += [(problem, name) for name in names]
        return [self._measured(problem, name, str(args[3])) for name in names], Spent()

    def __enter__(self) -> Upgraded:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def _measured(self, problem: ConvProblem, name: str, run_id: str) -> Measurement:
        outcome = self._outcome(name)
        ratio = self.slower if name.startswith(SLOWER) else 1.0
        samples = (ratio * times(self._advisor, problem)[name],) * 5 if outcome in TIMED else ()
        clocks = dict(zip(("clock_start_mhz", "clock_end_mhz"), self.clocks_mhz, strict=True))
        return Measurement(problem, name, NOW, outcome, samples_ms=samples, workspace_bytes=0, run_id=run_id, **clocks)


TIMED = (Outcome.MEASURED, Outcome.UNSTEADY)


def times(advisor: Advisor, problem: ConvProblem) -> dict[str, float]:
    return {choice.variant: choice.time_ms for choice in advisor.advise(problem).ranking}


@pytest.fixture(scope="module")
def tree() -> TreeModel:
    """The tree of the H200, as if it had been trained on this GPU."""
    return with_card(Registry(Path("nowhere")).active("nvidia-h200"), device=asdict(BEFORE))


@pytest.fixture(scope="module")
def measured(tree: TreeModel) -> list[Measurement]:
    """What was measured there before the upgrade: the first ten of the rankings of some layers."""
    advices = list(islice(least_sure(Advisor(tree), 0), N_PROBLEMS))
    return [
        Measurement(
            *(advice.problem, choice.variant, BEFORE, Outcome.MEASURED),
            samples_ms=(choice.time_ms,) * 5,
            workspace_bytes=0,
            measured_at=LAST_YEAR,
        )
        for advice in advices
        for choice in advice.ranking[:10]
    ]


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of them say nearly the same."""
    monkeypatch.setattr(moves, "_N_TREES", 50)


@pytest.fixture
def registry(tree: TreeModel, tmp_path: Path) -> Registry:
    registered = Registry(tmp_path)
    registered.activate(BEFORE.id, registered.add(tree))
    return registered


@pytest.fixture
def store(measured: list[Measurement], tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'conv-advisor.db'}") as store:
        store.append(measured)
        yield store


def refreshed(store: Store, engine: Upgraded, registry: Registry, limit_s: float = 600) -> Refreshed:
    return refresh(store, engine, NOW, registry, limit_s=limit_s)


def test_what_moved_is_found_by_a_fiftieth_of_what_is_known(store, tree, registry, measured):
    engine = Upgraded(tree)
    done = refreshed(store, engine, registry)
    changes = done.found
    assert changes is not None, done.missing
    assert not done.ended
    assert done.changed == {"driver": ("580.1", "590.2")}
    assert changes.n_known == len(measured)
    assert len(engine.calls) <= 0.02 * len(measured)
    assert changes.moved
    assert all(name.startswith(SLOWER) for name in changes.moved)
    assert changes.off_after <= changes.off_before
    assert changes.regressed
    known = {problem.key for problem in {each.problem for each in measured}}
    assert {each.problem for each in changes.regressed} <= known


def test_the_tree_is_repaired_where_it_moved_and_nowhere_else(store, tree, registry):
    done = refreshed(store, Upgraded(tree), registry)
    assert done.model is not None
    assert done.is_better
    assert done.model.device == NOW
    assert done.model.card["adapted_from"] == {"device": BEFORE.id, "model": tree.id}
    assert done.model.card[REFRESHED]["moved"] == list(done.found.moved)
    problem = ConvProblem.parse("14-32-1-1024-256", dtype="float16", layout="nhwc")
    before, after = times(Advisor(tree), problem), times(Advisor(done.model), problem)
    moved = {name: after[name] / before[name] for name in done.found.moved if name in before}
    others = [after[name] / before[name] for name in before if name not in moved]
    assert geometric_mean(list(moved.values())) > 1.03 * geometric_mean(others)
    assert moved[min(moved, key=before.__getitem__)] == pytest.approx(1.5, abs=0.2), "the rest is far behind"
    assert all(ratio == pytest.approx(1, abs=0.06) for ratio in others), "a byte of a ranking is no finer"


def test_where_nothing_moved_the_tree_stays(store, tree, registry):
    engine = Upgraded(tree)
    engine.slower = 1.0
    done = refreshed(store, engine, registry)
    assert done.found is not None
    assert not done.found.moved
    assert not done.found.regressed
    assert done.model is None
    assert not done.to_dict(is_forced=True)["promoted"]


def test_layers_that_judge_every_tree_are_not_measured(store, tree, registry):
    layer = sorted(held_out_layers(), key=lambda each: each.key)[0]
    store.append([Measurement(layer, "cudnn.gemm", BEFORE, Outcome.MEASURED, samples_ms=(1.0,), measured_at=LAST_YEAR)])
    engine = Upgraded(tree)
    refreshed(store, engine, registry)
    assert layer not in {problem for problem, _ in engine.calls}


def test_run_again_it_goes_on_and_measures_nothing_twice(store, tree, registry):
    first = Upgraded(tree, fails_after=30)
    half = refreshed(store, first, registry)
    assert half.ended == "its worker was lost: cuda:0 is lost (the GPU is lost), after: the GPU is lost"
    assert half.found is not None
    second = Upgraded(tree)
    done = refreshed(store, second, registry)
    assert not set(first.calls) & set(second.calls)
    assert done.found.n_measured == len(set(first.calls) | set(second.calls))
    third = Upgraded(tree)
    assert refreshed(store, third, registry).found.moved == done.found.moved
    assert not third.calls


def no_more(name: str) -> Outcome:
    """What the upgrade made slower runs no more."""
    return Outcome.NOT_SUPPORTED if name.startswith(SLOWER) else Outcome.MEASURED


def test_run_again_it_finds_what_it_would_have_found_at_once(store, tree, registry, measured, tmp_path):
    refreshed(store, Upgraded(tree, outcome=no_more, fails_after=30), registry)
    resumed, again = (refreshed(store, Upgraded(tree, outcome=no_more), registry) for _ in range(2))
    with Store(f"sqlite:///{tmp_path / 'another.db'}") as another:
        another.append(measured)
        at_once = refreshed(another, Upgraded(tree, outcome=no_more), registry)
    for done in (resumed, again):
        assert done.found == at_once.found
        assert done.outcomes == at_once.outcomes
        assert done.model.id == at_once.model.id


def test_what_the_store_refuses_counts_neither_at_once_nor_again(store, tree, registry):
    """A clock that falls while it is timed makes a time unsteady once it is stored."""
    engines = [Upgraded(tree), Upgraded(tree)]
    for engine in engines:
        engine.clocks_mhz = 1980, 1200
        done = refreshed(store, engine, registry)
        assert done.found is None
        assert set(done.outcomes) == {Outcome.UNSTEADY}
    assert not engines[1].calls


def test_a_second_upgrade_is_compared_with_what_was_known_before_the_first(store, tree, registry, measured):
    first = refreshed(store, Upgraded(tree), registry)
    registry.activate(BEFORE.id, registry.add(first.model))
    assert base_of(NOW, registry).id == tree.id
    assert lender_of(NOW, registry).id == first.model.id, "a calibration takes the tree in use for its own"
    until_us = first.model.card[REFRESHED]["until_us"]
    known = known_before(Records(store), BEFORE.id, until_us)
    assert int(known.is_known.sum()) == len(measured)


def test_interrupted_it_says_what_it_knows_by_then(store, tree, registry):
    engine = Upgraded(tree, fails_after=30)
    engine.error = KeyboardInterrupt()
    done = refreshed(store, engine, registry)
    assert done.ended == "it was interrupted"
    assert done.found is not None
    assert done.found.n_measured >= 30


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.UNSTEADY, "did not count: the device was throttled or shared"),
        (Outcome.OUT_OF_MEMORY, "0 known times were measured again; allowed: at least 20; what was measured is kept"),
    ],
)
def test_a_busy_gpu_says_nothing_of_a_variant(store, tree, registry, outcome, said):
    done = refreshed(store, Upgraded(tree, outcome=lambda _name: outcome), registry)
    assert done.found is None
    assert said in done.missing
    assert done.model is None
    assert set(done.outcomes) == {outcome}


def test_a_variant_that_runs_no_more_has_moved(store, tree, registry):
    done = refreshed(store, Upgraded(tree, outcome=no_more), registry)
    lost = {line.name for line in done.found.variants if line.n_lost}
    assert lost
    assert all(name.startswith(SLOWER) for name in lost)
    assert lost & set(done.found.moved)


def test_what_cannot_be_refreshed_is_refused_by_name(store, tree, registry, tmp_path):
    with pytest.raises(NotEnoughData, match="device other has no tree of its own to refresh"):
        base_of(replace(NOW, id="other"), registry)
    with pytest.raises(NotEnoughData, match="no time is known from before"):
        known_before(Records(store), BEFORE.id, int((LAST_YEAR - timedelta(days=1)).timestamp() * 1e6))
    with pytest.raises(InvalidInput, match=r"share is 0.5; allowed: above 0, and at most 0.02"):
        refresh(store, Upgraded(tree), NOW, registry, limit_s=1, share=0.5)


def test_in_no_time_nothing_is_measured(store, tree, registry):
    engine = Upgraded(tree)
    done = refreshed(store, engine, registry, limit_s=0)
    assert done.found is None
    assert done.ended == "its time was over"
    assert not engine.calls


@pytest.mark.parametrize("fails_after", [10**6, 3])
def test_the_command_says_what_moved_or_what_is_missing(tree, measured, tmp_path, monkeypatch, fails_after):
    from conv_advisor.app.cli import refresh as command
    from conv_advisor.app.workers import engine as engines

    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path))
    monkeypatch.setattr(command, "resolve_devices", lambda text, settings: [text])
    monkeypatch.setattr(engines, "Engine", lambda *_, **__: Upgraded(tree, fails_after=fails_after))
    settings = load_settings()
    registry = Registry(settings.models_home)
    registry.activate(BEFORE.id, registry.add(tree))
    with Store(settings.store_url) as store:
        store.append(measured)
    done = CliRunner().invoke(cli, ["refresh", "--device", "cuda:0"])
    if fails_after == 3:
        assert isinstance(done.exception, NotEnoughData)
        assert "the GPU is lost" in str(done.exception)
        assert Registry(settings.models_home).active(BEFORE.id).id == tree.id
        return
    assert done.exit_code == 0, done.output
    assert "have moved." in done.output
    assert "driver: 580.1, now 590.2" in done.output
    assert "likely slower by more than 5 %" in done.output
    assert "is in use" in done.output
    assert Registry(settings.models_home).active(BEFORE.id).device == NOW
