"""A chain of kernels that overlap gives, on a real GPU, the bits of the same chain one after the other."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.cuda.parts.overlap import LEAST_CAPABILITY, overlapping
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch

pytestmark = pytest.mark.gpu

CHAINS = [
    (DType.FLOAT16, Layout.NHWC, "cuda.implicit_gemm_nhwc", 1),
    (DType.FLOAT16, Layout.NHWC, "cuda.implicit_gemm_nhwc", 3),
    (DType.FLOAT16, Layout.NHWC, "cuda.implicit_gemm_tma", 1),
    (DType.BFLOAT16, Layout.NHWC, "cuda.implicit_gemm_tma", 3),
    (DType.TF32, Layout.NHWC, "cuda.implicit_gemm_tma", 3),
    (DType.FLOAT32, Layout.NHWC, "cuda.implicit_gemm_tma", 3),
    (DType.FLOAT16, Layout.NCHW, "cuda.implicit_gemm_transposed", 3),
    (DType.FLOAT16, Layout.NCHW, "cuda.pointwise", 1),
    (DType.FLOAT32, Layout.NCHW, "cuda.pointwise", 1),
    (DType.FLOAT32, Layout.NCHW, "cuda.implicit_gemm", 3),
    (DType.TF32, Layout.NCHW, "cuda.implicit_gemm", 3),
    (DType.FLOAT32, Layout.NCHW, "cuda.implicit_gemm_tma_packed", 3),
    (DType.TF32, Layout.NCHW, "cuda.implicit_gemm_tma_packed", 1),
    (DType.TF32, Layout.NHWC, "cuda.implicit_gemm_nhwc", 3),
    (DType.FLOAT16, Layout.NHWC, "cuda.depthwise", 3),
    (DType.FLOAT32, Layout.NCHW, "cuda.depthwise", 5),
    (DType.FLOAT16, Layout.NHWC, "cuda.grouped", 3),
    (DType.FLOAT32, Layout.NCHW, "cuda.grouped", 3),
    (DType.FLOAT32, Layout.NCHW, "cuda.winograd_nonfused_4x4_3x3", 3),
    (DType.FLOAT32, Layout.NHWC, "cuda.winograd_nonfused_4x4_3x3", 3),
]
ENDS = Epilogue(bias=True, residual=True, activation=Activation.RELU6)
LAUNCHES = 24
REPLAYS = 20


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if float(opened.device.capability) < LEAST_CAPABILITY:
        pytest.skip(f"compute capability {opened.device.capability} cannot overlap kernels")
    return opened


def problem_of(dtype: DType, layout: Layout, variant: str, filter_size: int, channels: int, size: int) -> ConvProblem:
    groups = {"cuda.depthwise": channels, "cuda.grouped": channels // 8}.get(variant, 1)
    pad = filter_size // 2
    sizes = {"h": size, "w": size, "r": filter_size, "s": filter_size, "pad_h": pad, "pad_w": pad}
    kind = {"dtype": dtype, "layout": layout, "epilogue": ENDS}
    return ConvProblem(n=1, c=channels, k=channels, groups=groups, **sizes, **kind)


def chain(launch: Launch, operands: Any) -> Any:
    """Each launch reads what the one ahead wrote, and writes over what that one read."""
    import cupy

    places = [operands.x.copy(), cupy.full_like(operands.x, 7)]
    residual = operands.residual

    def run() -> None:
        for step in range(LAUNCHES):
            read, written = places[step % 2], places[1 - step % 2]
            launch.run(read, operands.weight, written.reshape(operands.y.shape), operands.bias, residual)

    return places, run


@pytest.mark.parametrize(("channels", "size"), [(64, 7), (128, 28)])
@pytest.mark.parametrize(("dtype", "layout", "variant", "filter_size"), CHAINS)
def test_a_chain_gives_the_same_bits(
    runner: Any, dtype: DType, layout: Layout, variant: str, filter_size: int, channels: int, size: int
) -> None:
    import cupy

    problem = problem_of(dtype, layout, variant, filter_size, channels, size)
    operands = runner.make_operands(problem, 0)
    results: list[np.ndarray] = []
    for overlap in (nullcontext(), overlapping()):
        with overlap:
            launch = runner.prepare(VARIANTS[variant], problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            places, run = chain(launch, operands)
            run()
            stream.synchronize()
            results.append(places[0].get())
            stream.begin_capture()
            run()
            graph = stream.end_capture()
            for _ in range(REPLAYS):
                places[0][...] = operands.x
                graph.launch(stream)
                stream.synchronize()
                results.append(places[0].get())
    assert np.isfinite(results[0].astype(np.float32)).all()
    assert results[0].any()
    assert all(np.array_equal(each, results[0]) for each in results[1:])
