"""Kept choices that this version would not make, and those that are loaded for a shape no graph was made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.data.problem import ConvProblem  # noqa: E402 - it needs PyTorch
from conv_advisor.kernels.catalog import VARIANTS  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls import loaded  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.loaded import plan_behind, plan_name  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing import gpu, preparing  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing.plans import default_path  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing.preparing import options_of  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.options import Options  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import FakeGpu  # noqa: E402 - it needs PyTorch

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts
LAYER = ConvProblem.parse("9-2-3-8-8", dtype="float32", layout="nhwc")
POINTS = ConvProblem.parse("9-2-1-8-8", dtype="float32", layout="nhwc")
CONTESTED = ConvProblem.parse("28-2-1-64-64", dtype="float32", layout="nchw")
"""Several variants are predicted to be near the fastest."""


def forget(fake_gpu: FakeGpu) -> None:
    """Let what follows be the next process."""
    loaded.LOADED.clear()
    fake_gpu._loaded.clear()
    fake_gpu._files.clear()
    fake_gpu.runner.prepared.clear()
    fake_gpu.runner.launches.clear()


def rewrite(fake_gpu: FakeGpu, path: Path, variant: str) -> None:
    """Let all that a file keeps be choices of this variant, as another version might have made them."""
    content = json.loads(path.read_text())
    assert content["choices"]
    for entry in content["choices"].values():
        entry |= {"variant": variant, "basis": fake_gpu._basis.of(variant)}
    path.write_text(json.dumps(content))


@pytest.fixture(params=["cudnn.graph.eng63", "cuda.of_tomorrow"])
def unknown(request: pytest.FixtureRequest) -> str:
    """A variant that this version does not have."""
    return str(request.param)


def test_a_kept_variant_that_this_version_does_not_have_is_chosen_anew(
    unknown: str, fake_gpu: FakeGpu, quick: Any, tmp_path: Path
) -> None:
    network, shape = every_kind()["resnet"]
    x, path = torch.rand(shape), tmp_path / "mine.json"
    with torch.no_grad():
        compiled(network, options={"plan_file": path})(x)
        rewrite(fake_gpu, path, unknown)
        forget(fake_gpu)
        torch.compiler.reset()
        assert_near(compiled(network, options={"plan_file": path})(x), network(x), tolerance=1e-4)
    assert fake_gpu.runner.launches
    assert {entry["variant"] for entry in json.loads(path.read_text())["choices"].values()} <= VARIANTS.keys()


def test_nobody_finds_a_choice_of_a_variant_that_is_unknown(unknown: str, fake_gpu: FakeGpu) -> None:
    fake_gpu.choose({LAYER: "conv"}, Options())
    rewrite(fake_gpu, default_path(fake_gpu.device.id), unknown)
    forget(fake_gpu)
    assert fake_gpu.kept(LAYER, Options()) is None
    assert fake_gpu.load_kept(LAYER, LAYER.key) is None
    assert fake_gpu.choose({LAYER: "conv"}, Options())[LAYER].variant in VARIANTS


def test_behind_a_prologue_it_is_timed_anew_too(
    unknown: str, fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "BEHIND_PROLOGUE", "cuda.implicit_gemm_tma")
    assert fake_gpu.choose_behind_prologues({POINTS: 1.0}, Options()) == {POINTS}
    rewrite(fake_gpu, default_path(fake_gpu.device.id), unknown)
    forget(fake_gpu)
    assert fake_gpu.choose_behind_prologues({POINTS: 1.0}, Options()) == {POINTS}


def test_a_variant_that_is_barred_since_is_measured_against_others_anew(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fake_gpu.choose({CONTESTED: "conv"}, Options())[CONTESTED].variant
    assert before is not None
    barred = replace(VARIANTS[before], why_not=lambda _problem, _device: "it is not accurate, as was found since")
    monkeypatch.setitem(VARIANTS, before, barred)  # type: ignore[arg-type]  # it is a dict
    forget(fake_gpu)
    assert fake_gpu.kept(CONTESTED, Options()) is None
    assert fake_gpu.load_kept(CONTESTED, CONTESTED.key) is None
    fake_gpu.runner.prepared.clear()
    assert fake_gpu.choose({CONTESTED: "conv"}, Options())[CONTESTED].is_measured
    assert len(fake_gpu.runner.prepared) > 1


def test_a_prologue_that_fails_from_now_on_leaves_the_kept_plan_alone(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "BEHIND_PROLOGUE", "cuda.implicit_gemm_tma")
    fake_gpu.choose_behind_prologues({POINTS: 1.0}, Options())
    forget(fake_gpu)
    fake_gpu.runner.fails_behind_prologue = True
    assert fake_gpu.choose_behind_prologues({POINTS: 1.0}, Options()) == set()


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(overlap=False),
        Options(max_workspace_bytes=1000, overlap=False),
        Options(max_workspace_bytes=7, deterministic=True, only_cudnn=True, graphs=True, max_error_ratio=1e6),
    ],
    ids=lambda options: options.limits or "none",
)
def test_a_plan_is_prepared_as_its_limits_say(options: Options) -> None:
    for plan in (plan_name(LAYER.key, options.limits), plan_behind(plan_name(LAYER.key, options.limits))):
        read = options_of(plan)
        assert (read.overlap, read.max_workspace_bytes) == (options.overlap, options.max_workspace_bytes)


@pytest.fixture
def prepared_with(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options that variants are prepared with; inference mode, whose tensors differ, is off."""
    seen: list[Options] = []
    prepare: Callable[..., Any] = preparing.Preparer.prepare

    def told(preparer: Any, problem: ConvProblem, choice: Any, options: Options) -> Any:
        assert not torch.is_inference_mode_enabled()
        seen.append(options)
        return prepare(preparer, problem, choice, options)

    monkeypatch.setattr(preparing.Preparer, "prepare", told)
    return seen


def test_another_shape_keeps_the_limits_of_its_plan(fake_gpu: FakeGpu, prepared_with: list[Options]) -> None:
    options = Options(max_workspace_bytes=1000, overlap=False)
    fake_gpu.choose({LAYER: "conv"}, options)
    forget(fake_gpu)
    prepared_with.clear()
    with torch.inference_mode():
        assert fake_gpu.load_kept(LAYER, plan_name(LAYER.key, options.limits)) is not None
    (used,) = prepared_with
    assert (used.max_workspace_bytes, used.overlap) == (1000, False)
    assert fake_gpu.runner.launches == [LAYER], "it ran once ahead of what may be captured"


def test_what_fails_as_it_is_loaded_is_pytorchs(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu.choose({LAYER: "conv"}, Options())
    forget(fake_gpu)
    monkeypatch.setattr("conv_advisor.torch.calls.running.Prepared.warm", lambda _: 1 / 0)
    assert fake_gpu.load_kept(LAYER, LAYER.key) is None


def test_another_shape_behind_a_prologue_runs_there_once_too(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "BEHIND_PROLOGUE", "cuda.implicit_gemm_tma")
    assert fake_gpu.choose_behind_prologues({POINTS: 1.0}, Options()) == {POINTS}
    forget(fake_gpu)
    fake_gpu.runner.behind_prologue.clear()
    assert fake_gpu.load_kept(POINTS, plan_behind(POINTS.key)) is not None
    assert fake_gpu.runner.behind_prologue == [(POINTS, POINTS.c)]
