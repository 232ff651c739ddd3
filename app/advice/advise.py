"""Advice on layers: measured and predicted times brought together, for one layer or for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import numpy as np

from conv_advisor.app.advice.limits import Limits
from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.baselines import Baselines
from conv_advisor.models.ranking.batch import predict_many
from conv_advisor.models.ranking.candidates import Source

if TYPE_CHECKING:
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.app.wire.answers.advice import Lent
    from conv_advisor.data.summary import Summary

T = TypeVar("T")

Measured = Mapping[str, Mapping[str, "Summary"]]
"""By the key of a problem, then by variant."""


class Known(Protocol):
    """Where advice finds its measurements and models: a running service, or a process without one."""

    @property
    def recall(self) -> Recall:
        """What was measured."""
        ...

    def advisor(self, device_id: str) -> Advisor:
        """The advisor of a device."""
        ...


class _Aside(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Fields that an answer has only where they say something.

    Attributes
    ----------
    epilogue_is_counted : bool
        Whether the times include the layer's epilogue, where it has one.
    borrowed_from : str
        The device whose model answers, where this one has none; a list of answers says it once.
    """

    epilogue_is_counted: bool | msgspec.UnsetType = msgspec.UNSET
    borrowed_from: str | msgspec.UnsetType = msgspec.UNSET


class Best(_Aside, frozen=True, gc=False):
    """The best variant for one layer; as JSON a `BestAnswer` without its index."""

    layer: str
    variant: str
    time_ms: float
    source: Source


class BestAlone(Best, frozen=True, gc=False):
    """As JSON a `BestAloneAnswer`."""

    model: str | None
    device: str


class BestBeside(Best, frozen=True, gc=False):
    """The best variant for a layer, compared with the baselines."""

    baselines: Baselines


class BestAloneBeside(BestAlone, frozen=True, gc=False):
    """As JSON a `BestAloneAnswer` with baselines."""

    baselines: Baselines


def advise_one(known: Known, problem: ConvProblem, limits: Limits, advisor: Advisor | None = None) -> Advice:
    """Advice on one problem, by default from the device's advisor; a measured time overrides a predicted one.

    Raises
    ------
    NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    return _only(advise(known, advisor or known.advisor(limits.device_id), [problem], limits))


def advise_alone(known: Known, problem: ConvProblem, limits: Limits, advisor: Advisor) -> BestAlone:
    """The best variant of `advise_one`, in a fraction of its time where the problem has no measurement.

    Raises
    ------
    NoAdvice, StoreError
    """
    best = _only(advise_best(known, advisor, [problem], limits))
    model_id = advisor.model.id if advisor.model else None
    is_counted = best.epilogue_is_counted
    return BestAlone(
        *(best.layer, best.variant, best.time_ms, best.source, model_id, limits.device_id),
        epilogue_is_counted=is_counted,
        borrowed_from=_lender_of(advisor),
    )


def alone_beside(advice: Advice, advisor: Advisor) -> BestAloneBeside:
    """The best variant of an advice of this advisor, with the baselines and without the ranking."""
    best, problem = advice.best, advice.asked
    return BestAloneBeside(
        *(problem.short, best.variant, best.time_ms, best.source, advice.model_id, advice.device_id, advice.baselines),
        epilogue_is_counted=_is_counted(problem, advice.problem),
        borrowed_from=_lender_of(advisor),
    )


def best_beside(advice: Advice) -> BestBeside:
    """As `alone_beside`, for a list, which gives model and device once."""
    best, problem = advice.best, advice.asked
    return BestBeside(
        *(problem.short, best.variant, best.time_ms, best.source, advice.baselines),
        epilogue_is_counted=_is_counted(problem, advice.problem),
    )


def advise(
    known: Known, advisor: Advisor, problems: Sequence[ConvProblem], limits: Limits
) -> Iterator[Advice | ConvAdvisorError]:
    """Advice on each problem, or why there is none.

    Raises
    ------
    StoreError
    """
    advisor, measured = advisor.only(limits.only), _summaries(known, problems, limits.device_id)
    return (_advise(known, advisor, problem, limits, measured) for problem in problems)


def advise_best(
    known: Known,
    advisor: Advisor,
    problems: Sequence[ConvProblem],
    limits: Limits,
    sizes: np.ndarray | None = None,
) -> Iterator[Best | ConvAdvisorError]:
    """The best variant for each problem, the same that `advise` ranks first, or why there is none.

    Parameters
    ----------
    known : Known
    advisor : Advisor
    problems : sequence of ConvProblem
    limits : Limits
    sizes : int64 array of shape (N, 16), optional
        Sizes of the same problems, as in `data.table`; with them all problems are predicted together.

    Raises
    ------
    StoreError
    """
    advisor, measured = advisor.only(limits.only), _summaries(known, problems, limits.device_id)
    timed = [problem if advisor.counts(problem) else _timed(problem, measured) for problem in problems]
    bounds: dict[str, Any] = {
        "max_workspace_bytes": limits.max_workspace_bytes,
        "is_deterministic": limits.is_deterministic,
    }
    predicted = (
        [advisor.predict(problem, **bounds) for problem in timed]
        if sizes is None
        else predict_many(advisor, timed, sizes, **bounds)
    )
    for problem, alone, prediction in zip(problems, timed, predicted, strict=True):
        if prediction is not None and not (measured and _is_known(problem, measured)):
            is_counted = _is_counted(problem, alone)
            yield Best(problem.short, *prediction, Source.PREDICTED, epilogue_is_counted=is_counted)
            continue
        advice = _advise(known, advisor, problem, limits, measured)
        if isinstance(advice, ConvAdvisorError):
            yield advice
        else:
            best, is_counted = advice.best, _is_counted(problem, advice.problem)
            yield Best(problem.short, best.variant, best.time_ms, best.source, epilogue_is_counted=is_counted)


def lent_by(advisor: Advisor) -> Lent:
    """The device that lends its model, where this one has none of its own; else nothing."""
    return {"borrowed_from": advisor.loan.lender.id} if advisor.loan else {}


def answered_by(advisor: Advisor) -> dict[str, Any]:
    """The fields that a list of answers gives once: the device, its model, and the model's own device if it is lent."""
    model_id = advisor.model.id if advisor.model else None
    return {"device": advisor.device.id, "model": model_id, **lent_by(advisor)}


def _advise(
    known: Known,
    advisor: Advisor,
    problem: ConvProblem,
    limits: Limits,
    measured: Measured,
) -> Advice | ConvAdvisorError:
    plain = _plain(problem)
    try:
        return advisor.advise(
            problem,
            max_workspace_bytes=limits.max_workspace_bytes,
            is_deterministic=limits.is_deterministic,
            measured=measured.get(problem.key),
            alone=None if plain is problem else measured.get(plain.key),
            picked=known.recall.picked(plain, limits.device_id),
        )
    except ConvAdvisorError as error:
        return error


def _summaries(known: Known, problems: Sequence[ConvProblem], device_id: str) -> Measured:
    """Measurements of the problems, and of those with an epilogue also without it."""
    if all(problem.epilogue is PLAIN for problem in problems):
        return known.recall.summaries(problems, device_id)
    alone = [problem.plain for problem in problems if problem.epilogue]
    return known.recall.summaries([*problems, *alone], device_id)


def _timed(problem: ConvProblem, measured: Measured) -> ConvProblem:
    """The problem whose times answer where the cost of epilogues is unknown: itself, or the plain convolution."""
    summaries = measured.get(problem.key, {})
    return problem if any(summary.time_ms is not None for summary in summaries.values()) else _plain(problem)


def _plain(problem: ConvProblem) -> ConvProblem:
    """The problem without its epilogue; the same object where it has none."""
    return problem.plain if problem.epilogue else problem


def _is_known(problem: ConvProblem, measured: Measured) -> bool:
    """Whether the problem was measured, with or without its epilogue."""
    return problem.key in measured or (bool(problem.epilogue) and problem.plain.key in measured)


def _is_counted(problem: ConvProblem, timed: ConvProblem) -> bool | msgspec.UnsetType:
    """Whether the times include the epilogue that was asked for; unset where none was."""
    return timed.epilogue == problem.epilogue if problem.epilogue else msgspec.UNSET


def _lender_of(advisor: Advisor) -> str | msgspec.UnsetType:
    return advisor.loan.lender.id if advisor.loan else msgspec.UNSET


def _only(answers: Iterator[T | ConvAdvisorError]) -> T:
    (answer,) = answers
    if isinstance(answer, ConvAdvisorError):
        raise answer
    return answer
