"""The gain of the advised variant over the alternatives that run today: on one layer, and on a whole network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.baselines import NAMES, Baseline
from conv_advisor.models.ranking.candidates import Source

ORDER: Final = ("pytorch_default", "pytorch_benchmark", "cudnn_heuristic", "cudnn_best")
"""Fields of `Baselines`, those that people use most first."""


@dataclass(frozen=True)
class Rival:
    """One alternative on one layer; ``end`` is its bar in percent of the slowest one's."""

    name: str
    title: str
    baseline: Baseline
    end: float


@dataclass(frozen=True)
class Rivals:
    """All alternatives on one layer, and the bar of the advised variant beside theirs."""

    rivals: Sequence[Rival]
    own_end: float


@dataclass(frozen=True)
class TotalAgainst:
    """One alternative over the layers of a network on which its time is known.

    Parameters
    ----------
    name, title : str
    time_ms, own_ms : float
        Time of one pass over those layers: the alternative's, and that of the advised variants.
    n_measured, n_known, n_layers : int
        Distinct layers: those whose time was measured, those whose time is known, all.
    """

    name: str
    title: str
    time_ms: float
    own_ms: float
    n_measured: int
    n_known: int
    n_layers: int

    @property
    def speedup(self) -> float:
        """How many times as fast the advised variants are."""
        return self.time_ms / self.own_ms


def rivals_of(advice: Advice) -> Rivals:
    """The alternatives to an advised variant."""
    baselines = {name: getattr(advice.baselines, name) for name in ORDER}
    own_ms = advice.best.time_ms
    slowest_ms = max([own_ms, *(baseline.time_ms for baseline in baselines.values() if baseline.time_ms)])
    rivals = [
        Rival(name, NAMES[name], baseline, _end(baseline.time_ms or 0.0, slowest_ms))
        for name, baseline in baselines.items()
    ]
    return Rivals(rivals, _end(own_ms, slowest_ms))


def totals_against(counted: Iterable[tuple[int, Advice | None]]) -> list[TotalAgainst]:
    """The alternatives over a whole network; those without a known time on any layer are left out.

    Parameters
    ----------
    counted : iterable of (int, Advice or None)
        For each distinct layer how often one pass runs it, and the advice on it.
    """
    layers = list(counted)
    totals = (_total(name, layers) for name in ORDER)
    return [total for total in totals if total.n_known]


def _total(name: str, layers: Sequence[tuple[int, Advice | None]]) -> TotalAgainst:
    pairs = [(count, advice, getattr(advice.baselines, name)) for count, advice in layers if advice]
    known = [(count, advice, baseline) for count, advice, baseline in pairs if baseline.time_ms is not None]
    return TotalAgainst(
        name=name,
        title=NAMES[name],
        time_ms=sum(count * baseline.time_ms for count, _, baseline in known),
        own_ms=sum(count * advice.best.time_ms for count, advice, _ in known),
        n_measured=sum(baseline.source is Source.MEASURED for _, _, baseline in known),
        n_known=len(known),
        n_layers=len(layers),
    )


def _end(time_ms: float, slowest_ms: float) -> float:
    return round(100 * time_ms / slowest_ms, 1)
