"""Which variant a trial ends with: others in the place of those that fail, and what the host has to wait for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.data.problem import ConvProblem
from conv_advisor.torch.calls.timing import Timed
from conv_advisor.torch.choosing.candidates import MOST_SUBSTITUTES, candidates, substitutes
from conv_advisor.torch.choosing.fastest import elementwise_ms, fastest
from conv_advisor.torch.options import Options, read_options
from tests.pytorch.stand_in import FakeGpu, advisor, time_by

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts

LAYER = ConvProblem.parse("14-2-3-32-16", dtype="float32", layout="nchw")


def first(problem: ConvProblem, options: Options) -> list[str]:
    return [choice.variant or "" for choice in candidates(advisor(), problem, options)]


def others(problem: ConvProblem, options: Options) -> list[str]:
    tried = first(problem, options)
    return [choice.variant or "" for choice in substitutes(advisor(), problem, options, tried)]


@pytest.fixture
def slow_own(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """PyTorch's own takes so long that every variant of the ranking may be faster."""
    time_by(monkeypatch, lambda name: 100.0 if name == "run_as_compiled" else 0.5)
    return fake_gpu


def test_what_fails_the_check_is_replaced_by_what_follows_in_the_ranking(slow_own: FakeGpu) -> None:
    tried, left = first(LAYER, Options()), others(LAYER, Options())
    slow_own.runner.wrong = tried
    choice = slow_own.choose({LAYER: "conv"}, Options())[LAYER]
    assert sorted(slow_own.runner.prepared) == sorted(tried + left[: len(tried)])
    assert choice.variant in left[: len(tried)]


def test_no_more_are_tried_than_have_to_be(slow_own: FakeGpu) -> None:
    tried, left = first(LAYER, Options()), others(LAYER, Options())
    slow_own.runner.wrong = tried[:1]
    slow_own.choose({LAYER: "conv"}, Options())
    assert sorted(slow_own.runner.prepared) == sorted([*tried, left[0]])
    slow_own.runner.prepared.clear()
    slow_own.runner.wrong = ()
    slow_own._files.clear()
    other = ConvProblem.parse("14-2-3-32-24", dtype="float32", layout="nchw")
    slow_own.choose({other: "conv"}, Options())
    assert sorted(slow_own.runner.prepared) == sorted(first(other, Options()))


def test_where_all_are_wrong_so_many_are_tried(slow_own: FakeGpu) -> None:
    slow_own.runner.off = 1.0
    choice = slow_own.choose({LAYER: "conv"}, Options())[LAYER]
    assert choice.variant is None
    assert len(slow_own.runner.prepared) == len(first(LAYER, Options())) + MOST_SUBSTITUTES


def test_what_is_predicted_to_be_slower_than_pytorchs_own_is_not_tried(fake_gpu: FakeGpu, monkeypatch: Any) -> None:
    time_by(monkeypatch, lambda _name: 1e-6)
    fake_gpu.runner.off = 1.0
    fake_gpu.choose({LAYER: "conv"}, Options())
    assert sorted(fake_gpu.runner.prepared) == sorted(first(LAYER, Options()))


def timed(**times_us: float) -> dict[str, Timed]:
    return {name.replace("__", "."): Timed(time_us / 1000, 0.0) for name, time_us in times_us.items()}


def taken(
    own_us: float, *, has_ending: bool = False, graphs: bool = False, blas: str = "", **times_us: float
) -> str | None:
    times = timed(**times_us)
    plans: dict[str, Any] = {variant: {} for variant in times}
    own = Timed(own_us / 1000, 0.0)
    return fastest(own, times, plans, calling_blas={blas}, has_ending=has_ending, graphs=graphs).variant


def test_a_short_call_of_the_legacy_api_is_as_long_as_the_host_takes_for_it() -> None:
    short = {"cudnn__fft": 30, "cuda__implicit_gemm": 50}
    assert taken(200, **short) == "cuda.implicit_gemm"
    assert taken(200, **short, graphs=True) == "cudnn.fft"
    assert taken(400, cudnn__fft=200, cuda__implicit_gemm=210) == "cudnn.fft"
    assert taken(90, cudnn__fft=30) is None


def test_a_launch_that_takes_the_host_longer_than_the_gpu_counts_a_quarter_more_at_most() -> None:
    assert taken(200, cudnn__graph__eng39=10, cuda__implicit_gemm=12) == "cuda.implicit_gemm"
    assert taken(200, cudnn__graph__eng39=10, cuda__implicit_gemm=12, graphs=True) == "cudnn.graph.eng39"
    assert taken(200, cudnn__graph__eng39=10, cuda__implicit_gemm=13) == "cudnn.graph.eng39"
    assert taken(200, cudnn__graph__eng39=20, cuda__implicit_gemm=20.5) == "cuda.implicit_gemm"
    assert taken(200, cudnn__graph__eng39=30, cuda__implicit_gemm=30.5) == "cudnn.graph.eng39"


def test_a_variant_that_calls_cublas_is_no_launch_of_a_kernel() -> None:
    assert taken(200, cuda__gemm=40, cuda__implicit_gemm=48) == "cuda.gemm"
    assert taken(200, cuda__gemm=40, cuda__implicit_gemm=48, blas="cuda.gemm") == "cuda.implicit_gemm"
    assert taken(200, cuda__gemm=40, cuda__implicit_gemm=51, blas="cuda.gemm") == "cuda.gemm"
    assert taken(400, cuda__gemm=95, cuda__implicit_gemm=96, blas="cuda.gemm") == "cuda.gemm"
    assert taken(200, cuda__gemm=40, cuda__implicit_gemm=48, blas="cuda.gemm", graphs=True) == "cuda.gemm"


def test_launches_say_themselves_that_they_call_cublas(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    time_by(monkeypatch, lambda name: 1.0 if name == "run_as_compiled" else 0.04)
    layer = ConvProblem.parse("28-8-1-96-64", dtype="float32")
    tried = [variant for variant in first(layer, Options()) if variant.startswith("cuda.")]
    fake_gpu.runner.calling_blas = tried[:-1]
    assert len(tried) > 1
    assert fake_gpu.choose({layer: "conv"}, Options())[layer].variant == tried[-1]


def test_pytorchs_own_is_launched_too_and_what_follows_it() -> None:
    assert taken(10, cuda__implicit_gemm=12) == "cuda.implicit_gemm"
    assert taken(10, cuda__implicit_gemm=13) is None
    assert taken(10, cuda__implicit_gemm=12, graphs=True) is None
    assert taken(25, cuda__implicit_gemm=27) is None
    assert taken(25, cuda__implicit_gemm=27, has_ending=True) == "cuda.implicit_gemm"
    assert taken(100, cuda__implicit_gemm=100, has_ending=True) is None


def test_a_copy_counts_as_what_it_takes_the_host_unless_graphs_are_replayed() -> None:
    assert elementwise_ms(0.002, graphs=False) == 0.008
    assert elementwise_ms(0.002, graphs=True) == 0.002
    assert elementwise_ms(0.02, graphs=False) == 0.02


def test_of_equals_the_one_that_the_gpu_runs_sooner_is_taken() -> None:
    assert taken(200, cudnn__fft=30, cudnn__gemm=20) == "cudnn.gemm"


@pytest.mark.parametrize(
    ("mode", "options", "is_asked"),
    [
        (None, {}, False),
        ("reduce-overhead", {}, True),
        ("max-autotune", {}, True),
        ("max-autotune-no-cudagraphs", {}, False),
        (None, {"triton.cudagraphs": True}, True),
        (None, {"graphs": True}, True),
        ("reduce-overhead", {"graphs": False}, False),
    ],
)
def test_modes_that_replay_graphs_count_no_host(mode: str | None, options: dict[str, Any], is_asked: bool) -> None:
    ours, _ = read_options(mode, options)
    assert ours.graphs is is_asked
    assert ("graphs" in ours.limits) is is_asked
