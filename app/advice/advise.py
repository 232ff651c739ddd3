"""Advice on layers: what was measured and what the model predicts, brought together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.service import Service
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from conv_advisor.kernels.variant import why_not
from conv_advisor.models.advisor import Advice, Advisor
from conv_advisor.models.batch import predict_many
from conv_advisor.models.candidates import Source

if TYPE_CHECKING:
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.summary import Summary


class Best(msgspec.Struct, frozen=True, gc=False):
    """The best variant for a layer alone; as JSON a `BestAnswer` but for its index."""

    layer: str
    variant: str
    time_ms: float
    source: Source


class BestAlone(Best, frozen=True, gc=False):
    """As JSON a `BestAloneAnswer`."""

    model: str | None
    device: str


def advise_one(service: Service, problem: ConvProblem, limits: Limits, advisor: Advisor | None = None) -> Advice:
    """Advice on one problem, by default of the device's advisor; a measured time counts before a predicted one.

    Raises
    ------
    NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    advisor = advisor or service.advisor(limits.device_id)
    return _advise(service, advisor, problem, limits, service.recall.summaries([problem], limits.device_id))


def advise_alone(service: Service, problem: ConvProblem, limits: Limits, advisor: Advisor) -> BestAlone:
    """What `advise_one` puts first, in a fraction of its time where nothing of the problem was measured.

    Raises
    ------
    NoAdvice, StoreError
    """
    measured = service.recall.summaries([problem], limits.device_id)
    predicted = (
        None
        if measured
        else advisor.predict(
            problem, max_workspace_bytes=limits.max_workspace_bytes, is_deterministic=limits.is_deterministic
        )
    )
    model_id = advisor.model.id if advisor.model else None
    if predicted is not None:
        return BestAlone(problem.short, *predicted, Source.PREDICTED, model_id, limits.device_id)
    best = _advise(service, advisor, problem, limits, measured).best
    return BestAlone(problem.short, best.variant, best.time_ms, best.source, model_id, limits.device_id)


def why_not_each(service: Service, problem: ConvProblem, device_id: str) -> tuple[Device, dict[str, str]]:
    """A device, and why those variants that do not run a problem there do not, by their ids.

    Raises
    ------
    UnknownDevice, ModelRejected, StoreError
    """
    advisor, device = service.advisor(device_id), service.find_device(device_id)
    measured = service.recall.summaries([problem], device_id).get(problem.key)
    rules = {name: why_not(variant, problem, device) for name, variant in catalog.VARIANTS.items()}
    return device, advisor.doubts(problem, measured) | {name: reason for name, reason in rules.items() if reason}


def advise(
    service: Service, advisor: Advisor, problems: Sequence[ConvProblem], limits: Limits
) -> Iterator[Advice | ConvAdvisorError]:
    """Advice on each problem, or why there is none.

    Raises
    ------
    StoreError
    """
    measured = service.recall.summaries(problems, limits.device_id)
    for problem in problems:
        try:
            yield _advise(service, advisor, problem, limits, measured)
        except ConvAdvisorError as error:
            yield error


def advise_best(
    service: Service, advisor: Advisor, problems: Sequence[ConvProblem], sizes: np.ndarray, limits: Limits
) -> Iterator[Best | ConvAdvisorError]:
    """The best variant for each problem, as `advise` has it, or why there is none.

    Parameters
    ----------
    service : Service
    advisor : Advisor
    problems : sequence of ConvProblem
    sizes : int64 array of shape (N, 14)
        The sizes of the same problems, as in `data.table`.
    limits : Limits

    Raises
    ------
    StoreError
    """
    measured = service.recall.summaries(problems, limits.device_id)
    predicted = predict_many(
        advisor,
        problems,
        sizes,
        max_workspace_bytes=limits.max_workspace_bytes,
        is_deterministic=limits.is_deterministic,
    )
    for problem, found in zip(problems, predicted, strict=True):
        if found is not None and (not measured or problem.key not in measured):
            yield Best(problem.short, *found, Source.PREDICTED)
            continue
        try:
            best = _advise(service, advisor, problem, limits, measured).best
            yield Best(problem.short, best.variant, best.time_ms, best.source)
        except ConvAdvisorError as error:
            yield error


def _advise(
    service: Service,
    advisor: Advisor,
    problem: ConvProblem,
    limits: Limits,
    measured: Mapping[str, Mapping[str, Summary]],
) -> Advice:
    return advisor.advise(
        problem,
        max_workspace_bytes=limits.max_workspace_bytes,
        is_deterministic=limits.is_deterministic,
        measured=measured.get(problem.key),
        picked=service.recall.picked(problem, limits.device_id),
    )
