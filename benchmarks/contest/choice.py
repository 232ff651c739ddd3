"""Who may run: our variants and cuDNN's, and the fastest few of each side on the run that chooses."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import FIELDS, ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Backend

LIBRARIES: Final = {"cuda.gemm": "im2col and cuBLAS"}
"""Variants whose arithmetic is a library's: a bar to beat, no win of ours."""

OURS: Final = tuple(v.id for v in VARIANTS.values() if v.backend is Backend.CUDA and v.id not in LIBRARIES)
CUDNN: Final = tuple(v.id for v in VARIANTS.values() if v.backend in (Backend.CUDNN_LEGACY, Backend.CUDNN_GRAPH))


MOST_BEHIND: Final = 1.5
"""A candidate so many times slower than its side's fastest is not timed again: it will not come first."""


@dataclass(frozen=True)
class Candidate:
    """One variant, with the plan that it is rebuilt from, and its time on the run that chooses.

    Parameters
    ----------
    variant : str
    plan : str
        JSON; empty where the variant has only one.
    chosen_ms : float
        Not a number where that run did not time it.
    """

    variant: str
    plan: str = ""
    chosen_ms: float = float("nan")

    @property
    def is_cudnn(self) -> bool:
        """Which side it is on."""
        return self.variant.startswith("cudnn.")

    @property
    def name(self) -> str:
        """What a message calls it."""
        return f"{self.variant} {self.plan}".strip()


def shortlist(candidates: Iterable[Candidate], most_cudnn: int, most_ours: int) -> tuple[Candidate, ...]:
    """The fastest of each side by chosen time that are no further behind than `MOST_BEHIND`; cuDNN's first."""
    timed = sorted((each for each in candidates if each.chosen_ms > 0), key=lambda each: each.chosen_ms)
    kept = []
    for is_cudnn, most in ((True, most_cudnn), (False, most_ours)):
        side = [each for each in timed if each.is_cudnn is is_cudnn][:most]
        kept += [each for each in side if each.chosen_ms <= MOST_BEHIND * side[0].chosen_ms]
    return tuple(kept)


def interleaved(candidates: Sequence[Candidate]) -> list[Candidate]:
    """An order in which the two sides take turns, the fastest first."""
    sides = ([each for each in candidates if each.is_cudnn], [each for each in candidates if not each.is_cudnn])
    places = range(max(map(len, sides)))
    return [side[place] for place in places for side in sides if place < len(side)]


def from_timings(
    attempts: pa.Table, problems: Collection[ConvProblem], variants: Collection[str]
) -> dict[ConvProblem, list[Candidate]]:
    """What was measured of these variants on these problems, warm.

    Parameters
    ----------
    attempts : pyarrow.Table
        In `data.parquet.ATTEMPTS`.
    problems : collection of ConvProblem
    variants : collection of str

    Returns
    -------
    dict of ConvProblem to list of Candidate
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
    found: dict[ConvProblem, list[Candidate]] = {}
    for (problem, variant), each in times.items():
        found.setdefault(problem, []).append(
            Candidate(variant, kept_plan(variant, plans[problem, variant]), median(each))
        )
    return found


def kept_plan(variant: str, plan: str) -> str:
    """The plan where it is what rebuilds the variant: an engine of the graph API has many."""
    return plan if VARIANTS[variant].backend is Backend.CUDNN_GRAPH and json.loads(plan) else ""


def _relevant(table: pa.Table, problems: set[ConvProblem], variants: Collection[str]) -> pa.Table:
    keep = pc.and_(pc.equal(table["outcome"], str(Outcome.MEASURED)), pc.equal(table["l2"], str(L2State.WARM)))
    keep = pc.and_(keep, pc.is_in(table["variant"], value_set=pa.array(list(variants), pa.string())))
    for name in ("c", "h", "k", "r", "dtype", "layout"):
        allowed = {getattr(problem, name) for problem in problems}
        kind = table.schema.field(name).type
        values = pa.array([str(value) if pa.types.is_string(kind) else value for value in allowed], kind)
        keep = pc.and_(keep, pc.is_in(table[name], value_set=values))
    return table.filter(keep)
