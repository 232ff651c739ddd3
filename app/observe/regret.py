"""The live regret: measurements of any origin since the service started, compared with the tree's predictions."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from conv_advisor.app.service.regret import COLUMNS, times_of
from conv_advisor.data.database.tables import MEASUREMENTS, PROBLEMS
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import ConvProblem, of_columns

if TYPE_CHECKING:
    from conv_advisor.app.service.service import Service

log = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 2000
"""Measurements that one scrape reads; the next scrape reads the rest."""

RATIO_BUCKETS: Final = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.11, 1.25, 1.5, 2.0, 4.0, 8.0)
SLOWDOWN_BUCKETS: Final = (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0)


class LiveRegret(Collector):
    """How far predictions are off, and what following them costs.

    It reads all rows added to the store, so measurements of sweeps and of other processes count too. Several processes
    on one store therefore report the same values: average them, never add them.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = Lock()
        self._since_us = int(time.time() * 1e6)
        self._last_id: int | None = None
        self._ratios = Histogram(
            "conv_advisor_measured_over_predicted_ratio",
            "Measured time of a variant over the one that the tree in charge predicts",
            ("device", "variant"),
            registry=None,
            buckets=RATIO_BUCKETS,
        )
        self._slowdowns = Histogram(
            "conv_advisor_advised_slowdown_ratio",
            "Measured time of the variant that the tree puts first over that of the fastest measured",
            ("device",),
            registry=None,
            buckets=SLOWDOWN_BUCKETS,
        )

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        with self._lock, _reported():
            self._learn()
        yield from self._ratios.collect()
        yield from self._slowdowns.collect()

    def _learn(self) -> None:
        by_device: dict[str, dict[ConvProblem, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
        for device_id, variant, time_ms, *fields in self._added():
            by_device[device_id][of_columns(fields)].append((variant, time_ms))
        for device_id, measured in by_device.items():
            with _reported():  # one device's tree that cannot be read leaves those of the others
                advisor = self._service.advisor(device_id)
                if advisor.model is not None and advisor.loan is None:  # a borrowed tree being off is no drift
                    self._compare(device_id, measured)

    def _added(self) -> Sequence[Any]:
        """Device, variant, time and layer of the rows added since the last scrape, in the order they were added."""
        newest = select(func.coalesce(func.max(MEASUREMENTS.c.id), 0))
        with self._service.store.engine.connect() as connection:
            last_id = connection.execute(newest).scalar_one()
            since_id = self._last_id or 0
            query = (
                select(MEASUREMENTS.c.id, MEASUREMENTS.c.device_id, MEASUREMENTS.c.variant, MEASUREMENTS.c.time_ms)
                .add_columns(*COLUMNS)
                .join(PROBLEMS, PROBLEMS.c.key == MEASUREMENTS.c.problem_key)
                .where(MEASUREMENTS.c.id > since_id, MEASUREMENTS.c.id <= last_id)
                .where(MEASUREMENTS.c.outcome == str(Outcome.MEASURED), MEASUREMENTS.c.l2 == str(L2State.WARM))
                .where(MEASUREMENTS.c.measured_at_us >= self._since_us)
                .order_by(MEASUREMENTS.c.id)
                .limit(ROWS_AT_ONCE)
            )
            rows = connection.execute(query).all()
        self._last_id = rows[-1].id if len(rows) == ROWS_AT_ONCE else last_id
        return [row[1:] for row in rows]

    def _compare(self, device_id: str, measured: dict[ConvProblem, list[tuple[str, float]]]) -> None:
        advisor = self._service.advisor(device_id)
        summaries = self._service.records.summaries(list(measured), device_id)
        for problem, times in measured.items():
            try:
                predicted = {choice.variant: choice.time_ms for choice in advisor.advise(problem).ranking}
            except ConvAdvisorError:  # no variant is predicted to run there
                continue
            for variant, time_ms in times:
                if variant in predicted:
                    self._ratios.labels(device_id, variant).observe(time_ms / predicted[variant])
            times_ms = times_of(summaries.get(problem.key, {}))
            advised = next(iter(predicted))
            if advised in times_ms and len(times_ms) > 1:
                self._slowdowns.labels(device_id).observe(times_ms[advised] / min(times_ms.values()))


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, ConvAdvisorError) as error:
        log.warning("the live regret is not up to date: %s", type(error).__name__)
