"""What the rows say of fused variants against their targets; pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.contest.scores import geometric_mean
from benchmarks.endings.rows import AUTOTUNED, COMPILED, CUDNN, EAGER, OURS, PLAIN, Row


@dataclass(frozen=True)
class Target:
    """The least geometric means to reach in one dtype and layout.

    Parameters
    ----------
    compiled : float
        The faster of PyTorch's two compiled layers over ours.
    cudnn : float
        cuDNN's best fused plan over the pool of ours and cuDNN.
    cudnn_residual : float or None
        The same where a residual follows a 1x1 convolution.
    """

    compiled: float
    cudnn: float
    cudnn_residual: float | None = None


_TENSOR_NHWC: Final = Target(1.5, 1.15, 1.5)
_TENSOR_NCHW: Final = Target(2.0, 1.6)
_TF32: Final = Target(1.4, 1.2)
TARGETS: Final[Mapping[tuple[str, str], Target]] = {
    ("float16", "nhwc"): _TENSOR_NHWC,
    ("bfloat16", "nhwc"): _TENSOR_NHWC,
    ("float16", "nchw"): _TENSOR_NCHW,
    ("bfloat16", "nchw"): _TENSOR_NCHW,
    ("tf32", "nchw"): _TF32,
    ("tf32", "nhwc"): _TF32,
    ("float32", "nchw"): Target(2.5, 2.2),
}
COST_TARGET: Final = 1.05
"""Median, at most: time of a fused variant less that of the residual's bytes, over its plain time."""

RIVALS: Final = (CUDNN, EAGER, COMPILED, AUTOTUNED)


@dataclass(frozen=True)
class Cost:
    """What an epilogue costs a fused variant of ours, in medians over layers.

    Parameters
    ----------
    n_layers : int
    whole : float
        Fused over plain time.
    beside_residual : float
        The same with the time of the residual's bytes taken off the fused time.
    """

    n_layers: int
    whole: float
    beside_residual: float


def ratios(rows: Iterable[Row], of: tuple[str, ...], over: str) -> list[float]:
    """Time of the fastest of some sides over that of another, on the layers where both have a time."""
    pairs = ((row.time_ms(*of), row.time_ms(over)) for row in rows)
    return [mine / other for mine, other in pairs if mine is not None and other is not None]


def mean(rows: Iterable[Row], of: tuple[str, ...], over: str) -> float:
    """Geometric mean of `ratios`; not a number where there are none."""
    return geometric_mean(ratios(rows, of, over))


def has_residual_on_1x1(row: Row) -> bool:
    """Whether a residual follows a 1x1 convolution."""
    return row.problem.epilogue.residual and row.problem.r == row.problem.s == 1


def cost(rows: Iterable[Row], bytes_per_s: float) -> Cost | None:
    """What the epilogue costs ours; None where no layer has both times."""
    whole, beside = [], []
    for row in rows:
        fused_ms, plain_ms = row.time_ms(OURS), row.time_ms(PLAIN)
        if fused_ms is not None and plain_ms is not None:
            residual_ms = 1e3 * row.problem.y_bytes * row.problem.epilogue.residual / bytes_per_s
            whole.append(fused_ms / plain_ms)
            beside.append((fused_ms - residual_ms) / plain_ms)
    return Cost(len(whole), median(whole), median(beside)) if whole else None


def lead(row: Row) -> float | None:
    """Time of the fastest rival over ours; None where either has no time."""
    ours_ms, rival_ms = row.time_ms(OURS), row.time_ms(*RIVALS)
    return None if ours_ms is None or rival_ms is None else rival_ms / ours_ms


def worst(rows: Iterable[Row], most: int) -> list[Row]:
    """The layers on which ours is the furthest behind the fastest rival."""
    led = [(ratio, row.problem.key, row) for row in rows if (ratio := lead(row)) is not None]
    return [row for _, _, row in sorted(led, key=lambda entry: entry[:2])[:most]]
