"""What was measured, as the figures and guidelines need it: times of some variants, and the fastest among them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.contest.choice import CUDNN, OURS
from benchmarks.contest.rows import LEAST_GAIN, STANDARD_ERRORS
from benchmarks.contest.scores import geometric_mean
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.networks import problems
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.parquet import distinct_problems, times
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Backend
from conv_advisor.models.costs import Costs, from_table

Column = tuple[str, str]
"""Dtype and layout."""


@dataclass(frozen=True)
class Sampled(Costs):
    """What is known of problems and variants, and how far their samples scatter.

    Parameters
    ----------
    deviation : float64 array of shape (P, V)
        Relative standard deviation of one launch's time, as `data.measurement.relative_noise` estimates it from the
        median absolute deviation; NaN where a variant was not timed to the end.
    """

    deviation: np.ndarray = field(kw_only=True)


Known = Mapping[Column, Costs]
"""What is known of each dtype and layout that was measured."""

ALL_COLUMNS: Final[tuple[Column, ...]] = tuple((str(dtype), str(layout)) for layout in Layout for dtype in DType)
FILTERS: Final = (1, 3, 5)
"""The filter sizes of the 602 configurations."""
LEGACY: Final = tuple(v.id for v in VARIANTS.values() if v.backend is Backend.CUDNN_LEGACY)
"""The forward algorithms that the seed papers compared."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much was measured, each problem and variant counting once, however often it was tried.

    Parameters
    ----------
    n_problems : int
    n_tried : int
        Pairs of a problem and a variant that applies, whatever came of it.
    n_timed : int
        Pairs that were timed to the end.
    """

    n_problems: int
    n_tried: int
    n_timed: int

    @classmethod
    def of(cls, table: pa.Table) -> Counts:
        """Count a table of measurements."""
        problems, rows = distinct_problems(table)
        variants = pc.index_in(table["variant"], pc.unique(table["variant"])).to_numpy()
        pairs = rows * (int(variants.max()) + 1) + variants
        is_tried = pc.not_equal(table["outcome"], str(Outcome.NOT_APPLICABLE)).to_numpy()
        is_timed = pc.equal(table["outcome"], str(Outcome.MEASURED)).to_numpy()
        return cls(len(problems), *(len(np.unique(pairs[mask])) for mask in (is_tried, is_timed)))


def load(timings: Path, device_id: str, column: Column, group: str = "seeds") -> Sampled:
    """What is known of the layers of one group of networks in one dtype and layout.

    Parameters
    ----------
    timings : Path
        As `data.packing.attempts_in` takes it.

    Raises
    ------
    NotEnoughData
    """
    in_group = set(problems(group, dtypes=[DType(column[0])], layouts=[Layout(column[1])]))
    attempts = attempts_of(timings)
    is_of_it = pc.and_(pc.equal(attempts["dtype"], column[0]), pc.equal(attempts["layout"], column[1]))
    mine = attempts.filter(is_of_it)
    if not mine.num_rows:
        raise NotEnoughData(f"nothing in {timings}")
    costs = from_table(mine, device_id).where(lambda problem: problem in in_group)
    if not costs.problems:
        raise NotEnoughData(f"none of the {len(in_group)} configurations of {group}")
    known = {field.name: getattr(costs, field.name) for field in fields(costs)}
    return Sampled(**known, deviation=deviations_in(mine, costs))


def deviations_in(table: pa.Table, costs: Costs) -> np.ndarray:
    """The `deviation` of `Sampled` for some costs, from the attempts that they were gathered from.

    Parameters
    ----------
    table : pyarrow.Table
        In `data.packing.ATTEMPTS`.
    costs : Costs
    """
    problems, rows = distinct_problems(table)
    place = {problem: row for row, problem in enumerate(costs.problems)}
    at = np.array([place.get(problem, -1) for problem in problems])[rows]
    column = pc.fill_null(pc.index_in(table["variant"], pa.array(costs.variants)), -1).to_numpy()
    is_timed = pc.equal(table["outcome"], str(Outcome.MEASURED)).to_numpy() & (at >= 0) & (column >= 0)
    _, noise = times(table)
    of_one = noise * np.sqrt(table["n_samples"].to_numpy() / (math.pi / 2))
    deviation = np.full(costs.time_ms.shape, np.nan)
    deviation[at[is_timed], column[is_timed]] = of_one[is_timed]
    return deviation


@lru_cache(maxsize=1)
def attempts_of(timings: Path) -> pa.Table:
    """All attempts of a folder, cached: a caller takes one dtype and layout after another."""
    return attempts_in(timings)


def times_of(costs: Costs, variants: Sequence[str]) -> np.ndarray:
    """The times of some variants, those of pruned ones among them.

    Returns
    -------
    float64 array of shape (P, len(variants))
        ms; infinite where a variant did not run.
    """
    times = np.full((len(costs.problems), len(variants)), np.inf)
    for column, variant in enumerate(variants):
        if variant in costs.variants:
            measured = costs.time_ms[:, costs.variants.index(variant)]
            times[:, column] = np.where(np.isnan(measured), np.inf, measured)
    return times


def deviation_of(costs: Costs, variant: str) -> np.ndarray:
    """How far samples of a variant scatter, as in `Sampled`, shape (P,); NaN where that is not known."""
    if not isinstance(costs, Sampled) or variant not in costs.variants:
        return np.full(len(costs.problems), np.nan)
    scattered: np.ndarray = costs.deviation[:, costs.variants.index(variant)]
    return scattered


def fastest_ms(costs: Costs, variants: Sequence[str]) -> np.ndarray:
    """Time of the fastest of some variants, ms, float64 array of shape (P,); infinite where none of them runs."""
    fastest: np.ndarray = times_of(costs, variants).min(axis=1, initial=np.inf)
    return fastest


def only(costs: Costs, variants: Iterable[str]) -> Costs:
    """The costs of some variants alone, where one of them was timed to the end; their best is then the oracle."""
    columns = np.flatnonzero(np.isin(costs.variants, list(variants)))
    values = {field.name: getattr(costs, field.name) for field in fields(costs)}
    arrays: dict[str, Any] = {
        name: value[:, columns] for name, value in values.items() if isinstance(value, np.ndarray)
    }
    part = replace(costs, variants=tuple(costs.variants[column] for column in columns), **arrays)
    return part.take(np.flatnonzero((np.isfinite(part.time_ms) & ~part.is_pruned).any(axis=1)))


def best_of(costs: Costs, variants: Iterable[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fastest among some variants on each problem.

    Returns
    -------
    place : int64 array of shape (P,)
        In ``costs.variants``.
    time_ms, noise : float64 array of shape (P,)
        Infinite and 0 where none of them was timed.
    """
    is_among = np.isin(costs.variants, list(variants))
    times = np.where(np.isnan(costs.time_ms) | costs.is_pruned | ~is_among, np.inf, costs.time_ms)
    place = times.argmin(axis=1)
    rows = np.arange(len(costs.problems))
    return place, times[rows, place], np.nan_to_num(costs.noise[rows, place])


def is_win(costs: Costs) -> np.ndarray:
    """Whether ours is more than 3 % faster than cuDNN beyond noise, as `benchmarks.contest.rows` has it; shape (P,)."""
    _, ours_ms, ours_noise = best_of(costs, OURS)
    _, cudnn_ms, cudnn_noise = best_of(costs, CUDNN)
    bar_ms = np.where(np.isfinite(ours_ms), ours_ms, 0) * (1 + LEAST_GAIN)
    won: np.ndarray = cudnn_ms - bar_ms > STANDARD_ERRORS * np.hypot(cudnn_ms * cudnn_noise, bar_ms * ours_noise)
    won &= np.isfinite(ours_ms)
    return won


def mean_ratio(above_ms: np.ndarray, below_ms: np.ndarray) -> float:
    """Geometric mean of a ratio of times where both are known; not a number where they never are."""
    both = np.isfinite(above_ms) & np.isfinite(below_ms)
    return geometric_mean(list(above_ms[both] / below_ms[both]))


def is_where(costs: Costs, *, filters: Sequence[int] = FILTERS, batches: Sequence[int] = ()) -> np.ndarray:
    """Which problems have one of these filter sizes and, if any are given, batches; bool array of shape (P,)."""
    return np.array([p.r in filters and (not batches or p.n in batches) for p in costs.problems], dtype=bool)


def layer_of(problem: ConvProblem) -> tuple[int, int, int]:
    """What orders the layers of a filter size in the figures: size, filters, depth."""
    return problem.h, problem.k, problem.c
