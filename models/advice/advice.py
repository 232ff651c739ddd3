"""What advice is: the variants that may run a problem, ranked, why the others are out, and how far to trust it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from conv_advisor.data.epilogue import PLAIN, Epilogue
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.baselines import Baselines
from conv_advisor.models.ranking.candidates import Choice
from conv_advisor.models.ranking.trust import Trust
from conv_advisor.models.ranking.words import not_counted, trusted
from conv_advisor.models.tree.file import Step


class Exclusion(msgspec.Struct, frozen=True, gc=False):
    """One variant that is out, and why."""

    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """What to run for a problem.

    Parameters
    ----------
    problem : ConvProblem
    device_id : str
    model_id : str or None
        None where no model took part.
    ranking : tuple of Choice
        By time; of those that are tied, closer than they can be told apart (`models.ranking.ties`), the measured first,
        then the one with less workspace, then a deterministic one, then the more accurate.
    excluded : tuple of Exclusion
        In the order of the catalogue, then those that were not asked for.
    path : tuple of Step
        The comparisons that led to the predictions.
    trust : Trust
    baselines : Baselines
        What other libraries would run, and how much faster the best is.
    uncounted : Epilogue
        The epilogue that was asked for, where it is in none of the times.
    """

    problem: ConvProblem
    device_id: str
    model_id: str | None
    ranking: tuple[Choice, ...]
    excluded: tuple[Exclusion, ...]
    path: tuple[Step, ...]
    trust: Trust
    baselines: Baselines
    uncounted: Epilogue = PLAIN

    @property
    def asked(self) -> ConvProblem:
        """The problem that was asked for."""
        return replace(self.problem, epilogue=self.uncounted) if self.uncounted else self.problem

    @property
    def best(self) -> Choice:
        """The first of the ranking."""
        return self.ranking[0]

    @property
    def variant(self) -> str:
        """The id of the best."""
        return self.ranking[0].variant

    @property
    def trusted(self) -> str:
        """How far the advice can be trusted, in words: the same on the page, on the command line and in a notebook."""
        words = trusted(self.trust, self.ranking)
        return f"{not_counted(self.uncounted)} {words}" if self.uncounted else words
