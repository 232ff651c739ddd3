"""Two layers side by side: the fastest variant for each, every variant on both, and where their paths diverge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from conv_advisor.app.service.service import Service
from conv_advisor.app.web import text
from conv_advisor.app.web.forms import LIMITS, LayerForm, layer_form
from conv_advisor.app.web.views import AdviceView, DrawnDecision, advice_view
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType
from conv_advisor.models.advice.baselines import Baseline
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.ranking.words import chance

OTHER: Final = "other_"
"""Prefix of the names of the second layer's fields."""

_ASKED: Final = ("layer", "dtype", "layout", "device")
_MOST_SLOWDOWN: Final = 6.0
"""Where the bars end, in multiples of the layer's own best time."""


@dataclass(frozen=True)
class Side:
    """One of the two layers: the form as filled in, and the advice on it."""

    form: LayerForm
    view: AdviceView


@dataclass(frozen=True)
class Fact:
    """One quantity of both layers; ``ratio`` is second / first, where both are known."""

    name: str
    values: tuple[str, str]
    ratio: float | None = None


@dataclass(frozen=True)
class ComparedRow:
    """One variant on both layers: None where it is out; the ends of its bars in percent."""

    variant: str
    choices: tuple[Choice | None, Choice | None]
    ends: tuple[float, float]
    ratio: float | None


@dataclass(frozen=True)
class ComparedView:
    """Both layers, ready to be shown.

    Parameters
    ----------
    sides : tuple of two Side
    facts : sequence of Fact
    rows : sequence of ComparedRow
        Variants that are fast on either layer come first.
    parting : tuple of two DrawnDecision, optional
        The first decision that goes one way for the first layer and the other way for the second; None where one tree
        takes both to the same leaf, or where the layers have different trees.
    is_same_tree : bool
    """

    sides: tuple[Side, Side]
    facts: Sequence[Fact]
    rows: Sequence[ComparedRow]
    parting: tuple[DrawnDecision, DrawnDecision] | None
    is_same_tree: bool


def compared_forms(query: Mapping[str, str]) -> tuple[LayerForm, LayerForm]:
    """The forms of both layers; a field that the second lacks is taken from the first.

    Fields of the second layer have `OTHER` before their names; the limits hold for both. Without any field of its own,
    the second layer is the first in half precision.
    """
    first = layer_form({"by": "short"} | {name: query.get(name, "") for name in (*_ASKED, *LIMITS)})
    others = {name: value[:400] for name in _ASKED if (value := query.get(OTHER + name, "").strip())}
    half = DType.FLOAT32 if first["dtype"] == DType.FLOAT16 else DType.FLOAT16
    return first, replace(first, values={**first.values, **(others or {"dtype": half})})


def other_fields(form: LayerForm) -> dict[str, str]:
    """The second layer's fields, under their names in an address."""
    return {OTHER + name: form[name] for name in _ASKED}


def compared_view(service: Service, first: LayerForm, second: LayerForm) -> ComparedView:
    """Advice on two layers, side by side.

    Raises
    ------
    InvalidInput, NoAdvice, UnknownDevice, ModelRejected, StoreError
        An error in the second layer names that layer's own field.
    """
    left = _side(service, first)
    try:
        right = _side(service, second)
    except InvalidInput as error:
        raise InvalidInput(OTHER + error.field, error.value, error.allowed) from None
    a, b = left.view, right.view
    is_same_tree = a.advice.model_id is not None and a.advice.model_id == b.advice.model_id
    return ComparedView(
        sides=(left, right),
        facts=_facts(a, b),
        rows=_rows(a, b),
        parting=_parting(a.decisions, b.decisions) if is_same_tree else None,
        is_same_tree=is_same_tree,
    )


def _side(service: Service, form: LayerForm) -> Side:
    view = advice_view(service, form)
    return Side(form.filled(view.problem, view.advice.device_id), view)


def _origin(view: AdviceView) -> str:
    """The source of the best time, and the device that a borrowed one comes from."""
    source, lender = view.best.choice.source, view.advice.trust.borrowed_from
    return f"{source} of {lender}, scaled" if lender and source is Source.PREDICTED else str(source)


def _facts(a: AdviceView, b: AdviceView) -> Sequence[Fact]:
    bests = a.best.choice, b.best.choice
    trusts = [view.advice.trust.confidence for view in (a, b)]
    return [
        Fact("Fastest", (bests[0].variant, bests[1].variant)),
        Fact("Time", _both(text.time, *(best.time_ms for best in bests)), bests[1].time_ms / bests[0].time_ms),
        Fact("Where from", (_origin(a), _origin(b))),
        Fact("Operations", _both(_flop, a.problem.flops, b.problem.flops), b.problem.flops / a.problem.flops),
        Fact("Rate", _both(_tflops, a.tflops, b.tflops), b.tflops / a.tflops),
        Fact("Traffic, at least", _both(_gb, a.gb_per_s, b.gb_per_s), b.gb_per_s / a.gb_per_s),
        Fact("Workspace", _both(text.size, *(best.workspace_bytes for best in bests))),
        Fact("Error, at most", _both(text.error, a.best.max_error, b.best.max_error)),
        *_against(a, b),
        Fact("Confidence", _both(lambda share: text.NONE if share is None else chance(share), *trusts)),
    ]


def _against(a: AdviceView, b: AdviceView) -> list[Fact]:
    """How many times as long each alternative takes."""
    pairs = zip(a.against.rivals, b.against.rivals, strict=True)
    return [Fact(one.title, _both(_times_as_long, one.baseline, other.baseline)) for one, other in pairs]


def _times_as_long(baseline: Baseline) -> str:
    return "unknown" if baseline.speedup is None else f"{text.slowdown(baseline.speedup)} as long, {baseline.source}"


def _both(write: Callable[[Any], str], one: object, other: object) -> tuple[str, str]:
    return write(one), write(other)


def _flop(count: float) -> str:
    return f"{text.quantity(count)}FLOP"


def _tflops(rate: float) -> str:
    return f"{text.digits(rate)} TFLOP/s"


def _gb(rate: float) -> str:
    return f"{text.quantity(rate)} GB/s"


def _rows(a: AdviceView, b: AdviceView) -> Sequence[ComparedRow]:
    choices = [{choice.variant: choice for choice in view.advice.ranking} for view in (a, b)]
    rows = [_row(variant, choices[0].get(variant), choices[1].get(variant)) for variant in {**choices[0], **choices[1]}]
    return sorted(rows, key=lambda row: min(choice.slowdown for choice in row.choices if choice))


def _row(variant: str, one: Choice | None, other: Choice | None) -> ComparedRow:
    ratio = other.time_ms / one.time_ms if one and other else None
    return ComparedRow(variant, (one, other), (_end(one), _end(other)), ratio)


def _end(choice: Choice | None) -> float:
    return round(100 * min(choice.slowdown / _MOST_SLOWDOWN, 1.0), 1) if choice else 0.0


def _parting(
    one: Sequence[DrawnDecision], other: Sequence[DrawnDecision]
) -> tuple[DrawnDecision, DrawnDecision] | None:
    pairs = zip(one, other, strict=False)
    return next((pair for pair in pairs if pair[0].decision.is_below != pair[1].decision.is_below), None)
