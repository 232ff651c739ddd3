"""Which variants of a pool compute a problem: each part of their rules is asked once, however many share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Rule, Variant, parts_of

_MOST_PATTERNS: Final = 4096
"""Patterns of parts that say no; a pool as it is has some hundreds."""

Reasons = tuple[str | None, ...]


class Rules:
    """The rules of a pool of variants on one device.

    Parameters
    ----------
    pool : sequence of Variant
    device : Device
    """

    def __init__(self, pool: Sequence[Variant], device: Device) -> None:
        of_variants = [parts_of(variant.why_not) for variant in pool]
        self._parts: tuple[Rule, ...] = tuple(dict.fromkeys(part for parts in of_variants for part in parts))
        place = {part: number for number, part in enumerate(self._parts)}
        self._places = [[place[part] for part in parts] for parts in of_variants]
        self._device = device
        self._picks: dict[tuple[bool, ...], Callable[[Any], Reasons]] = {}

    def reasons(self, problem: ConvProblem) -> Reasons:
        """Why each variant, in the order of the pool, does not apply; None where it does: as its own rule says."""
        device = self._device
        reasons = [part(problem, device) or None for part in self._parts]
        pattern = tuple([reason is None for reason in reasons])
        pick = self._picks.get(pattern) or self._pick(pattern)
        reasons.append(None)
        return pick(reasons)

    def _pick(self, pattern: tuple[bool, ...]) -> Callable[[Any], Reasons]:
        """A getter of each variant's reason from the reasons of all parts followed by None."""
        if len(self._picks) >= _MOST_PATTERNS:
            self._picks.clear()
        last = len(pattern)
        firsts = [next((part for part in parts if not pattern[part]), last) for parts in self._places]
        pick = self._picks[pattern] = itemgetter(*firsts, last, last)  # at least two, or it gives no tuple
        return pick
