"""Advice on layers: what was measured and what the model predicts, brought together for one or for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import numpy as np

from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.advice.reasons import reasons_why_not
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advisor import Advice, Advisor
from conv_advisor.models.baselines import Baselines
from conv_advisor.models.batch import predict_many
from conv_advisor.models.candidates import Source

if TYPE_CHECKING:
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.app.service.service import Service
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.summary import Summary

T = TypeVar("T")


class Known(Protocol):
    """What advice is made from: a running service's, or that of a process without one."""

    @property
    def recall(self) -> Recall:
        """What was measured."""
        ...

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device."""
        ...


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


class BestBeside(Best, frozen=True, gc=False):
    """The best variant for a layer, and what others would run."""

    baselines: Baselines


class BestAloneBeside(BestAlone, frozen=True, gc=False):
    """As JSON a `BestAloneAnswer` with baselines."""

    baselines: Baselines


def advise_one(known: Known, problem: ConvProblem, limits: Limits, advisor: Advisor | None = None) -> Advice:
    """Advice on one problem, by default of the device's advisor; a measured time counts before a predicted one.

    Raises
    ------
    NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    return _only(advise(known, advisor or known.advisor(limits.device_id), [problem], limits))


def advise_alone(known: Known, problem: ConvProblem, limits: Limits, advisor: Advisor) -> BestAlone:
    """What `advise_one` puts first, in a fraction of its time where nothing of the problem was measured.

    Raises
    ------
    NoAdvice, StoreError
    """
    best = _only(advise_best(known, advisor, [problem], limits))
    model_id = advisor.model.id if advisor.model else None
    return BestAlone(best.layer, best.variant, best.time_ms, best.source, model_id, limits.device_id)


def alone_beside(advice: Advice) -> BestAloneBeside:
    """The best of an advice without its ranking, and what others would run."""
    best, layer = advice.best, advice.problem.short
    return BestAloneBeside(
        *(layer, best.variant, best.time_ms, best.source, advice.model_id, advice.device_id, advice.baselines)
    )


def best_beside(advice: Advice) -> BestBeside:
    """The same, for a list, which says model and device once."""
    best = advice.best
    return BestBeside(advice.problem.short, best.variant, best.time_ms, best.source, advice.baselines)


def advise(
    known: Known, advisor: Advisor, problems: Sequence[ConvProblem], limits: Limits
) -> Iterator[Advice | ConvAdvisorError]:
    """Advice on each problem, or why there is none.

    Raises
    ------
    StoreError
    """
    advisor, measured = advisor.only(limits.only), known.recall.summaries(problems, limits.device_id)
    return (_advise(known, advisor, problem, limits, measured) for problem in problems)


def advise_best(
    known: Known,
    advisor: Advisor,
    problems: Sequence[ConvProblem],
    limits: Limits,
    sizes: np.ndarray | None = None,
) -> Iterator[Best | ConvAdvisorError]:
    """The best variant for each problem, as `advise` has it, or why there is none.

    Parameters
    ----------
    known : Known
    advisor : Advisor
    problems : sequence of ConvProblem
    limits : Limits
    sizes : int64 array of shape (N, 14), optional
        The sizes of the same problems, as in `data.table`: with them all are predicted together.

    Raises
    ------
    StoreError
    """
    advisor, measured = advisor.only(limits.only), known.recall.summaries(problems, limits.device_id)
    bounds: dict[str, Any] = {
        "max_workspace_bytes": limits.max_workspace_bytes,
        "is_deterministic": limits.is_deterministic,
    }
    predicted = (
        [advisor.predict(problem, **bounds) for problem in problems]
        if sizes is None
        else predict_many(advisor, problems, sizes, **bounds)
    )
    for problem, found in zip(problems, predicted, strict=True):
        if found is not None and (not measured or problem.key not in measured):
            yield Best(problem.short, *found, Source.PREDICTED)
            continue
        advice = _advise(known, advisor, problem, limits, measured)
        if isinstance(advice, ConvAdvisorError):
            yield advice
        else:
            yield Best(problem.short, advice.variant, advice.best.time_ms, advice.best.source)


def _advise(
    known: Known,
    advisor: Advisor,
    problem: ConvProblem,
    limits: Limits,
    measured: Mapping[str, Mapping[str, Summary]],
) -> Advice | ConvAdvisorError:
    try:
        return advisor.advise(
            problem,
            max_workspace_bytes=limits.max_workspace_bytes,
            is_deterministic=limits.is_deterministic,
            measured=measured.get(problem.key),
            picked=known.recall.picked(problem, limits.device_id),
        )
    except ConvAdvisorError as error:
        return error


def _only(answers: Iterator[T | ConvAdvisorError]) -> T:
    (answer,) = answers
    if isinstance(answer, ConvAdvisorError):
        raise answer
    return answer


def why_not_each(service: Service, problem: ConvProblem, device_id: str) -> tuple[Device, dict[str, str]]:
    """A device, and why those variants that do not run a problem there do not, by their ids.

    Raises
    ------
    UnknownDevice, ModelRejected, StoreError
    """
    advisor, device = service.advisor(device_id), service.find_device(device_id)
    measured = service.recall.summaries([problem], device_id).get(problem.key)
    return device, reasons_why_not(advisor, device, problem, measured)
