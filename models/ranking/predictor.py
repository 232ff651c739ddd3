"""What a tree alone puts first: by predicted time, without a look at the variants behind it; for many problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Maker, Variant
from conv_advisor.models.ranking.accuracy import error_of, laws_of
from conv_advisor.models.ranking.candidates import Candidate, consider, rank
from conv_advisor.models.ranking.endings import Endings, endings_of, lent_endings, way_of
from conv_advisor.models.ranking.leaf import Leaf, Row, Rows, learned_by, least_ms
from conv_advisor.models.tree.features import describe
from conv_advisor.models.tree.file import TreeModel, walk
from conv_advisor.models.tree.loan import Loan

if TYPE_CHECKING:
    from conv_advisor.data.summary import Summary

Prediction = tuple[str, float]
"""A variant, and its time in ms."""


class Predictor:
    """Predictions for one device.

    Parameters
    ----------
    model : TreeModel or None
        Without one nothing is predicted.
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
        self._pool = {
            variant.id: variant
            for variant in variants.values()
            if variant.backend.device_kind == device.kind and (maker is None or maker.has(variant))
        }
        endings = endings or (lent_endings(self.loan, model) if self.loan and model else endings_of(device.id, model))
        self._endings = endings and endings.on(device)
        self._learned = {name: learned_by(model, variant) for name, variant in self._pool.items()} if model else {}
        self._rows: dict[int, Row] = Rows(model, self._pool, device) if model else {}

    @property
    def bandwidth_ratio(self) -> float:
        """Memory bandwidth of the device over that of the device that the model was trained on."""
        return self.loan.bandwidth_ratio if self.loan else 1.0

    def counts(self, problem: ConvProblem) -> bool:
        """Whether it is known what the epilogue of a problem adds on the device."""
        return self._endings is not None and self._endings.count(problem)

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
            raise self._none_runs(problem, {})
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
            for candidate in self._tied(names, problem, leaf, max_workspace_bytes, is_deterministic):
                ended_by = way_of(candidate.variant, problem)
                way = ways[ended_by] if ended_by else None
                if way and not way.doubt:
                    candidate.time_ms = way.time_ms(candidate.time_ms)
                    least_ms = min(least_ms, candidate.time_ms)
                    candidates.append(candidate)
        errors = self._error_of(problem, {})
        best = min(candidates, key=lambda candidate: (candidate.time_ms, *rank(candidate, errors)), default=None)
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
        variants = [
            variant
            for name in names
            if not (variant := self._pool[name]).why_not(problem, self.device) and problem.dtype in self._learned[name]
        ]
        limits = max_workspace_bytes, is_deterministic
        weighed = [consider(variant, problem, self.device, leaf, None, *limits) for variant in variants]
        candidates = [candidate for candidate in weighed if isinstance(candidate, Candidate)]
        if len(candidates) > 1:
            errors = self._error_of(problem, {})
            candidates.sort(key=lambda candidate: rank(candidate, errors))
        return candidates

    def _leaf(self, problem: ConvProblem, values: Sequence[float], flops: float, n_bytes: int) -> Leaf | None:
        if self.model is None:
            return None
        node = walk(self.model, values)
        row = self._rows[node]
        best_ms = least_ms(row, flops, n_bytes) * row.best
        if self.loan:
            best_ms *= self.loan.slowdown(n_bytes, flops, problem.dtype, row.roofline)
        return Leaf(row, best_ms, n_bytes)

    def _none_runs(self, problem: ConvProblem, reasons: dict[str, str]) -> NoAdvice:
        return NoAdvice(f"no variant is known to run {problem.key} on {self.device.id} within the limits", reasons)

    def _error_of(self, problem: ConvProblem, measured: Mapping[str, Summary]) -> Callable[[str], float]:
        laws = laws_of(self.model)
        return lambda variant: error_of(laws, variant, problem, measured.get(variant))[0]
