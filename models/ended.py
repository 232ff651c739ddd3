"""From advice on a convolution alone to what is known of it with its epilogue, variant by variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import hypot
from typing import TYPE_CHECKING

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Variant
from conv_advisor.models.candidates import Candidate, Choice, consider, scale
from conv_advisor.models.endings import Endings

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary


def ended(
    problem: ConvProblem,
    alone: Mapping[str, Choice],
    endings: Endings,
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
    alone : mapping of variant to Choice
        What advice ranks for the convolution alone.
    endings : Endings
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
        predicted = _predicted(variant, problem, alone.get(variant.id), endings)
        if isinstance(predicted, Candidate):
            predicted_ms[variant.id] = predicted.time_ms
        known = measured.get(variant.id)
        found = known and consider(variant, problem, device, None, known, max_workspace_bytes, is_deterministic)
        found = found or predicted
        if isinstance(found, Candidate):
            candidates.append(found)
        elif found:
            out[variant.id] = found
    if predicted_ms:
        scale(candidates, predicted_ms, min(predicted_ms.values()))
    return candidates, out


def _predicted(
    variant: Variant, problem: ConvProblem, alone: Choice | None, endings: Endings
) -> Candidate | str | None:
    """A variant with what it takes by what it takes alone, why it is out, or None: it is out of what is known alone."""
    if alone is None:
        return None
    doubt = endings.doubt(variant, problem)
    if doubt:
        return doubt
    uncertainty = hypot(alone.uncertainty, endings.spread(variant, problem))
    time_ms = endings.time_ms(variant, problem, alone.time_ms)
    return Candidate(variant, alone.workspace_bytes, None, time_ms, uncertainty)
