"""Why a tree predicts as it does, and where each variant wins."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from conv_advisor.app.advice.advise import lent_by
from conv_advisor.app.service.service import Service
from conv_advisor.app.wire.answers.advice import Lent, StepAnswer
from conv_advisor.app.wire.answers.problems import ProblemAnswer, problem_answer
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import AdviceParameters
from conv_advisor.data.errors import NoAdvice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.landscape import Axis, Landscape, survey
from conv_advisor.models.tree.explain import Branch, Decision, explain
from conv_advisor.models.tree.file import TreeModel

_survey = lru_cache(maxsize=32)(survey)
"""A map takes a thousand walks of the tree; people ask for the same one again, and an advisor never changes."""


class BranchAnswer(TypedDict):
    """One side of a decision: the leaves below it, and the variant that most of them predict as the fastest."""

    n_leaves: int
    favourite: str | None
    share: float


class DecisionAnswer(StepAnswer):
    """One comparison on the way to the leaf, in words: label and unit of the quantity, its value and its limit."""

    label: str
    unit: str
    actual: str | float
    limit: str | float
    taken: BranchAnswer
    other: BranchAnswer


class ExplanationAnswer(Lent):
    """The decisions that lead to a layer's leaf, first to last."""

    model: str
    device: str
    problem: ProblemAnswer
    decisions: list[DecisionAnswer]


class AxisAnswer(TypedDict):
    """What varies, and the values it takes."""

    axis: str
    values: list[int]


class LandscapeAnswer(Lent):
    """Predicted winners: a row for each value of y, of places in variants; null where nothing is predicted to run."""

    model: str
    device: str
    problem: ProblemAnswer
    x: AxisAnswer
    y: AxisAnswer
    variants: list[str]
    winners: list[list[int | None]]


class LandscapeParameters(AdviceParameters):
    """A layer, and the two of its sizes that vary."""

    x: Annotated[Axis, Field(description="What varies from left to right.")] = Axis.SIZE
    y: Annotated[Axis, Field(description="What varies from row to row.")] = Axis.BATCH


def explain_layer(service: Service, parameters: AdviceParameters) -> ExplanationAnswer:
    """Why the tree predicts what it predicts for a layer.

    Raises
    ------
    InvalidProblem, NoAdvice, UnknownDevice, ModelRejected
    """
    problem = problem_from(parameters.given())
    advisor = service.advisor(service.known.asked_id(parameters.device))
    model = model_of(advisor)
    return {
        **lent_by(advisor),
        "model": model.id,
        "device": advisor.device.id,
        "problem": problem_answer(problem),
        "decisions": [_decision(decision) for decision in explain(model, problem)],
    }


def survey_layer(service: Service, parameters: LandscapeParameters) -> LandscapeAnswer:
    """Which variant is predicted fastest over two sizes of a layer.

    Raises
    ------
    InvalidInput, NoAdvice, UnknownDevice, ModelRejected
    """
    landscape, advisor = survey_of(service, parameters)
    return {
        **lent_by(advisor),
        "model": model_of(advisor).id,
        "device": advisor.device.id,
        "problem": problem_answer(landscape.problem),
        "x": {"axis": landscape.x, "values": list(landscape.x_values)},
        "y": {"axis": landscape.y, "values": list(landscape.y_values)},
        "variants": list(landscape.variants),
        "winners": [list(row) for row in landscape.winners],
    }


def survey_of(service: Service, parameters: LandscapeParameters) -> tuple[Landscape, Advisor]:
    """The landscape of a request, and the advisor whose tree it shows.

    Raises
    ------
    InvalidInput, NoAdvice, UnknownDevice, ModelRejected
    """
    problem = problem_from(parameters.given()).plain  # trees know no epilogues
    advisor = service.advisor(service.known.asked_id(parameters.device)).only(parameters.only)
    model_of(advisor)
    limit = parameters.max_workspace_bytes
    landscape = _survey(
        advisor,
        problem,
        parameters.x,
        parameters.y,
        max_workspace_bytes=service.settings.workspace_limit_bytes if limit is None else limit,
        is_deterministic=parameters.deterministic,
    )
    return landscape, advisor


def model_of(advisor: Advisor) -> TreeModel:
    """The tree that an advisor asks.

    Raises
    ------
    NoAdvice
        The advisor has no tree.
    """
    if advisor.model is None:
        raise NoAdvice(f"there is no model of {advisor.device.id}")
    return advisor.model


def _decision(decision: Decision) -> DecisionAnswer:
    return {
        "feature": decision.feature,
        "value": decision.value,
        "threshold": decision.threshold,
        "is_below": decision.is_below,
        "label": decision.label,
        "unit": decision.unit,
        "actual": decision.actual,
        "limit": decision.limit,
        "taken": _branch(decision.taken),
        "other": _branch(decision.other),
    }


def _branch(branch: Branch) -> BranchAnswer:
    return {"n_leaves": branch.n_leaves, "favourite": branch.favourite, "share": branch.share}
