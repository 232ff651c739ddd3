"""The live regret, problem by problem: the cost of following a tree on the latest measurements."""

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
"""Most problems of one live regret."""

COLUMNS: Final = [PROBLEMS.c[name] for name in PROBLEM_COLUMNS]
"""Columns of a problem, for `data.problem.of_columns`."""


@dataclass(frozen=True)
class Regretted:
    """One problem that was measured here, and the slowdown of the tree's advice on it.

    Parameters
    ----------
    problem : ConvProblem
    measured_at : datetime
        Time of the last measurement, UTC.
    advised, fastest : str
        The variant that the active tree predicts as fastest, and the one measured as fastest.
    slowdown : float
        Measured time of `advised` over that of `fastest`; 1 where they are the same.
    """

    problem: ConvProblem
    measured_at: datetime
    advised: str
    fastest: str
    slowdown: float


def live_regret(service: Service, device_id: str) -> list[Regretted]:
    """The slowdowns of a device's tree on the problems that were last measured here, oldest first.

    A problem counts if two variants or more were timed, the advised one among them. Shipped measurements do not count,
    since they were not made here.

    Raises
    ------
    UnknownDevice, ModelRejected, StoreError
    """
    advisor = service.advisor(device_id)
    if advisor.model is None:
        return []
    recent = _recent(service, device_id)
    summaries = service.records.summaries([problem for problem, _ in recent], device_id)
    regretted = []
    for problem, measured_at in recent:
        times_ms = times_of(summaries.get(problem.key, {}))
        try:
            advised = advisor.advise(problem).variant
        except ConvAdvisorError:  # no variant is predicted to run there
            continue
        if advised in times_ms and len(times_ms) > 1:
            fastest = min(times_ms, key=times_ms.__getitem__)
            slowdown = times_ms[advised] / times_ms[fastest]
            regretted.append(Regretted(problem, measured_at, advised, fastest, slowdown))
    return regretted


def _recent(service: Service, device_id: str) -> list[tuple[ConvProblem, datetime]]:
    last = func.max(MEASUREMENTS.c.measured_at_us)
    query = (
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
            rows: Sequence[Any] = connection.execute(query).all()
    except SQLAlchemyError as error:
        raise StoreError(f"the store cannot be read: {type(error).__name__}") from None
    return [(of_columns(fields), datetime.fromtimestamp(at_us / 1e6, UTC)) for at_us, *fields in reversed(rows)]


def times_of(summaries: Mapping[str, Summary]) -> dict[str, float]:
    """Times in ms of the variants that were timed and gave the right output."""
    measured = ((name, summary.time_ms) for name, summary in summaries.items() if summary.outcome is Outcome.MEASURED)
    return {name: time_ms for name, time_ms in measured if time_ms}
