"""The 1x1 convolution on a CPU: staging, fragments and outputs as they are, wgmma by a loop; no GPU is needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

HOPPER = Device(id="host", name="host", kind="cuda", capability="9.0", processors=1)
"""With one processor, so that no cluster is worth its while and blocks walk over several tiles."""
LAYERS = ("1-37-1-40-16", "3-7-1-17-24", "7-9-1-70-40", "7-2-1-6-5", "8-2-1-40-64", "13-5-1-20-96", "27-1-1-33-88")
CASES = [
    ConvProblem.parse(layer, dtype=dtype)
    for layer in (*LAYERS, "28-2-1-130-16")
    for dtype in ("float32", "tf32", "bfloat16")
]


@pytest.fixture(scope="module")
def errors() -> Iterator[dict[ConvProblem, Future[float]]]:
    """The error of every case, all asked for at once, from processes in which CuPy's name is taken by its stand-in."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=host_cuda.install) as pool:
        yield {case: pool.submit(host_cuda.error_of, "cuda.pointwise", case, device=HOPPER) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_it_is_right_whatever_the_alignment(errors: dict[ConvProblem, Future[float]], case: ConvProblem) -> None:
    assert errors[case].result() <= tolerance(case)
