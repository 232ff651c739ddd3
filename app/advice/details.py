"""Details beside advice: the trade-offs between variants, the nearest measured layers, a program that runs one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
from pydantic import Field
from typing_extensions import TypedDict

from conv_advisor.app.advice.advise import advise_one
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.snippets.language import Language
from conv_advisor.app.snippets.writer import Snippet, write_snippet
from conv_advisor.app.wire.answers.advice import ExclusionAnswer, TrustAnswer
from conv_advisor.app.wire.answers.problems import ProblemAnswer, problem_answer
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import AdviceParameters, Whole
from conv_advisor.data.errors import NotApplicable, NotSupported
from conv_advisor.kernels import catalog
from conv_advisor.models.advice.neighbours import MOST
from conv_advisor.models.advice.pareto import Bounds, OtherLayout, Pareto, in_other_layout, other_layout, weigh

if TYPE_CHECKING:
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.app.service.service import Service
    from conv_advisor.models.advice.advice import Advice
    from conv_advisor.models.advice.advisor import Advisor
    from conv_advisor.models.advice.neighbours import Neighbour


class PointAnswer(TypedDict):
    """One variant and all that it costs; on the front, no other is as good in everything and better in something.

    error_source says whether max_error was measured on this layer, is predicted (99 of 100 of the variant's measured
    errors stay below), or is what every variant is allowed.
    """

    variant: str
    time_ms: float
    source: str
    slowdown: float
    uncertainty: float
    workspace_bytes: int | None
    max_error: float
    error_source: str
    is_deterministic: bool
    is_on_front: bool


class OtherLayoutAnswer(TypedDict):
    """The best variant in the other layout.

    speedup leaves converting x and y out; speedup_converted counts least_conversion_ms, what moving both once takes at
    the least. The weight counts as converted beforehand.
    """

    layout: str
    variant: str
    time_ms: float
    source: str
    speedup: float
    least_conversion_ms: float | None
    speedup_converted: float | None


class ParetoAnswer(TypedDict):
    """Every variant within the limits, fastest first, the front marked; the other layout beside them.

    trust is of variant, which is advised without the limits of error and slowdown: they may leave it out.
    """

    device: str
    model: str | None
    variant: str
    problem: ProblemAnswer
    points: list[PointAnswer]
    front: list[str]
    excluded: list[ExclusionAnswer]
    other_layout: OtherLayoutAnswer | None
    trust: TrustAnswer


class NeighbourAnswer(TypedDict):
    """A measured layer, how many octaves away it is, what was fastest there, and how the advised variant did."""

    layer: str
    distance: float
    variant: str
    time_ms: float
    n_measured: int
    advised_slowdown: float | None


class NeighboursAnswer(TypedDict):
    """The nearest measured layers in the same dtype and layout, nearest first."""

    device: str
    model: str | None
    problem: ProblemAnswer
    variant: str
    time_ms: float
    source: str
    neighbours: list[NeighbourAnswer]


class SnippetAnswer(TypedDict):
    """A program that runs one variant on one layer.

    plan is what it rebuilds: of the legacy API the algorithm and math type, of the graph API engine and knobs, of ours
    id and version. Where the knobs were not measured they are null, and rule says what gives them.
    """

    device: str
    problem: ProblemAnswer
    variant: str
    language: str
    languages: list[str]
    requires: list[str]
    plan: dict[str, Any]
    rule: str | None
    snippet: str


class ParetoParameters(AdviceParameters):
    """A layer, and what a variant may take and must be."""

    max_error: Annotated[
        float | None,
        Field(gt=0, le=1, allow_inf_nan=False, description="Largest error allowed: max |y - y64| / max |y64|."),
    ] = None
    max_slowdown: Annotated[
        float | None,
        Field(ge=1, allow_inf_nan=False, description="Largest slowdown against the fastest within the other limits."),
    ] = None

    @property
    def bounds(self) -> Bounds:
        """The limits beside those of advice."""
        return Bounds(self.max_error, self.max_slowdown)


class NeighbourParameters(AdviceParameters):
    """A layer, and how many measured ones to set beside it."""

    count: Annotated[int, Field(ge=1, le=MOST, description="Largest number of neighbours."), Whole] = 5


class SnippetParameters(AdviceParameters):
    """A layer, and what the program shall run and be written in."""

    variant: Annotated[
        str | None, Field(max_length=200, description="Default: the advised one.", examples=["cudnn.graph.eng62"])
    ] = None
    language: Annotated[
        Language | None,
        Field(description="python; torch (on torch tensors); c (cuDNN's legacy API). Default: what fits the variant."),
    ] = None


def weigh_layer(service: Service, parameters: ParetoParameters) -> ParetoAnswer:
    """The costs of all variants of a layer, and the best in the other layout.

    Raises
    ------
    InvalidProblem, NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    problem, limits = problem_from(parameters.given()), Limits.of(parameters, service)
    advisor = service.advisor(limits.device_id).only(limits.only)
    advice = advise_one(service, problem, limits, advisor)
    return pareto_answer(*weighed(service.recall, advisor, advice, limits, parameters.bounds))


def weighed(
    recall: Recall, advisor: Advisor, advice: Advice, limits: Limits, bounds: Bounds
) -> tuple[Pareto, OtherLayout | None]:
    """The trade-offs of an advice that this advisor made within these limits, and the other layout's best.

    Raises
    ------
    NoAdvice, StoreError
    """
    other_problem = in_other_layout(advice.problem)
    measured = recall.summaries([advice.problem, other_problem, other_problem.plain], limits.device_id)
    pareto = weigh(advisor, advice, measured=measured.get(advice.problem.key), bounds=bounds)
    other = other_layout(
        advisor,
        advice,
        max_workspace_bytes=limits.max_workspace_bytes,
        is_deterministic=limits.is_deterministic,
        measured=measured.get(other_problem.key),
        alone=measured.get(other_problem.plain.key),
    )
    return pareto, other


def pareto_answer(pareto: Pareto, other: OtherLayout | None) -> ParetoAnswer:
    """The trade-offs, as every answer gives them."""
    advice = pareto.advice
    return {
        "device": advice.device_id,
        "model": advice.model_id,
        "variant": advice.variant,
        "problem": problem_answer(advice.asked),
        "points": msgspec.to_builtins(pareto.points),
        "front": [point.variant for point in pareto.front],
        "excluded": msgspec.to_builtins(pareto.excluded),
        "other_layout": msgspec.to_builtins(other),
        "trust": msgspec.to_builtins(advice.trust),
    }


def neighbours_of_layer(service: Service, parameters: NeighbourParameters) -> NeighboursAnswer:
    """The nearest measured layers, beside the advice.

    Raises
    ------
    InvalidProblem, NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    problem, limits = problem_from(parameters.given()), Limits.of(parameters, service)
    advice = advise_one(service, problem, limits)
    return neighbours_answer(advice, neighbours_of(service, advice, parameters.count))


def neighbours_answer(advice: Advice, neighbours: Sequence[Neighbour]) -> NeighboursAnswer:
    """Neighbours, as every answer gives them."""
    return {
        "device": advice.device_id,
        "model": advice.model_id,
        "problem": problem_answer(advice.asked),
        "variant": advice.variant,
        "time_ms": advice.best.time_ms,
        "source": advice.best.source,
        "neighbours": msgspec.to_builtins(neighbours),
    }


def neighbours_of(service: Service, advice: Advice, count: int) -> list[Neighbour]:
    """The measured layers nearest to that of an advice.

    Raises
    ------
    StoreError
    """
    return service.neighbours.of(advice.problem, advice.device_id, count=count, advised=advice.variant)


def snippet_of_layer(service: Service, parameters: SnippetParameters) -> SnippetAnswer:
    """A program that runs the advised variant, or another applicable one, on a layer.

    Raises
    ------
    InvalidInput, NoAdvice, NotApplicable, UnknownDevice, UnknownVariant, ModelRejected, StoreError
    """
    problem, limits = problem_from(parameters.given()), Limits.of(parameters, service)
    if parameters.variant:
        catalog.get(parameters.variant)
    advice = advise_one(service, problem, limits)
    snippet = snippet_for(advice, parameters.variant, limits.max_workspace_bytes, parameters.language)
    return snippet_answer(advice, snippet)


def snippet_answer(advice: Advice, snippet: Snippet) -> SnippetAnswer:
    """A program, as every answer gives it."""
    answer: dict[str, Any] = msgspec.to_builtins(snippet)
    code = answer.pop("code")
    layer_fields = {"device": advice.device_id, "problem": problem_answer(advice.asked), "snippet": code}
    return cast(SnippetAnswer, answer | layer_fields)


def snippet_for(advice: Advice, variant: str | None, workspace_limit_bytes: int, language: Language | None) -> Snippet:
    """The program of one variant of an advice, by default the best.

    Raises
    ------
    InvalidInput
        The variant has no program in this language.
    NotApplicable
        The variant is excluded on this layer or by the limits.
    UnknownVariant
    """
    runnable = catalog.get(variant or advice.variant)
    choice = next((choice for choice in advice.ranking if choice.variant == runnable.id), None)
    if choice is None:
        reasons = {exclusion.variant: exclusion.reason for exclusion in advice.excluded}
        raise NotApplicable(runnable.id, reasons.get(runnable.id, f"it does not run on {advice.device_id}"))
    problem = advice.asked
    # A plan that was measured without the epilogue need not build with it.
    plan = choice.plan if advice.problem == problem else None
    limits: dict[str, Any] = {"workspace_limit_bytes": workspace_limit_bytes, "language": language}
    try:
        return write_snippet(problem, runnable, plan=plan, **limits)
    except NotSupported:  # cuDNN's graph API has no form for the epilogue
        return write_snippet(problem.plain, runnable, plan=choice.plan, left_out=problem.epilogue, **limits)
