"""The live regret, problem by problem: the cost of following a tree on what was measured last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import distinct, func, select
from sqlalchemy.exc import SQLAlchemyError

from conv_advisor.data.database.tables import MEASUREMENTS, PROBLEMS
from conv_advisor.data.errors import ConvAdvisorError, StoreError
from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import COLUMNS as PROBLEM_COLUMNS
from conv_advisor.data.problem import ConvProblem, of_columns

if TYPE_CHECKING:
    from conv_advisor.app.service.service import Service
    from conv_advisor.data.summary import Summary

MOST: Final = 200
"""Problems that are looked back on."""

COLUMNS: Final = [PROBLEMS.c[name] for name in PROBLEM_COLUMNS]
"""A problem's, as `data.problem.of_columns` takes them."""


@dataclass(frozen=True)
class Regretted:
    """One problem that was measured here, and what the tree's advice would have cost on it.

    Parameters
    ----------
    problem : ConvProblem
    measured_at : datetime
        When it was last measured, UTC.
    advised, fastest : str
        The variant that the tree in charge puts first by itself, and the fastest that was measured.
    slowdown : float
        Measured time of the one over that of the other; 1 where they are the same.
    """

    problem: ConvProblem
    measured_at: datetime
    advised: str
    fastest: str
    slowdown: float


def live_regret(service: Service, device_id: str) -> list[Regretted]:
    """What the tree of a device would have cost on the problems that were measured here last, the oldest first.

    Problems count on which two variants or more were timed, one of them the advised one. What ships counts nowhere: it
    was not measured here.

    Raises
    ------
    UnknownDevice, ModelRejected, StoreError
    """
    advisor = service.advisor(device_id)
    if advisor.model is None:
        return []
    recent = _recent(service, device_id)
    known = service.records.summaries([problem for problem, _ in recent], device_id)
    regretted = []
    for problem, measured_at in recent:
        times_ms = times_of(known.get(problem.key, {}))
        try:
            advised = advisor.advise(problem).variant
        except ConvAdvisorError:  # nothing is predicted to run there
            continue
        if advised in times_ms and len(times_ms) > 1:
            fastest = min(times_ms, key=times_ms.__getitem__)
            slowdown = times_ms[advised] / times_ms[fastest]
            regretted.append(Regretted(problem, measured_at, advised, fastest, slowdown))
    return regretted


def _recent(service: Service, device_id: str) -> list[tuple[ConvProblem, datetime]]:
    last = func.max(MEASUREMENTS.c.measured_at_us)
    wanted = (
        select(last, *COLUMNS)
        .join(PROBLEMS, PROBLEMS.c.key == MEASUREMENTS.c.problem_key)
        .where(MEASUREMENTS.c.device_id == device_id, MEASUREMENTS.c.l2 == str(L2State.WARM))
        .where(MEASUREMENTS.c.outcome == str(Outcome.MEASURED))
        .group_by(PROBLEMS.c.key, *COLUMNS)
        .having(func.count(distinct(MEASUREMENTS.c.variant)) > 1)
        .order_by(last.desc())
        .limit(MOST)
    )
    try:
        with service.store.engine.connect() as connection:
            rows: Sequence[Any] = connection.execute(wanted).all()
    except SQLAlchemyError as error:
        raise StoreError(f"the store cannot be read: {type(error).__name__}") from None
    return [(of_columns(fields), datetime.fromtimestamp(at_us / 1e6, UTC)) for at_us, *fields in reversed(rows)]


def times_of(known: Mapping[str, Summary]) -> dict[str, float]:
    """The times of those variants that gave the right output and were timed, in ms."""
    measured = ((name, each.time_ms) for name, each in known.items() if each.outcome is Outcome.MEASURED)
    return {name: time_ms for name, time_ms in measured if time_ms}
