"""The advisor: from a problem, by a model and measurements, to the ranking of every variant that applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from conv_advisor.data.counting import counted
from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Maker, Variant
from conv_advisor.models.advice.advice import Advice, Exclusion
from conv_advisor.models.advice.baselines import Rivals, with_ending
from conv_advisor.models.advice.habits import habits_of
from conv_advisor.models.ranking.candidates import (
    Candidate,
    consider,
    doubt,
    ranking,
    scale,
)
from conv_advisor.models.ranking.ended import ended
from conv_advisor.models.ranking.endings import Endings
from conv_advisor.models.ranking.leaf import UNLEARNED
from conv_advisor.models.ranking.predictor import Predictor
from conv_advisor.models.ranking.rules import Rules
from conv_advisor.models.ranking.trust import trust_in
from conv_advisor.models.tree.features import describe
from conv_advisor.models.tree.file import TreeModel, path

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

Limits = tuple[int, bool]
"""The most bytes of workspace, and whether only deterministic variants may run."""


class Weighed(NamedTuple):
    """The variants that may run a problem, why the others are out, and the features that the tree looks at."""

    candidates: list[Candidate]
    excluded: list[Exclusion]
    values: Sequence[float]


class Advisor(Predictor):
    """Advice for one device, from its model, from measurements, or from both; arguments as for `Predictor`.

    Raises
    ------
    NoAdvice
        There is neither a model nor a device.
    """

    def __init__(
        self,
        model: TreeModel | None,
        device: Device | None = None,
        *,
        variants: Mapping[str, Variant] = VARIANTS,
        maker: Maker | None = None,
        endings: Endings | None = None,
    ) -> None:
        super().__init__(model, device, variants=variants, maker=maker, endings=endings)
        self._variants, self._maker = variants, maker
        self._left_out = [
            Exclusion(variant.id, f"only variants of {maker} are asked for")
            for variant in variants.values()
            if variant.backend.device_kind == self.device.kind and variant.id not in self._pool
        ]
        self._only: dict[Maker, Advisor] = {}
        self._rules = Rules(tuple(self._pool.values()), self.device)
        self._rivals = Rivals(self.device, habits_of(self.device.id))
        missing = UNLEARNED if model else f"there is no model of {self.device.id}"
        self._unknown = f"not measured on this layer, and {missing}"

    def only(self, maker: Maker | None) -> Advisor:
        """The advisor that knows the same and advises only the variants of one maker; for None, this one."""
        if maker in (None, self._maker):
            return self
        if maker not in self._only:
            self._only[maker] = Advisor(
                self.model, self.device, variants=self._variants, maker=maker, endings=self._endings
            )
        return self._only[maker]

    def advise(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
        measured: Mapping[str, Summary] | None = None,
        alone: Mapping[str, Summary] | None = None,
        picked: Mapping[str, str] | None = None,
    ) -> Advice:
        """Rank every variant that applies within the limits.

        An epilogue counts where its cost on the device is known, or a time of the problem with it was measured; else
        the advice is on the convolution alone, and says so by ``uncounted``.

        Parameters
        ----------
        problem : ConvProblem
        max_workspace_bytes : int
        is_deterministic : bool
            Whether only deterministic variants may run.
        measured : mapping of variant to Summary
            What is known of this problem on this device. A measured time stands in for the predicted one, a measured
            refusal excludes. The measured times also scale the predicted ones, and a prediction that is ahead of the
            best measured time by less than its own uncertainty is put level with it.
        alone : mapping of variant to Summary
            Measurements of the convolution without its epilogue, where it has one.
        picked : mapping of heuristic to variant
            What cuDNN's heuristics chose for the convolution without an epilogue on this device, where cuDNN was asked.

        Raises
        ------
        NoAdvice
            No variant is left.
        """
        limits, measured, picked = (max_workspace_bytes, is_deterministic), measured or {}, picked or {}
        if problem.epilogue is PLAIN or not problem.epilogue:
            return self._ranked(problem, self._weigh(problem, limits, measured), measured, picked)
        has_time = any(summary.time_ms is not None for summary in measured.values())
        if has_time and not self.counts(problem):
            return self._ranked(problem, self._weigh(problem, limits, measured), measured, picked)
        plain, alone = problem.plain, alone or {}
        try:
            weighed = self._weigh(plain, limits, alone)
        except NoAdvice:
            if has_time:
                return self._ranked(problem, self._weigh(problem, limits, measured), measured, picked)
            raise
        ended_advice = self._ended(problem, weighed, limits, measured, picked)
        return ended_advice or replace(self._ranked(plain, weighed, alone, picked), uncounted=problem.epilogue)

    def _weigh(self, problem: ConvProblem, limits: Limits, measured: Mapping[str, Summary]) -> Weighed:
        """Which variants may run a problem, where the tree predicts times of this very problem.

        Raises
        ------
        NoAdvice
        """
        described = describe(problem)
        leaf = self._leaf(problem, *described)
        candidates: list[Candidate] = []
        excluded: list[Exclusion] = []
        for variant, reason in zip(self._pool.values(), self._rules.reasons(problem), strict=False):
            if reason is not None:
                excluded.append(Exclusion(variant.id, reason))
                continue
            known = leaf if leaf and problem.dtype in self._learned[variant.id] else None
            weighed = consider(variant, problem, self.device, known, measured.get(variant.id), *limits)
            if isinstance(weighed, Candidate):
                candidates.append(weighed)
            else:
                excluded.append(Exclusion(variant.id, weighed or self._unknown))
        excluded += self._left_out
        if not candidates:
            raise self._nothing_left(problem, excluded)
        if leaf and measured:
            scale(candidates, {name: leaf.time_ms(name) for name in measured if name in leaf.row.column}, leaf.best_ms)
        return Weighed(candidates, excluded, described[0])

    def _ended(
        self,
        problem: ConvProblem,
        plain: Weighed,
        limits: Limits,
        measured: Mapping[str, Summary],
        picked: Mapping[str, str],
    ) -> Advice | None:
        """Advice on a problem with its epilogue, from that on it alone; None where no way to end it is known."""
        if self._endings is None or not self._endings.count(problem):
            return None
        offered = zip(self._pool.values(), self._rules.reasons(problem), strict=False)
        alone = {candidate.variant.id: candidate for candidate in plain.candidates}
        ways = self._endings.ways(problem)
        candidates, out = ended(problem, alone, ways, self.device, offered, measured, *limits)
        if not candidates:
            return None
        known = {candidate.variant.id for candidate in candidates}
        reasons = {exclusion.variant: exclusion.reason for exclusion in plain.excluded} | out
        pool = (*self._pool, *(exclusion.variant for exclusion in self._left_out))
        excluded = [Exclusion(name, reasons[name]) for name in pool if name not in known]
        advice = self._ranked(problem, plain._replace(candidates=candidates, excluded=excluded), measured, picked)
        ranked = ranking(plain.candidates, self._error_of(problem.plain, {}))
        theirs = self._rivals.beside(problem.plain, ranked, plain.excluded, plain.values, picked)
        baselines = with_ending(advice.baselines, theirs, problem, self._endings, advice.best.time_ms)
        return replace(advice, baselines=baselines)

    def _ranked(
        self,
        problem: ConvProblem,
        weighed: Weighed,
        measured: Mapping[str, Summary],
        picked: Mapping[str, str],
    ) -> Advice:
        """The advice that ranks these candidates."""
        candidates, excluded, values = weighed
        ranked = ranking(candidates, self._error_of(problem, measured))
        return Advice(
            problem=problem,
            device_id=self.device.id,
            model_id=self.model.id if self.model else None,
            ranking=ranked,
            excluded=tuple(excluded),
            path=tuple(path(self.model, values)) if self.model else (),
            trust=trust_in(
                self.model,
                problem,
                ranked,
                sum(exclusion.reason is self._unknown for exclusion in excluded),
                has_record=self._maker is None and not problem.epilogue,
                loan=self.loan,
            ),
            baselines=self._rivals.beside(problem, ranked, excluded, values, picked),
        )

    def doubts(self, problem: ConvProblem, measured: Mapping[str, Summary] | None = None) -> dict[str, str]:
        """Why variants of the device will not run though their rules allow the problem; only of those that will not.

        Parameters
        ----------
        problem : ConvProblem
        measured : mapping of variant to Summary
            What is known of this problem on this device.
        """
        leaf, measured = self._leaf(problem, *describe(problem)), measured or {}
        reasons = {name: doubt(variant, leaf, measured.get(name)) for name, variant in self._pool.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def _nothing_left(self, problem: ConvProblem, excluded: Sequence[Exclusion]) -> NoAdvice:
        reasons = {exclusion.variant: exclusion.reason for exclusion in excluded}
        n_unknown = sum(reason is self._unknown for reason in reasons.values())
        if not n_unknown:
            return self._none_runs(problem, reasons)
        may_run = f"{counted(n_unknown, 'variant')} that may run {problem.key} on {self.device.id}"
        return NoAdvice(f"nothing is known of {may_run}", reasons)
