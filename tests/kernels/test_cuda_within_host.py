"""Outputs written as some of the channels of a larger tensor, on a CPU: what is around them stays as it was."""

from __future__ import annotations

import shutil
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Final

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu
from conv_advisor.kernels.cuda.implicit_gemm_tma import straight
from conv_advisor.kernels.cuda.parts.fitted import tiles_of_every_device
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda
from tests.kernels.accelerator import GPU

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

ENDS: Final = Epilogue(bias=True, activation=Activation.RELU)
LAYERS: Final = ("7-2-1-40-200", "9x7-2-3x5-72-16-stride2x1-pad1x2")
CASES: Final = [
    (kind, ConvProblem.parse(name, dtype=dtype, layout=Layout.NHWC, epilogue=ENDS))
    for kind, dtype, names in (
        ("straight", DType.FLOAT16, LAYERS),
        ("nhwc", DType.BFLOAT16, LAYERS),
        ("nhwc", DType.TF32, LAYERS),
        ("cuda.few_inputs", DType.FLOAT16, ("13-2-3-72-16", "9x7-2-3x5-40-12-stride2x1-pad1x2")),
        ("cuda.winograd_nonfused_4x4_3x3", DType.FLOAT32, ("13-2-3-24-8",)),
        ("cuda.winograd_nonfused_4x4_5x5", DType.FLOAT32, ("7-3-5-40-4",)),
    )
    for name in names
]


def launch_of(kind: str, problem: ConvProblem, device: Any = GPU) -> Any:
    """What is prepared by the smallest tile of a family, or by a variant's own choice."""
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc import launch as nhwc
    from conv_advisor.kernels.cuda.implicit_gemm_tma import launch as tma

    if kind == "straight":
        return tma.launch(problem, device, Cut(straight.TILES[0], 1))
    if kind == "nhwc":
        tile = tiles_of_every_device(menu.MENUS, problem.dtype)[0]
        return nhwc.launch(problem, device, Cut(tile, 1))
    return get(kind).prepare(problem, device, 2**30)


def error_of(kind: str, problem: ConvProblem, channels: int, first: int) -> float:
    return host_cuda.within_error(launch_of(kind, problem), problem, channels, first)


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> list[Future[float]]:
    """The error of every case, all asked for at once."""
    return [pool.submit(error_of, *case, case[1].k + 72, 16) for case in CASES]


@pytest.mark.parametrize("place", range(len(CASES)), ids=lambda place: f"{CASES[place][0]}-{CASES[place][1].key}")
def test_some_of_more_channels_are_right_and_the_others_left(errors: list[Future[float]], place: int) -> None:
    assert errors[place].result() <= tolerance(CASES[place][1])


def is_offered(kind: str, problem: ConvProblem) -> bool:
    return launch_of(kind, problem).within is not None


@pytest.mark.parametrize("kind", ["straight", "nhwc", "cuda.few_inputs", "cuda.winograd_nonfused_4x4_3x3"])
def test_a_residual_lies_as_y_does_and_is_refused(pool: ProcessPoolExecutor, kind: str) -> None:
    dtype = DType.FLOAT32 if "winograd" in kind else DType.FLOAT16
    plain = ConvProblem.parse("7-2-3-40-16", dtype=dtype, layout=Layout.NHWC)
    assert pool.submit(is_offered, kind, plain).result()
    assert not pool.submit(is_offered, kind, replace(plain, epilogue=Epilogue(residual=True))).result()
