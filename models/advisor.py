"""Who gives advice: from a problem, by a model and what was measured, to the ranking of every variant that applies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from conv_advisor.data.counting import counted
from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Maker, Variant
from conv_advisor.models.accuracy import error_of, laws_of
from conv_advisor.models.advice import Advice, Exclusion
from conv_advisor.models.baselines import Rivals, with_ending
from conv_advisor.models.candidates import (
    Candidate,
    consider,
    doubt,
    rank,
    ranking,
    scale,
)
from conv_advisor.models.ended import ended
from conv_advisor.models.endings import Endings, endings_of, lent_endings
from conv_advisor.models.features import describe
from conv_advisor.models.habits import habits_of
from conv_advisor.models.leaf import Leaf, Row, Rows, least_ms
from conv_advisor.models.loan import Loan
from conv_advisor.models.rules import Rules
from conv_advisor.models.tree_file import TreeModel, path, walk
from conv_advisor.models.trust import trust_in

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

Limits = tuple[int, bool]
"""The most bytes of workspace, and whether only deterministic variants will do."""

Prediction = tuple[str, float]
"""A variant, and its time in ms."""


class Weighed(NamedTuple):
    """The variants that may run a problem, why the others are out, and what the tree looks at."""

    candidates: list[Candidate]
    excluded: list[Exclusion]
    values: Sequence[float]


class Advisor:
    """Advice for one device, from its model, from measurements, or from both.

    Parameters
    ----------
    model : TreeModel or None
        Without one only measured variants are advised.
    device : Device, optional
        By default the one that the model was trained on; it decides which variants apply. Where it is another, `loan`
        says what the model's times mean there.
    variants : mapping of str to Variant
        The catalogue.
    maker : Maker, optional
        Whose variants alone are advised; by default anybody's.
    endings : Endings, optional
        What epilogues add on the device; by default what the model's card has, then what ships.

    Attributes
    ----------
    loan : Loan or None
        None where the model is the device's own.

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
        device = device or (model.device if model else None)
        if device is None:
            raise NoAdvice("neither a model nor a device is given")
        self.model = model
        self.device = device
        self.loan = Loan(model.device, device) if model and model.device.id != device.id else None
        self._variants, self._maker = variants, maker
        ours = [variant for variant in variants.values() if variant.backend.device_kind == device.kind]
        self._pool = {variant.id: variant for variant in ours if maker is None or maker.has(variant)}
        self._left_out = [
            Exclusion(variant.id, f"only variants of {maker} are asked for")
            for variant in ours
            if variant.id not in self._pool
        ]
        self._only: dict[Maker, Advisor] = {}
        self._rules = Rules(tuple(self._pool.values()), device)
        self._endings = endings or (
            lent_endings(self.loan, model) if self.loan and model else endings_of(device.id, model)
        )
        self._rivals = Rivals(device, habits_of(device.id))
        self._rows: dict[int, Row] = Rows(model, self._pool, device) if model else {}
        missing = "the model does not know it" if model else f"there is no model of {device.id}"
        self._unknown = f"not measured on this layer, and {missing}"

    @property
    def bandwidth_ratio(self) -> float:
        """How many times as many bytes a second the device's memory moves as that of the device that has the model."""
        return self.loan.bandwidth_ratio if self.loan else 1.0

    def counts(self, problem: ConvProblem) -> bool:
        """Whether it is known what the epilogue of a problem adds on the device."""
        return self._endings is not None and self._endings.count(problem)

    def only(self, maker: Maker | None) -> Advisor:
        """The advisor that knows the same and advises the variants of one maker alone; of None, this one."""
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

        An epilogue counts where it is known what it adds on the device, or a time of the problem with it was measured;
        else the advice is that on the convolution alone, and says so by ``uncounted``.

        Parameters
        ----------
        problem : ConvProblem
        max_workspace_bytes : int
        is_deterministic : bool
            Whether only deterministic variants will do.
        measured : mapping of variant to Summary
            What is known of this problem on this device. A measured time stands in for the predicted one, a measured
            refusal excludes. The measured times also scale the predicted ones, and a prediction that is ahead of the
            best measured time by less than its own uncertainty is put level with it.
        alone : mapping of variant to Summary
            The same of the convolution without its epilogue, where it has one.
        picked : mapping of heuristic to variant
            What cuDNN's heuristics chose for the convolution without an epilogue on this device, where they were asked.

        Raises
        ------
        NoAdvice
            Nothing is left.
        """
        limits, measured, picked = (max_workspace_bytes, is_deterministic), measured or {}, picked or {}
        if problem.epilogue is PLAIN or not problem.epilogue:
            return self._ranked(problem, self._weigh(problem, limits, measured), measured, picked)
        has_time = any(each.time_ms is not None for each in measured.values())
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
        """Which variants may run a problem, where what the tree predicts are times of this very problem.

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
            weighed = consider(variant, problem, self.device, leaf, measured.get(variant.id), *limits)
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
        """Advice on a problem with its epilogue from that without; None where nothing is known to end it."""
        if self._endings is None or not self._endings.count(problem):
            return None
        offered = zip(self._pool.values(), self._rules.reasons(problem), strict=False)
        alone = {each.variant.id: each for each in plain.candidates}
        ways = self._endings.ways(problem)
        candidates, out = ended(problem, alone, ways, self.device, offered, measured, *limits)
        if not candidates:
            return None
        known = {each.variant.id for each in candidates}
        reasons = {each.variant: each.reason for each in plain.excluded} | out
        pool = (*self._pool, *(each.variant for each in self._left_out))
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
                sum(each.reason is self._unknown for each in excluded),
                has_record=self._maker is None and not problem.epilogue,
                loan=self.loan,
            ),
            baselines=self._rivals.beside(problem, ranked, excluded, values, picked),
        )

    def doubts(self, problem: ConvProblem, measured: Mapping[str, Summary] | None = None) -> dict[str, str]:
        """Why variants of the device will not run though their rules allow the problem; those alone that will not.

        Parameters
        ----------
        problem : ConvProblem
        measured : mapping of variant to Summary
            What is known of this problem on this device.
        """
        leaf, measured = self._leaf(problem, *describe(problem)), measured or {}
        reasons = {name: doubt(variant, leaf, measured.get(name)) for name, variant in self._pool.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def choose(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
    ) -> str:
        """The variant that `advise` would put first without measurements, and nothing else: for many problems.

        Raises
        ------
        NoAdvice
        """
        first = self.predict(problem, max_workspace_bytes=max_workspace_bytes, is_deterministic=is_deterministic)
        if first is None:
            raise self._nothing_left(problem)
        return first[0]

    def predict_order(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
    ) -> Iterator[str]:
        """The variants that apply, by predicted time alone, each looked at only when asked for."""
        leaf = self._leaf(problem, *describe(problem))
        if leaf is None:
            return
        for names, _, _ in leaf.row.order:
            tied = self._tied(names, problem, leaf, max_workspace_bytes, is_deterministic)
            yield from (candidate.variant.id for candidate in tied)

    def predict(
        self,
        problem: ConvProblem,
        *,
        max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
        is_deterministic: bool = False,
    ) -> Prediction | None:
        """What `advise` would put first without measurements, and its time; None where that is nothing.

        Many times as fast as `advise`, since variants behind the first one that applies are not looked at.
        """
        if self.model is None:
            return None
        values, flops, n_bytes = describe(problem)
        node = walk(self.model, values)
        return self.first(problem, node, flops, n_bytes, max_workspace_bytes, is_deterministic)

    def first(
        self,
        problem: ConvProblem,
        node: int,
        flops: float,
        n_bytes: int,
        max_workspace_bytes: int,
        is_deterministic: bool,
    ) -> Prediction | None:
        """What `predict` gives, where the leaf is known already.

        Parameters
        ----------
        problem : ConvProblem
        node : int
            The leaf that the problem leads to.
        flops, n_bytes : float, int
            Operations and bytes of the problem.
        max_workspace_bytes : int
        is_deterministic : bool
        """
        row = self._rows[node]
        device, best_ms = self.device, least_ms(row, flops, n_bytes) * row.best
        if self.loan:
            best_ms *= self.loan.slowdown(n_bytes, flops, problem.dtype, row.roofline)
        if problem.epilogue is not PLAIN and self._endings and problem.epilogue and self._endings.count(problem):
            leaf = Leaf(row, best_ms, n_bytes)
            return self._first_ended(problem, leaf, self._endings, max_workspace_bytes, is_deterministic)
        for names, attempt, slowdown in row.order:
            if attempt is None:
                leaf = Leaf(row, best_ms, n_bytes)
                if tied := self._tied(names, problem, leaf, max_workspace_bytes, is_deterministic):
                    return tied[0].variant.id, tied[0].time_ms
                continue
            for rule in attempt.rules:
                if rule(problem, device):
                    break
            else:
                variant = attempt.variant
                if is_deterministic and not variant.is_deterministic:
                    continue
                if not attempt.has_workspace and max_workspace_bytes >= 0:
                    return names[0], best_ms * slowdown
                workspace = variant.needed_bytes(problem, device, max_workspace_bytes)
                if workspace is None:
                    workspace = Leaf(row, best_ms, n_bytes).workspace_bytes(variant.id)
                if workspace is None or workspace <= max_workspace_bytes:
                    return names[0], best_ms * slowdown
        return None

    def _first_ended(
        self, problem: ConvProblem, leaf: Leaf, endings: Endings, max_workspace_bytes: int, is_deterministic: bool
    ) -> Prediction | None:
        """The first, by its time with the epilogue: that is never less than its time without, so few are looked at."""
        candidates: list[Candidate] = []
        ways, least_ms = endings.ways(problem), math.inf
        for names, _, slowdown in leaf.row.order:
            if leaf.best_ms * slowdown > least_ms:
                break
            for each in self._tied(names, problem, leaf, max_workspace_bytes, is_deterministic):
                way = ways.get(each.variant.ending) if each.variant.ending else None
                if way and not way.doubt:
                    each.time_ms = way.time_ms(each.time_ms)
                    least_ms = min(least_ms, each.time_ms)
                    candidates.append(each)
        errors = self._error_of(problem, {})
        best = min(candidates, key=lambda each: (each.time_ms, *rank(each, errors)), default=None)
        return None if best is None else (best.variant.id, best.time_ms)

    def _tied(
        self,
        names: Sequence[str],
        problem: ConvProblem,
        leaf: Leaf,
        max_workspace_bytes: int,
        is_deterministic: bool,
    ) -> list[Candidate]:
        """The variants of one predicted time that apply, in the order of a ranking."""
        variants = [variant for name in names if not (variant := self._pool[name]).why_not(problem, self.device)]
        limits = max_workspace_bytes, is_deterministic
        weighed = [consider(variant, problem, self.device, leaf, None, *limits) for variant in variants]
        candidates = [each for each in weighed if isinstance(each, Candidate)]
        if len(candidates) > 1:
            errors = self._error_of(problem, {})
            candidates.sort(key=lambda candidate: rank(candidate, errors))
        return candidates

    def _error_of(self, problem: ConvProblem, measured: Mapping[str, Summary]) -> Callable[[str], float]:
        laws = laws_of(self.model)
        return lambda variant: error_of(laws, variant, problem, measured.get(variant))[0]

    def _leaf(self, problem: ConvProblem, values: Sequence[float], flops: float, n_bytes: int) -> Leaf | None:
        if self.model is None:
            return None
        node = walk(self.model, values)
        row = self._rows[node]
        best_ms = least_ms(row, flops, n_bytes) * row.best
        if self.loan:
            best_ms *= self.loan.slowdown(n_bytes, flops, problem.dtype, row.roofline)
        return Leaf(row, best_ms, n_bytes)

    def _nothing_left(self, problem: ConvProblem, excluded: Sequence[Exclusion] = ()) -> NoAdvice:
        said, reasons = f"{problem.key} on {self.device.id}", {each.variant: each.reason for each in excluded}
        n_unknown = sum(reason is self._unknown for reason in reasons.values())
        if n_unknown:
            return NoAdvice(f"nothing is known of {counted(n_unknown, 'variant')} that may run {said}", reasons)
        return NoAdvice(f"no variant is known to run {said} within the limits", reasons)
