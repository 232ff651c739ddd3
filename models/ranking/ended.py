"""From advice on a convolution alone to what is known of it with its epilogue, variant by variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import hypot
from typing import TYPE_CHECKING

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.ranking.candidates import Candidate, consider, scale
from conv_advisor.models.ranking.endings import Way, way_of

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary


def ended(
    problem: ConvProblem,
    alone: Mapping[str, Candidate],
    ways: Mapping[str, Way],
    device: Device,
    offered: Iterable[tuple[Variant, str | None]],
    measured: Mapping[str, Summary],
    max_workspace_bytes: int,
    is_deterministic: bool,
) -> tuple[list[Candidate], dict[str, str]]:
    """The variants that may run a problem with its epilogue, with their times, and why others are out.

    Parameters
    ----------
    problem : ConvProblem
    alone : mapping of variant to Candidate
        What may run the convolution alone.
    ways : mapping of str to Way
        What each way to end takes, for this problem: `Endings.ways`.
    device : Device
    offered : iterable of (Variant, str or None)
        The pool, and why the rule of each refuses the problem.
    measured : mapping of variant to Summary
        What is known of the problem itself: it counts before what is predicted.
    max_workspace_bytes : int
    is_deterministic : bool
    """
    candidates: list[Candidate] = []
    out: dict[str, str] = {}
    predicted_ms: dict[str, float] = {}
    for variant, refused in offered:
        if refused:
            out[variant.id] = refused
            continue
        predicted = _predicted(problem, alone.get(variant.id), ways)
        if isinstance(predicted, Candidate):
            predicted_ms[variant.id] = predicted.time_ms
        known = measured.get(variant.id)
        verdict = known and consider(variant, problem, device, None, known, max_workspace_bytes, is_deterministic)
        verdict = verdict or predicted
        if isinstance(verdict, Candidate):
            candidates.append(verdict)
        elif verdict:
            out[variant.id] = verdict
    if predicted_ms:
        scale(candidates, predicted_ms, min(predicted_ms.values()))
    return candidates, out


def _predicted(problem: ConvProblem, alone: Candidate | None, ways: Mapping[str, Way]) -> Candidate | str | None:
    """A candidate whose time follows from its time alone, or why it is out; None where it does not run alone."""
    if alone is None or (ended_by := way_of(alone.variant, problem)) is None:
        return None
    way = ways[ended_by]
    if way.doubt:
        return way.doubt
    uncertainty = hypot(alone.uncertainty, way.cost.spread)
    return Candidate(alone.variant, alone.workspace_bytes, None, way.time_ms(alone.time_ms), uncertainty)
