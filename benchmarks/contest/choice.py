"""Who may run: our variants and cuDNN's, and the fastest few of each side on the run that chooses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.turns.layer import Choice, kept_plan
from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import FIELDS, ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Backend

LIBRARIES: Final = {"cuda.gemm": "im2col and cuBLAS"}
"""Variants whose arithmetic is a library's: a bar to beat, no win of ours."""

OURS: Final = tuple(v.id for v in VARIANTS.values() if v.backend is Backend.CUDA and v.id not in LIBRARIES)
CUDNN: Final = tuple(v.id for v in VARIANTS.values() if v.backend in (Backend.CUDNN_LEGACY, Backend.CUDNN_GRAPH))

MOST_BEHIND: Final = 1.5
"""A choice so many times slower than its side's fastest is not timed again: it will not come first."""


def is_cudnn(choice: Choice) -> bool:
    """Which side it is on."""
    return choice.variant.startswith("cudnn.")


def shortlist(chosen_ms: Mapping[Choice, float], most_cudnn: int, most_ours: int) -> list[Choice]:
    """The fastest of each side by chosen time that are no further behind than `MOST_BEHIND`; cuDNN's first."""
    timed = sorted(chosen_ms, key=chosen_ms.__getitem__)
    kept = []
    for of_cudnn, most in ((True, most_cudnn), (False, most_ours)):
        side = [each for each in timed if is_cudnn(each) is of_cudnn][:most]
        kept += [each for each in side if chosen_ms[each] <= MOST_BEHIND * chosen_ms[side[0]]]
    return kept


def interleaved(choices: Sequence[Choice]) -> list[Choice]:
    """An order in which the two sides take turns, the fastest first."""
    sides = ([each for each in choices if is_cudnn(each)], [each for each in choices if not is_cudnn(each)])
    places = range(max(map(len, sides)))
    return [side[place] for place in places for side in sides if place < len(side)]


def from_timings(
    attempts: pa.Table, problems: Collection[ConvProblem], variants: Collection[str]
) -> dict[ConvProblem, dict[Choice, float]]:
    """What was measured of these variants on these problems, warm.

    Parameters
    ----------
    attempts : pyarrow.Table
        In `data.parquet.ATTEMPTS`.
    problems : collection of ConvProblem
    variants : collection of str

    Returns
    -------
    dict of ConvProblem to dict of Choice to time in ms
        A variant measured several times has the median of its medians, and its newest plan.
    """
    wanted = set(problems)
    times: dict[tuple[ConvProblem, str], list[float]] = {}
    plans: dict[tuple[ConvProblem, str], str] = {}
    columns = [*FIELDS, "variant", "plan", "time_ms"]
    for record in _relevant(attempts, wanted, variants).sort_by("measured_at").select(columns).to_pylist():
        problem = ConvProblem(*(record[name] for name in FIELDS))
        if problem in wanted:
            times.setdefault((problem, record["variant"]), []).append(record["time_ms"])
            plans[problem, record["variant"]] = record["plan"]
    found: dict[ConvProblem, dict[Choice, float]] = {}
    for (problem, variant), measured_ms in times.items():
        choice = Choice(variant, kept_plan(variant, plans[problem, variant]))
        found.setdefault(problem, {})[choice] = median(measured_ms)
    return found


def _relevant(table: pa.Table, problems: set[ConvProblem], variants: Collection[str]) -> pa.Table:
    keep = pc.and_(pc.equal(table["outcome"], str(Outcome.MEASURED)), pc.equal(table["l2"], str(L2State.WARM)))
    keep = pc.and_(keep, pc.is_in(table["variant"], value_set=pa.array(list(variants), pa.string())))
    for name in ("c", "h", "k", "r", "dtype", "layout"):
        allowed = {getattr(problem, name) for problem in problems}
        kind = table.schema.field(name).type
        values = pa.array([str(value) if pa.types.is_string(kind) else value for value in allowed], kind)
        keep = pc.and_(keep, pc.is_in(table[name], value_set=values))
    return table.filter(keep)
