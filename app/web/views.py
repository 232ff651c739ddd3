"""The view of advice, as values that a template only has to place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from conv_advisor.app.advice.advise import advise_one
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.service import Service
from conv_advisor.app.web import text
from conv_advisor.app.web.against import Rivals, rivals_of
from conv_advisor.app.web.forms import LayerForm
from conv_advisor.app.web.networks import layers_of
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import AdviceParameters
from conv_advisor.data import networks
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.data.summary import Summary
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Algorithm, Backend
from conv_advisor.models.advice.advice import Advice, Exclusion
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking.accuracy import ErrorSource, error_of, laws_of
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.tree.explain import QUANTITIES, Decision, decisive, explain
from conv_advisor.models.tree.features import DTYPES

SHOWN: Final = 8
"""Variants of a ranking that are shown at once."""

DECISIVE: Final = 3
"""Decisions that are shown before the rest is opened."""

_LEAST_SCALE: Final = 3.0
_MOST_SCALE: Final = 6.0
"""Bounds of the bars' scale, in multiples of the best time: a bar beyond its end is cut off, and marked so."""

_OCTAVES: Final = 4.0
"""Powers of two that a threshold's line shows to each side."""

_Laws = Mapping[str, Mapping[str, Any]]

ALGORITHMS: Final = {
    Algorithm.DIRECT: "Direct",
    Algorithm.TWO_STAGE: "Two-stage (cuConv)",
    Algorithm.GEMM: "GEMM",
    Algorithm.IMPLICIT_GEMM: "Implicit GEMM",
    Algorithm.WINOGRAD: "Winograd",
    Algorithm.FFT: "FFT",
    Algorithm.ENGINE: "Closed engine",
}

MADE_BY: Final = {
    Backend.CPU: "on the CPU",
    Backend.CUDA: "a CUDA kernel of this project",
    Backend.CUDNN_LEGACY: "cuDNN's legacy API",
    Backend.CUDNN_GRAPH: "cuDNN's graph API",
}


@dataclass(frozen=True)
class Bar:
    """One bar, in percent of the width.

    Parameters
    ----------
    end : float
        Where the bar ends.
    low, high : float
        The ends of the whisker.
    predicted : float or None
        Where the prediction lies beside a measured time, if it is on the scale.
    is_cut : bool
        Whether it goes on beyond the scale.
    """

    end: float
    low: float
    high: float
    predicted: float | None = None
    is_cut: bool = False


@dataclass(frozen=True)
class Row:
    """One variant of the ranking."""

    place: int
    choice: Choice
    algorithm: str
    made_by: str
    knobs: str
    bar: Bar
    low_ms: float
    high_ms: float
    predicted_ms: float | None
    known: Summary | None
    max_error: float
    error_source: ErrorSource


@dataclass(frozen=True)
class Scale:
    """The axis of the bars."""

    best_ms: float
    factor: float

    @property
    def ticks(self) -> list[tuple[int, float]]:
        """Whole multiples of the best time, and where they lie."""
        return [(times, self.at(times * self.best_ms)) for times in range(1, math.floor(self.factor) + 1)]

    def at(self, ms: float) -> float:
        """Where a time lies, in percent."""
        return round(min(100 * ms / (self.factor * self.best_ms), 100), 2)

    def bar(self, ms: float, low_ms: float, high_ms: float, predicted_ms: float | None = None) -> Bar:
        """The bar of one time."""
        end_ms = self.factor * self.best_ms
        predicted = None if predicted_ms is None or predicted_ms > end_ms else self.at(predicted_ms)
        return Bar(self.at(ms), self.at(low_ms), self.at(high_ms), predicted, ms > end_ms)


@dataclass(frozen=True)
class DrawnDecision:
    """One decision of the path, with the values for its drawing.

    Parameters
    ----------
    decision : Decision
    place : int
        On the path, from 1.
    before, after : float
        Half the width of the trunk above and below: it narrows as leaves are left behind.
    actual, sign, limit : str
        The value, its comparison, and the threshold, as text.
    at : float or None
        Where the value lies on a line whose middle is the threshold, in percent; None for names.
    names : tuple of (str, bool, bool)
        For a precision or layout: each name, whether the side taken has it, and whether it is the layer's own.
    """

    decision: Decision
    place: int
    before: float
    after: float
    actual: str
    sign: str
    limit: str
    at: float | None
    names: tuple[tuple[str, bool, bool], ...]


@dataclass(frozen=True)
class Neighbours:
    """Where a layer stands in its network."""

    network: str
    place: int
    count: int
    before: str | None
    after: str | None


@dataclass(frozen=True)
class AdviceView:
    """Advice on one layer, ready to be shown."""

    advisor: Advisor
    advice: Advice
    rows: Sequence[Row]
    scale: Scale
    tie_end: float
    n_tied: int
    tflops: float
    gb_per_s: float
    decisions: Sequence[DrawnDecision]
    decisive: Sequence[DrawnDecision]
    spread: float | None
    neighbours: Neighbours | None
    against: Rivals

    @property
    def problem(self) -> ConvProblem:
        """The layer."""
        return self.advice.asked

    @property
    def best(self) -> Row:
        """The first of the ranking."""
        return self.rows[0]

    @property
    def sources(self) -> frozenset[str]:
        """Where its times come from."""
        return frozenset(row.choice.source for row in self.rows)

    @property
    def tied_sources(self) -> frozenset[str]:
        """Where the times of those tied with the best come from."""
        return frozenset(row.choice.source for row in self.rows if row.choice.is_tied)

    @property
    def excluded(self) -> Sequence[Exclusion]:
        """The excluded variants, with the reasons."""
        return self.advice.excluded


def advice_view(service: Service, form: LayerForm) -> AdviceView:
    """Advice on the layer of a form, with the tree's prediction beside each measured time.

    Raises
    ------
    InvalidInput, NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    parameters = form.parameters(AdviceParameters)
    limits = Limits.of(parameters, service)
    advisor = service.advisor(limits.device_id).only(limits.only)
    advice = advise_one(service, problem_from(parameters.given()), limits, advisor)
    problem = advice.problem
    known = service.records.summaries([problem], limits.device_id).get(problem.key, {})
    scale = Scale(advice.best.time_ms, _factor(advice.ranking))
    predictions = _predictions(advisor, problem, limits.max_workspace_bytes)
    rows = _rows(advice, known, predictions, scale, laws_of(advisor.model))
    seconds = advice.best.time_ms / 1e3
    decisions = explain(advisor.model, problem) if advisor.model else []
    drawn = _drawn(decisions)
    most_decisive = decisive(decisions, DECISIVE)
    tied = [row for row in rows if row.choice.is_tied]
    predicted = [choice.uncertainty for choice in advice.ranking if choice.source is Source.PREDICTED]
    return AdviceView(
        advisor=advisor,
        advice=advice,
        rows=rows,
        scale=scale,
        tie_end=scale.at(max(row.choice.time_ms for row in tied)) if len(tied) > 1 else 0.0,
        n_tied=len(tied),
        tflops=problem.flops / seconds / 1e12,
        gb_per_s=problem.bytes / seconds / 1e9,
        decisions=drawn,
        decisive=[step for step in drawn if step.decision in most_decisive],
        spread=math.expm1(predicted[0]) if predicted else None,
        neighbours=_neighbours(form, problem),
        against=rivals_of(advice),
    )


def _predictions(advisor: Advisor, problem: ConvProblem, limit: int) -> Mapping[str, float]:
    """The time of each variant as the tree alone predicts it."""
    if advisor.model is None:
        return {}
    try:
        advice = advisor.advise(problem, max_workspace_bytes=limit)
    except NoAdvice:
        return {}
    return {choice.variant: choice.time_ms for choice in advice.ranking}


def _factor(ranking: Sequence[Choice]) -> float:
    """The end of the scale in multiples of the best time: far enough for the bars that are shown, within bounds."""
    slowest = ranking[min(len(ranking), SHOWN) - 1].slowdown
    return min(max(slowest * 1.08, _LEAST_SCALE), _MOST_SCALE)


def _rows(
    advice: Advice, known: Mapping[str, Summary], predicted: Mapping[str, float], scale: Scale, laws: _Laws
) -> Sequence[Row]:
    rows = []
    for place, choice in enumerate(advice.ranking, 1):
        is_measured = choice.source is Source.MEASURED
        low_ms, high_ms = _interval(choice)
        predicted_ms = predicted.get(choice.variant) if is_measured else None
        variant = VARIANTS[choice.variant]
        max_error, error_source = error_of(laws, choice.variant, advice.problem, known.get(choice.variant))
        rows.append(
            Row(
                place=place,
                choice=choice,
                algorithm=ALGORITHMS[variant.algorithm],
                made_by=MADE_BY[variant.backend],
                knobs=_knobs(choice),
                bar=scale.bar(choice.time_ms, low_ms, high_ms, predicted_ms),
                low_ms=low_ms,
                high_ms=high_ms,
                predicted_ms=predicted_ms,
                known=known.get(choice.variant) if is_measured else None,
                max_error=max_error,
                error_source=error_source,
            )
        )
    return rows


def _knobs(choice: Choice) -> str:
    """The settings of a closed engine that were measured."""
    knobs = (choice.plan or {}).get("knobs")
    return " ".join(f"k{knob}={value}" for knob, value in knobs.items()) if isinstance(knobs, dict) else ""


def _interval(choice: Choice) -> tuple[float, float]:
    """Two standard errors to each side of a measured time; for a predicted time, one, of its logarithm."""
    if choice.source is Source.MEASURED:
        reach = min(2 * choice.uncertainty, 1.0)
        return choice.time_ms * (1 - reach), choice.time_ms * (1 + reach)
    return choice.time_ms * math.exp(-choice.uncertainty), choice.time_ms * math.exp(choice.uncertainty)


def _drawn(decisions: Sequence[Decision]) -> Sequence[DrawnDecision]:
    n_leaves = decisions[0].taken.n_leaves + decisions[0].other.n_leaves if decisions else 1
    return [
        DrawnDecision(
            decision=decision,
            place=place,
            before=_half_width(decision.taken.n_leaves + decision.other.n_leaves, n_leaves),
            after=_half_width(decision.taken.n_leaves, n_leaves),
            actual=_said(decision, decision.actual),
            sign=_sign(decision),
            limit=_said(decision, decision.limit),
            at=None if isinstance(decision.actual, str) else _on_line(decision),
            names=_names(decision),
        )
        for place, decision in enumerate(decisions, 1)
    ]


def _half_width(count: int, whole: int) -> float:
    return round(1.5 + 14 * math.log(count) / math.log(max(whole, 2)), 1)


def _said(decision: Decision, value: str | float) -> str:
    if isinstance(value, str):
        return value
    if decision.unit == "bytes":
        return text.size(value)
    return text.quantity(value) + (decision.unit.upper() if decision.unit else "")


def _sign(decision: Decision) -> str:
    return "≤" if decision.is_below else ">"


def _on_line(decision: Decision) -> float:
    quantity = QUANTITIES[decision.feature]
    reach = _OCTAVES if quantity.is_log2 else 1.0 if not quantity.is_whole else 2.0
    share = (decision.value - decision.threshold) / reach
    return round(50 + 46 * min(max(share, -1.0), 1.0), 1)


def _names(decision: Decision) -> tuple[tuple[str, bool, bool], ...]:
    names: Mapping[str, Sequence[str]] = {"dtype": DTYPES, "is_nhwc": tuple(Layout)}
    meant = str(decision.limit).split(" or ")
    return tuple((name, name in meant, name == decision.actual) for name in names.get(decision.feature, ()))


def _neighbours(form: LayerForm, problem: ConvProblem) -> Neighbours | None:
    """The layers before and after in the network that the layer was picked from, if that still has the layer."""
    name = form["network"]
    if name not in networks.names():
        return None
    n, dtype, layout = problem.n, problem.dtype, problem.layout
    layers = [replace(layer.problem, n=n, dtype=dtype, layout=layout) for layer in layers_of(name)]
    if problem not in layers:
        return None
    place = layers.index(problem)
    before = layers[place - 1].brief if place else None
    after = layers[place + 1].brief if place + 1 < len(layers) else None
    return Neighbours(name, place + 1, len(layers), before, after)
