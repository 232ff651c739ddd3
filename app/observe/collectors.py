"""Metrics that are read when Prometheus scrapes: the workers, their queues, and the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from conv_advisor.app.jobs.job import JobState
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.data.database.tables import JOBS

if TYPE_CHECKING:
    from conv_advisor.app.guard.tokens import Keyring
    from conv_advisor.app.service.service import Service

_UNOPENED: Final = EngineState.STARTING


class Workers(Collector):
    """State of the process that owns the device, and of the one that trains.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        is_up = GaugeMetricFamily("conv_advisor_worker_up", "Whether the worker takes jobs", labels=("worker",))
        state = GaugeMetricFamily(
            "conv_advisor_worker_state", "1 for the state that the worker is in", labels=("worker", "state")
        )
        queued = GaugeMetricFamily("conv_advisor_queue_jobs", "Jobs that wait for the worker", labels=("worker",))
        restarts = CounterMetricFamily(
            "conv_advisor_worker_restarts", "How often a process took over from one that ended", labels=("worker",)
        )
        for name, engine in self._service.workers().items():
            is_up.add_metric((name,), float(engine is not None and engine.is_alive))
            queued.add_metric((name,), engine.queued if engine else 0)
            restarts.add_metric((name,), engine.restarts if engine else 0)
            current = engine.state if engine else _UNOPENED
            for label in EngineState:
                state.add_metric((name, label), float(label is current))
        yield from (is_up, state, queued, restarts)
        limit = float(self._service.settings.max_queue)
        yield GaugeMetricFamily("conv_advisor_queue_limit", "Jobs that may wait for one worker", limit)


class TokensFile(Collector):
    """Whether the tokens file is valid.

    Parameters
    ----------
    keyring : Keyring or None
    """

    def __init__(self, keyring: Keyring | None) -> None:
        self._keyring = keyring

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        is_well = self._keyring is None or self._keyring.problem() is None
        yield GaugeMetricFamily("conv_advisor_tokens_file_ok", "Whether the file of tokens can be used", float(is_well))


class StoredJobs(Collector):
    """The jobs of the database by state; no counts while it cannot be read.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        jobs = GaugeMetricFamily("conv_advisor_jobs", "Jobs in the database by their state", labels=("state",))
        is_read, counts = True, {}
        try:
            counts = self._counts()
        except SQLAlchemyError:
            is_read = False
        for state in JobState if is_read else ():
            jobs.add_metric((state,), counts.get(state, 0))
        yield jobs
        yield GaugeMetricFamily("conv_advisor_store_up", "Whether the database could be read", float(is_read))

    def _counts(self) -> dict[str, int]:
        by_state = select(JOBS.c.state, func.count()).group_by(JOBS.c.state)
        with self._service.store.engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(by_state)}
