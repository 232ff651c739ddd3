"""The unpacking behind products with channels innermost, on a CPU: alone, and as the end of the whole launch.

Kernels are compiled by g++; in the whole launch NumPy multiplies what was packed. No GPU is needed.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import plan
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels import host_cuda
from tests.kernels.accelerator import GPU
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

EPILOGUES: Final = (
    PLAIN,
    Epilogue(bias=True),
    Epilogue(residual=True),
    Epilogue(activation=Activation.LEAKY_RELU),
    Epilogue(bias=True, residual=True, activation=Activation.RELU),
)
LAYERS: Final = (
    "1-1-1-1-1",  # one output
    "1-70-1-33-1",  # planes of one pixel, in tiles of 64 images; a filter in a tile of its own
    "7-3-1-5-1",  # odd planes: images end within a tile
    "9x7-2-1-32-1",
    "2-33-1-6-1",  # planes of four pixels, k not a multiple of four
    "8-2-1-64-1",  # whole tiles
    "10-3-1-67-1",  # planes of fours that end within a tile
    "1x131-2-1-31-1",
    "1x6400-1-1-12-1",
)


def unpacked(problem: ConvProblem, images: int) -> np.ndarray:
    """What nhwc_unpack.cu makes of `rows_of`, in the stand-in's process: y, NaN before."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma_packed.launch import start_unpacking

    bias, residual = reference.random_ends(problem, 0)
    arrays = [host_cuda._filled(each, np.float32) for each in (rows_of(problem), bias, residual) if each is not None]
    y = host_cuda.empty(problem.y_shape, np.float32)
    rows, *ends = (array.data.ptr for array in arrays)
    start_unpacking(problem, images)(rows, y.data.ptr, *ends)
    assert all(array.is_guard_intact() for array in (*arrays, y))
    return y.values.copy()


def rows_of(problem: ConvProblem) -> np.ndarray:
    """Random outputs with channels innermost (n, p, q, pitch); NaN behind the filters."""
    random = np.random.default_rng(0)
    rows = np.full((problem.n, problem.p, problem.q, plan.pitch_of(problem)), np.nan, np.float32)
    rows[..., : problem.k] = random.normal(size=(*rows.shape[:3], problem.k))
    return rows


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_come_to_lie_in_planes_and_are_ended(layer: str, epilogue: Epilogue, pool: ProcessPoolExecutor) -> None:
    problem = ConvProblem.parse(layer, epilogue=epilogue)
    y = pool.submit(unpacked, problem, problem.n).result()
    sums = np.moveaxis(rows_of(problem)[..., : problem.k], -1, 1).astype(np.float64)
    bias, residual = reference.random_ends(problem, 0)
    expected, _ = reference.ended(epilogue, sums, None if bias is None else bias[:, None, None], residual)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_fewer_images_are_unpacked_than_there_are(pool: ProcessPoolExecutor) -> None:
    problem = ConvProblem.parse("7-5-1-9-1")
    y = pool.submit(unpacked, problem, 3).result()
    np.testing.assert_array_equal(y[:3], np.moveaxis(rows_of(problem)[:3, ..., :9], -1, 1))
    assert np.isnan(y[3:]).all()


def by_numpy(problem: ConvProblem, images: int, _device: Device) -> Callable[..., None]:
    """Multiplies what was packed as the accelerator's kernel would, into rows whose ends it leaves alone."""
    packed, pitch = plan.packed(problem, images), plan.pitch_of(problem)

    def run(x: Any, weight: Any, rows: Any) -> None:
        operands = at(x.ptr, packed.x_shape), at(weight.ptr, packed.weight_shape)
        at(rows.ptr, (*packed.y_shape[:3], pitch))[..., : packed.k] = reference.convolve(packed, *operands)

    return run


def at(address: int, shape: tuple[int, ...]) -> np.ndarray:
    memory = (ctypes.c_float * int(np.prod(shape))).from_address(address)
    return np.frombuffer(memory, np.float32).reshape(shape)


def whole_error(problem: ConvProblem, images: int) -> float:
    """Run the whole launch for so many images at a time, from a y full of NaN, and compare with float64."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import launch as launches

    with patch.object(launches, "_multiplication", by_numpy):
        launch = launches.prepare(problem, GPU, sum(plan.scratch_bytes(problem, images)))
    return host_cuda.launch_error(launch, problem)


SHAPES: Final = {name: sizes for name, sizes in {**EDGE_SHAPES, **UNEVEN_SHAPES}.items() if sizes.get("groups", 1) == 1}


@pytest.mark.parametrize("name", SHAPES)
def test_edge_shapes_are_right(name: str, pool: ProcessPoolExecutor) -> None:
    place = list(SHAPES).index(name)
    dtype, epilogue = (DType.FLOAT32, DType.TF32)[place % 2], EPILOGUES[place % len(EPILOGUES)]
    problem = ConvProblem(**SHAPES[name], dtype=dtype, epilogue=epilogue)
    assert pool.submit(whole_error, problem, problem.n).result() <= tolerance(problem)


@pytest.mark.parametrize("epilogue", [PLAIN, EPILOGUES[-1]], ids=str)
@pytest.mark.parametrize(("layer", "images"), [("7-5-3-6-3", 2), ("8-7-3x5-33-5-stride2x1", 3), ("1x12-4-1x7-9-6", 1)])
def test_chunks_of_images_are_right(layer: str, images: int, epilogue: Epilogue, pool: ProcessPoolExecutor) -> None:
    """The last of them with fewer images than the others."""
    problem = ConvProblem.parse(layer, epilogue=epilogue)
    assert pool.submit(whole_error, problem, images).result() <= tolerance(problem)
