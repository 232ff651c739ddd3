"""Rows of a contest, made up by hand."""

from __future__ import annotations

from benchmarks.contest.rows import Row, Side
from conv_advisor.data.measurement import Device, L2State
from conv_advisor.data.problem import ConvProblem

GPU = Device(
    *("test-gpu", "A GPU for tests", "cuda", "9.0"),
    processors=132,
    l2_bytes=60 * 2**20,
    shared_memory_per_block_bytes=232448,
)


def side(time_ms: float, variant: str = "cuda.implicit_gemm", spread: float = 0.0) -> Side:
    """A side whose samples lie so far, relatively, to both sides of their median."""
    return Side(variant, "", time_ms, (time_ms * (1 - spread), time_ms, time_ms * (1 + spread)))


def row(
    layer: str,
    cudnn_ms: float | None,
    ours_ms: float | None,
    *,
    dtype: str = "float32",
    layout: str = "nchw",
    ours: str = "cuda.implicit_gemm",
    spread: float = 0.0,
    l2: L2State = L2State.WARM,
) -> Row:
    """One row; None where a side has no time."""
    return Row(
        ConvProblem.parse(layer, dtype=dtype, layout=layout),
        l2,
        None if cudnn_ms is None else side(cudnn_ms, "cudnn.graph.eng0", spread),
        None if ours_ms is None else side(ours_ms, ours, spread),
        choosing="by hand",
        device=GPU.id,
    )
