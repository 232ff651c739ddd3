"""What the rows say of each rule: slowdown, speed-up, how far predictions are off, and when tuning pays; arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from benchmarks.contest.scores import geometric_mean
from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, TUNED, Row
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.evaluation import tuning
from conv_advisor.models.evaluation.tuning import Trial, Worth

MUCH_SLOWER: Final = 1.05
"""Layers so many times slower than PyTorch's default are counted."""

Layer = Mapping[str, Row]
"""The rows of one layer by rule, only those that have a time; the oracle's is among them."""

Column = tuple[str, str]


@dataclass(frozen=True)
class Target:
    """What advice is to reach in one dtype and layout.

    Parameters
    ----------
    geometric_mean, p95, worst : float
        Slowdown against the oracle, at most.
    speedup : float
        Over PyTorch's default, geometric mean, at least.
    """

    geometric_mean: float
    p95: float
    worst: float
    speedup: float


_OTHERS: Final = Target(1.02, 1.08, 1.4, 1.15)
TARGETS: Final[Mapping[Column, Target]] = {
    ("float32", "nchw"): Target(1.03, 1.12, 1.5, 1.3),
    ("tf32", "nchw"): _OTHERS,
    ("float16", "nchw"): _OTHERS,
    ("bfloat16", "nchw"): _OTHERS,
    ("float16", "nhwc"): _OTHERS,
    ("bfloat16", "nhwc"): _OTHERS,
}
PREDICTION_TARGET: Final = 0.10
"""Median error of the predicted time, at most."""


@dataclass(frozen=True)
class Slowdown:
    """Time of a rule's choice against the oracle's."""

    n_layers: int
    geometric_mean: float
    p95: float
    worst: float
    worst_layer: str


@dataclass(frozen=True)
class Speedup:
    """Time of another rule's choice over that of advice.

    Parameters
    ----------
    n_layers : int
    geometric_mean : float
    share_faster : float
        Layers on which advice is the faster, by however little.
    share_much_slower : float
        Layers on which advice takes more than `MUCH_SLOWER` times the other's time.
    worst : float
        The least speed-up.
    worst_layer : str
    """

    n_layers: int
    geometric_mean: float
    share_faster: float
    share_much_slower: float
    worst: float
    worst_layer: str


@dataclass(frozen=True)
class Prediction:
    """|predicted / measured - 1| of the time of what was advised."""

    n_layers: int
    median: float
    p90: float


def layers_of(rows: Iterable[Row]) -> list[Layer]:
    """The rows of each layer that has a time of the oracle."""
    by_problem: dict[ConvProblem, dict[str, Row]] = {}
    for row in rows:
        if row.samples_ms:
            by_problem.setdefault(row.problem, {})[row.rule] = row
    return [layer for layer in by_problem.values() if ORACLE in layer]


def of_column(layers: Iterable[Layer], column: Column) -> list[Layer]:
    """The layers of one dtype and layout."""
    return [layer for layer in layers if layer[ORACLE].column == column]


def slowdown(layers: Iterable[Layer], rule: str) -> Slowdown | None:
    """How a rule fares against the oracle, over the layers where both have a time; None where there are none."""
    pairs = [
        (layer[rule].time_ms / layer[ORACLE].time_ms, layer[rule].problem.key) for layer in layers if rule in layer
    ]
    if not pairs:
        return None
    values = [value for value, _ in pairs]
    return Slowdown(len(pairs), geometric_mean(values), float(np.quantile(values, 0.95)), *max(pairs))


def speedup(layers: Iterable[Layer], rule: str) -> Speedup | None:
    """How much faster advice is than another rule; None where no layer has both."""
    both = [layer for layer in layers if rule in layer and ADVICE in layer]
    pairs = [(layer[rule].time_ms / layer[ADVICE].time_ms, layer[rule].problem.key) for layer in both]
    if not pairs:
        return None
    values = [value for value, _ in pairs]
    return Speedup(
        len(pairs),
        geometric_mean(values),
        sum(value > 1 for value in values) / len(values),
        sum(value * MUCH_SLOWER < 1 for value in values) / len(values),
        *min(pairs),
    )


def prediction(layers: Iterable[Layer]) -> Prediction | None:
    """How far off the predicted times are; None where none was predicted."""
    errors = [
        abs(row.predicted_ms / row.time_ms - 1)
        for layer in layers
        if (row := layer.get(ADVICE)) and row.predicted_ms is not None
    ]
    return Prediction(len(errors), median(errors), float(np.quantile(errors, 0.9))) if errors else None


def worth(layers: Iterable[Layer]) -> Worth | None:
    """When PyTorch's tuning pays; None where no layer was both tuned and advised."""
    return tuning.worth(
        Trial(
            advised_ms=layer[ADVICE].time_ms,
            untuned_ms=layer[DEFAULT].time_ms,
            tuned_ms=layer[TUNED].time_ms,
            untuned_call_s=layer[DEFAULT].first_call_s or 0.0,
            tuned_call_s=layer[TUNED].first_call_s or 0.0,
        )
        for layer in layers
        if {ADVICE, DEFAULT, TUNED} <= layer.keys() and layer[TUNED].first_call_s
    )


def failures(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """How often each rule failed in which way: rows by rule and outcome."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.failure and not row.samples_ms:
            key = (row.rule, row.failure.partition(":")[0])
            counts[key] = counts.get(key, 0) + 1
    return counts
