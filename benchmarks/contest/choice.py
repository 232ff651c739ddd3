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
    """Whether the choice is on cuDNN's side."""
    return choice.variant.startswith("cudnn.")


def shortlist(chosen_ms: Mapping[Choice, float], most_cudnn: int, most_ours: int) -> list[Choice]:
    """The fastest of each side by chosen time that are no further behind than `MOST_BEHIND`; cuDNN's first."""
    timed = sorted(chosen_ms, key=chosen_ms.__getitem__)
    listed = []
    for of_cudnn, most in ((True, most_cudnn), (False, most_ours)):
        side = [choice for choice in timed if is_cudnn(choice) is of_cudnn][:most]
        listed += [choice for choice in side if chosen_ms[choice] <= MOST_BEHIND * chosen_ms[side[0]]]
    return listed


def interleaved(choices: Sequence[Choice]) -> list[Choice]:
    """An order in which the two sides take turns, the fastest first."""
    sides = ([choice for choice in choices if is_cudnn(choice)], [choice for choice in choices if not is_cudnn(choice)])
    places = range(max(map(len, sides)))
    return [side[place] for place in places for side in sides if place < len(side)]


def from_timings(
    attempts: pa.Table, problems: Collection[ConvProblem], variants: Collection[str]
) -> dict[ConvProblem, dict[Choice, float]]:
    """Warm times of these variants on these problems.

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
    problem_set = set(problems)
    times: dict[tuple[ConvProblem, str], list[float]] = {}
    plans: dict[tuple[ConvProblem, str], str] = {}
    columns = [*FIELDS, "variant", "plan", "time_ms"]
    for record in _relevant(attempts, problem_set, variants).sort_by("measured_at").select(columns).to_pylist():
        problem = ConvProblem(*(record[name] for name in FIELDS))
        if problem in problem_set:
            times.setdefault((problem, record["variant"]), []).append(record["time_ms"])
            plans[problem, record["variant"]] = record["plan"]
    chosen_ms: dict[ConvProblem, dict[Choice, float]] = {}
    for (problem, variant), measured_ms in times.items():
        choice = Choice(variant, kept_plan(variant, plans[problem, variant]))
        chosen_ms.setdefault(problem, {})[choice] = median(measured_ms)
    return chosen_ms


def _relevant(table: pa.Table, problems: set[ConvProblem], variants: Collection[str]) -> pa.Table:
    keep = pc.and_(pc.equal(table["outcome"], str(Outcome.MEASURED)), pc.equal(table["l2"], str(L2State.WARM)))
    keep = pc.and_(keep, pc.is_in(table["variant"], value_set=pa.array(list(variants), pa.string())))
    for name in ("c", "h", "k", "r", "dtype", "layout"):
        allowed = {getattr(problem, name) for problem in problems}
        kind = table.schema.field(name).type
        values = pa.array([str(value) if pa.types.is_string(kind) else value for value in allowed], kind)
        keep = pc.and_(keep, pc.is_in(table[name], value_set=values))
    return table.filter(keep)
