"""Outputs written as some of the channels of a larger tensor on a real GPU: the bits of a whole tensor, no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.cuda.few_inputs import is_narrow
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as plans

pytestmark = pytest.mark.gpu

LAYERS = ("13-2-3-48-64", "27-8-1-128-256", "7-1-1-256-832", "14-32-3-192-96", "56-4-3-64-64", "27-32-3-64-16")
WITHIN = (
    *("cuda.implicit_gemm_tma", "cuda.implicit_gemm_nhwc", "cuda.winograd_nonfused_4x4_3x3"),
    "cuda.few_inputs",
)
ENDS = (PLAIN, Epilogue(bias=True, activation=Activation.RELU))
PROBLEMS = [
    ConvProblem.parse(name, dtype=dtype, layout=Layout.NHWC, epilogue=ends)
    for name in LAYERS
    for dtype in DType
    for ends in ENDS
]


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    return open_runner("cuda:0")


def launches_of(runner: Any, variant: str, problem: ConvProblem) -> list[Any]:
    """Each kind of tile of the accelerator's, by the cut that is expected to be the fastest; else the variant's own."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch

    if variant != "cuda.implicit_gemm_tma":
        return [get(variant).prepare(problem, runner.device, 2**30)]
    cuts = plans.expected(problem, runner.device)
    kinds = {(type(cut.tile), cut.cluster > 1): cut for cut in sorted(cuts, key=lambda cut: -cuts[cut])}
    return [launch(problem, runner.device, cut) for cut in kinds.values()]


@pytest.mark.parametrize("variant", WITHIN)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_some_of_more_channels_have_the_bits_of_a_whole_tensor(runner: Any, variant: str, problem: ConvProblem) -> None:
    import cupy

    if get(variant).why_not(problem, runner.device):
        pytest.skip("it does not compute this")
    if variant == "cuda.few_inputs" and not is_narrow(problem):
        pytest.skip("its forms for first layers write whole tensors")
    storage = {2: cupy.uint16, 4: cupy.uint32}[problem.dtype.itemsize_bytes]
    operands = runner.make_operands(problem, 0)
    channels, first = problem.k + 96, 32
    for launch in launches_of(runner, variant, problem):
        whole, y = (~cupy.zeros((*problem.y_shape[:3], count), storage) for count in (channels, problem.k))
        assert launch.within is not None
        ends = (operands.bias, None) if problem.epilogue.bias else ()
        launch.run(operands.x, operands.weight, y, *ends)
        part = SimpleNamespace(data=SimpleNamespace(ptr=whole.data.ptr + first * whole.itemsize))
        launch.within(channels)(operands.x, operands.weight, part, *ends)
        assert (whole[..., first : first + problem.k] == y).all()
        around = cupy.concatenate([whole[..., :first], whole[..., first + problem.k :]], 3)
        assert (~around == 0).all(), "it wrote beside its channels"
