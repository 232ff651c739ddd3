"""What /v1/advice answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, cast

import msgspec
from typing_extensions import TypedDict

from conv_advisor.app.wire.answers.problems import ProblemAnswer, problem_answer

if TYPE_CHECKING:
    from conv_advisor.models.advice.advice import Advice


class ChoiceAnswer(TypedDict):
    """One variant that may be run; source says whether its time was measured or is predicted."""

    variant: str
    time_ms: float
    source: str
    slowdown: float
    uncertainty: float
    is_tied: bool
    workspace_bytes: int | None
    is_deterministic: bool
    plan: dict[str, Any] | None


class ExclusionAnswer(TypedDict):
    """One variant that is out, and why."""

    variant: str
    reason: str


class StepAnswer(TypedDict):
    """One comparison on the way to the leaf of the tree."""

    feature: str
    value: float
    threshold: float
    is_below: bool


class BaselineAnswer(TypedDict):
    """An alternative to the advised variant, and how many times as long it takes.

    source says whether its time was measured on this very layer or is predicted; basis says how that is known, or why
    it is unknown: everything else is null then. Where PyTorch was timed, its variant is unknown.
    """

    variant: str | None
    time_ms: float | None
    source: str | None
    speedup: float | None
    basis: str


class BaselinesAnswer(TypedDict):
    """The alternatives that the advised variant is compared with.

    cudnn_best is the fastest of cuDNN's variants within the limits, cudnn_heuristic what its heuristic A puts first,
    pytorch_default what torch's conv2d runs without cudnn.benchmark, pytorch_benchmark what it runs with that.
    """

    cudnn_best: BaselineAnswer
    cudnn_heuristic: BaselineAnswer
    pytorch_default: BaselineAnswer
    pytorch_benchmark: BaselineAnswer


class BestAnswer(TypedDict):
    """The best variant for a layer of a list, or the problem document that says why there is none."""

    index: int
    layer: NotRequired[str]
    variant: NotRequired[str]
    time_ms: NotRequired[float]
    source: NotRequired[str]
    baselines: NotRequired[BaselinesAnswer]
    epilogue_is_counted: NotRequired[bool]
    error: NotRequired[dict[str, Any]]


class TrustAnswer(TypedDict):
    """How far the ranking can be trusted.

    confidence is the probability that the advised variant takes at most the share `within` longer than the fastest of
    the ranking; n_unknown more variants may run, with unknown times. A model abstains outside the domain that it was
    trained on: the ranking is then a guess, confidence is null, and reason says which size is unlike the training
    data. distance and limit are in octaves, factors of two. borrowed_from is the device whose scaled times are used
    where this device has no model; confidence is null then too, and between architectures the model abstains.
    """

    confidence: float | None
    within: float
    is_calibrated: bool
    abstains: bool
    n_unknown: int
    reason: str | None
    distance: float | None
    limit: float | None
    borrowed_from: str | None


class AdviceAnswer(TypedDict):
    """The best variant, the whole ranking, and why the others are out; model is null if only measurements were used.

    epilogue_is_counted is present for a layer with an epilogue: false if all times are of the convolution alone.
    """

    variant: str
    time_ms: float
    source: str
    baselines: BaselinesAnswer
    ranking: list[ChoiceAnswer]
    excluded: list[ExclusionAnswer]
    path: list[StepAnswer]
    trust: TrustAnswer
    model: str | None
    device: str
    problem: ProblemAnswer
    epilogue_is_counted: NotRequired[bool]


class Lent(TypedDict):
    """Whose model answers, its times scaled, where the device has none of its own; else left out."""

    borrowed_from: NotRequired[str]


class BestAloneAnswer(Lent):
    """The best variant for a layer, without the ranking; model is null if only measurements were used."""

    layer: str
    variant: str
    time_ms: float
    source: str
    model: str | None
    device: str
    baselines: NotRequired[BaselinesAnswer]
    epilogue_is_counted: NotRequired[bool]


class BulkAdviceAnswer(Lent):
    """Advice on each layer, in order; with ranking, each entry has everything that GET answers."""

    device: str
    model: str | None
    advice: list[BestAnswer]


def advice_answer(advice: Advice) -> AdviceAnswer:
    """Advice with everything that led to it."""
    return cast("AdviceAnswer", msgspec.to_builtins(_advice(advice)))


def advice_json(advice: Advice) -> bytes:
    """`advice_answer` as JSON."""
    return msgspec.json.encode(_advice(advice))


def _advice(advice: Advice) -> dict[str, Any]:
    best = advice.best
    return {
        "variant": best.variant,
        "time_ms": best.time_ms,
        "source": best.source,
        "baselines": advice.baselines,
        "ranking": advice.ranking,
        "excluded": advice.excluded,
        "path": advice.path,
        "trust": advice.trust,
        "model": advice.model_id,
        "device": advice.device_id,
        "problem": problem_answer(advice.asked),
    } | ({"epilogue_is_counted": not advice.uncounted} if advice.asked.epilogue else {})
