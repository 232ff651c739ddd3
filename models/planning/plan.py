"""A plan: each convolution of a network with the variant and layout to run it in, and what that gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import ConvAdvisorError, NoAdvice
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.baselines import NAMES, Baseline
from conv_advisor.models.planning.layouts import Conversion, Layouts, choose_layouts
from conv_advisor.models.planning.network import Network, Operator
from conv_advisor.models.planning.text import plan_text
from conv_advisor.models.ranking.candidates import Source

Advise = Callable[[Sequence[ConvProblem]], Iterable[Advice | ConvAdvisorError]]
"""Advice on each problem, or why there is none."""
_REASONS: Final = 5
"""Reasons why nothing can be planned that an error lists: a malicious file has thousands."""


class Rival(StrEnum):
    """What a plan is compared with."""

    PYTORCH_DEFAULT = "pytorch_default"
    PYTORCH_BENCHMARK = "pytorch_benchmark"
    PYTORCH_CHANNELS_LAST = "pytorch_channels_last"
    CUDNN_HEURISTIC = "cudnn_heuristic"
    CUDNN_BEST = "cudnn_best"


RIVAL_NAMES: Final = {
    Rival.PYTORCH_DEFAULT: NAMES["pytorch_default"],
    Rival.PYTORCH_BENCHMARK: NAMES["pytorch_benchmark"],
    Rival.PYTORCH_CHANNELS_LAST: "PyTorch in channels_last",
    Rival.CUDNN_HEURISTIC: NAMES["cudnn_heuristic"],
    Rival.CUDNN_BEST: NAMES["cudnn_best"],
}
"""What each is called."""

_MOST_KINDS: Final = 6
"""Kinds of operators that a remark lists, the most frequent first."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Convolutions of one network that are the same problem in the same layout.

    Parameters
    ----------
    problem : ConvProblem
        With its epilogue, in the layout that the plan runs it in.
    advice : Advice
        Its times include the epilogue, for all rivals alike, where its cost is known; else ``uncounted`` has it.
    default : Baseline or None
        PyTorch's default for it in NCHW, the layout in which PyTorch runs a network unless told otherwise; None where
        no variant is known to run it in NCHW.
    names : tuple of str
        The operators.
    n_weights : int
        Number of weights of these operators: smaller than that of operators where some share one.
    share : float
        Share of the plan's time that all of them take together.
    """

    problem: ConvProblem
    advice: Advice
    default: Baseline | None
    names: tuple[str, ...]
    n_weights: int
    share: float

    @property
    def count(self) -> int:
        """How often a batch passes such a layer."""
        return len(self.names)

    @property
    def total_ms(self) -> float:
        """Time of all of them."""
        return self.count * self.advice.best.time_ms

    @property
    def default_ms(self) -> float | None:
        """Time of all of them under PyTorch's default; None where that is unknown."""
        return None if self.default is None or self.default.time_ms is None else self.count * self.default.time_ms

    @property
    def speedup(self) -> float | None:
        """PyTorch's default time over the plan's, for all of them; None where it is unknown."""
        return None if self.default_ms is None else self.default_ms / self.total_ms


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An operator that the plan's times leave out, and why."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Total:
    """What a rival takes for all convolutions of a network, in the layouts that suit it best.

    Parameters
    ----------
    time_ms : float or None
        Time of the convolutions whose time is known; None where none is.
    speedup : float or None
        ``time_ms`` over the plan's time for the same convolutions; conversions count on both sides.
    n_measured, n_predicted, n_unknown : int
        Convolutions by how their time is known.
    """

    time_ms: float | None
    speedup: float | None
    n_measured: int
    n_predicted: int
    n_unknown: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run the convolutions of a network.

    Parameters
    ----------
    network : Network
    device_id : str
    model_id : str or None
    layers : tuple of Layer
        As the network meets them.
    conversions : tuple of Conversion
    left_out : tuple of LeftOut
    rivals : mapping of Rival to Total
    """

    network: Network
    device_id: str
    model_id: str | None
    layers: tuple[Layer, ...]
    conversions: tuple[Conversion, ...]
    left_out: tuple[LeftOut, ...]
    rivals: Mapping[Rival, Total]

    @property
    def n_convolutions(self) -> int:
        """How many convolutions a batch passes, without those that are left out."""
        return sum(layer.count for layer in self.layers)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the plan's times assume, or leave out."""
        return (*self.network.remarks, *self._uncounted())

    def __repr__(self) -> str:
        return plan_text(self, RIVAL_NAMES)

    def _uncounted(self) -> Iterator[str]:
        others = Counter(operator.kind for operator in self.network.operators if operator.is_other)
        if others:
            kinds = ", ".join(kind for kind, _ in others.most_common(_MOST_KINDS)) + ", …" * (len(others) > _MOST_KINDS)
            yield f"{counted(others.total(), 'other operator')} of the network count for nobody: {kinds}"
        n_without = sum(layer.count for layer in self.layers if layer.advice.uncounted)
        if n_without:
            lacking = f"the times of {counted(n_without, 'convolution')} lack what follows"
            yield f"{lacking}: what that adds on this device is unknown"

    @property
    def convolutions_ms(self) -> float:
        """What the convolutions take."""
        return sum(layer.total_ms for layer in self.layers)

    @property
    def conversions_ms(self) -> float:
        """What the conversions between layouts take."""
        return sum(conversion.time_ms for conversion in self.conversions)

    @property
    def time_ms(self) -> float:
        """What convolutions and conversions take."""
        return self.convolutions_ms + self.conversions_ms

    @property
    def workspace_bytes(self) -> int | None:
        """Scratch memory that serves every layer, since they run one after another; None where a layer's is unknown."""
        needed = [layer.advice.best.workspace_bytes for layer in self.layers]
        known = [n_bytes for n_bytes in needed if n_bytes is not None]
        return max(known, default=0) if len(known) == len(needed) else None


def make_plan(network: Network, advise: Advise, convert_ms: Callable[[int], float]) -> Plan:
    """Choose layout and variant of every convolution of a network.

    Parameters
    ----------
    network : Network
    advise : callable (problems) -> iterable of Advice or ConvAdvisorError
        Within the limits that hold for each layer. A workspace that all layers share is such a limit: they run one
        after another, so that the network needs as much as the layer that needs the most, and the best choice of each
        layer under the limit is the best choice of all of them.
    convert_ms : callable (n_bytes) -> float
        Time in ms to convert a tensor of so many bytes to the other layout.

    Raises
    ------
    NoAdvice
        There is no advice on any convolution, or there is no convolution.
    """
    known = _Known(network, advise)
    if not any(known.advised):
        reasons = list(_by_reason(known.left_out)) or ["it has no 2-D convolution"]
        unlisted = f"; and {len(reasons) - _REASONS:,} more" if len(reasons) > _REASONS else ""
        raise NoAdvice(f"nothing in {network.name} can be planned: {'; '.join(reasons[:_REASONS])}{unlisted}")
    layouts = choose_layouts(network, known.times(_own_ms), convert_ms)
    rivals = {rival: _total(rival, known, layouts, convert_ms) for rival in Rival}
    return known.plan(layouts, rivals)


class _Known:
    """The advice on each operator of a network by layout, empty where there is none; each problem is asked once."""

    def __init__(self, network: Network, advise: Advise) -> None:
        self.network = network
        self.left_out = [
            LeftOut(operator.name, operator.kind, operator.left_out)
            for operator in network.operators
            if operator.left_out
        ]
        problems = [operator.problem for operator in network.operators]
        distinct = list(dict.fromkeys(problem for problem in problems if problem is not None))
        in_both_layouts = [replace(problem, layout=layout) for problem in distinct for layout in Layout]
        answers: dict[ConvProblem, dict[Layout, Advice | ConvAdvisorError]] = {problem: {} for problem in distinct}
        for place, answer in enumerate(advise(in_both_layouts)):
            answers[distinct[place // len(Layout)]][in_both_layouts[place].layout] = answer
        self._distinct = [
            {layout: answer for layout, answer in answers[problem].items() if isinstance(answer, Advice)}
            for problem in distinct
        ]
        place_of = {problem: place for place, problem in enumerate(distinct)}
        self._places = [None if problem is None else place_of[problem] for problem in problems]
        self.advised = [{} if place is None else self._distinct[place] for place in self._places]
        for operator, problem, by_layout in zip(network.operators, problems, self.advised, strict=True):
            if problem is not None and not by_layout:
                reason = _reason(answers[problem][problem.layout])
                self.left_out.append(LeftOut(operator.name, operator.kind, reason))

    def times(self, time_ms: Callable[[Advice], float | None]) -> list[dict[Layout, float] | None]:
        """Time in ms of each convolution by layout, as one rival runs it; infinite where that is unknown."""
        distinct_ms = []
        for advised in self._distinct:
            own = {layout: time_ms(advice) for layout, advice in advised.items()}
            distinct_ms.append({layout: inf if (ms := own.get(layout)) is None else ms for layout in Layout})
        return [None if place is None else distinct_ms[place] for place in self._places]

    def plan(self, layouts: Layouts, rivals: Mapping[Rival, Total]) -> Plan:
        """The plan of these layouts."""
        grouped: dict[tuple[int, Layout], list[Operator]] = {}
        for operator, place, layout in zip(self.network.operators, self._places, layouts.chosen, strict=True):
            if place is not None and self._distinct[place]:
                grouped.setdefault((place, layout), []).append(operator)
        layers = [
            Layer(
                problem=advised[layout].asked,
                advice=advised[layout],
                default=advised[Layout.NCHW].baselines.pytorch_default if Layout.NCHW in advised else None,
                names=tuple(operator.name for operator in same),
                n_weights=len({operator.weight for operator in same}),
                share=0.0,
            )
            for (place, layout), same in grouped.items()
            for advised in (self._distinct[place],)
        ]
        total_ms = sum(layer.total_ms for layer in layers) + sum(
            conversion.time_ms for conversion in layouts.conversions
        )
        first = layers[0].advice
        return Plan(
            network=self.network,
            device_id=first.device_id,
            model_id=first.model_id,
            layers=tuple(replace(layer, share=layer.total_ms / total_ms) for layer in layers),
            conversions=layouts.conversions,
            left_out=tuple(self.left_out),
            rivals=rivals,
        )


_RIVALS: Final[Mapping[Rival, tuple[str, Sequence[Layout]]]] = {
    Rival.PYTORCH_DEFAULT: ("pytorch_default", (Layout.NCHW,)),
    Rival.PYTORCH_BENCHMARK: ("pytorch_benchmark", (Layout.NCHW,)),
    Rival.PYTORCH_CHANNELS_LAST: ("pytorch_default", (Layout.NHWC,)),
    Rival.CUDNN_HEURISTIC: ("cudnn_heuristic", (Layout.NCHW,)),
    Rival.CUDNN_BEST: ("cudnn_best", tuple(Layout)),
}
"""A rival's field in `Baselines`, and the layouts that it may run a network in: PyTorch runs it as it was written
unless it is told otherwise, with ``channels_last``."""


def _total(rival: Rival, known: _Known, layouts: Layouts, convert_ms: Callable[[int], float]) -> Total:
    """What a rival takes for a network, compared with the plan that was made."""
    _, allowed = _RIVALS[rival]

    def rivals_ms(advice: Advice) -> float | None:
        return _baseline(rival, advice).time_ms if advice.problem.layout in allowed else None

    theirs = choose_layouts(known.network, known.times(rivals_ms), convert_ms)
    sources: list[Source | None] = []
    time_ms, beside_ms = _conversions_ms(theirs), _conversions_ms(layouts)
    for advised, layout, own in zip(known.advised, theirs.chosen, layouts.chosen, strict=True):
        if not advised:
            continue
        baseline = _baseline(rival, advised[layout]) if layout in advised and layout in allowed else None
        if baseline is None or baseline.time_ms is None:
            sources.append(None)
            continue
        sources.append(baseline.source)
        time_ms += baseline.time_ms
        beside_ms += advised[own].best.time_ms
    n_known = sum(source is not None for source in sources)
    return Total(
        time_ms=time_ms if n_known else None,
        speedup=time_ms / beside_ms if n_known else None,
        n_measured=sources.count(Source.MEASURED),
        n_predicted=sources.count(Source.PREDICTED),
        n_unknown=sources.count(None),
    )


def _baseline(rival: Rival, advice: Advice) -> Baseline:
    baseline: Baseline = getattr(advice.baselines, _RIVALS[rival][0])
    return baseline


def _conversions_ms(layouts: Layouts) -> float:
    return sum(conversion.time_ms for conversion in layouts.conversions)


def _own_ms(advice: Advice) -> float | None:
    return advice.best.time_ms


def _reason(error: Advice | ConvAdvisorError) -> str:
    """Why no variant runs a problem: the reason that excludes most variants, where that is known."""
    reasons = Counter(error.reasons.values()) if isinstance(error, NoAdvice) else Counter()
    return f"no variant is advised: {reasons.most_common(1)[0][0]}" if reasons else str(error)


def _by_reason(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """Each reason, behind the first operator that has it."""
    names: dict[str, list[str]] = {}
    for operator in left_out:
        names.setdefault(operator.reason, []).append(operator.name)
    for reason, (first, *others) in names.items():
        more = f" and {counted(len(others), 'other')}" if others else ""
        yield f"{first}{more}: {reason}"
