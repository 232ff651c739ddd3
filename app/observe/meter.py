"""Counts requests as they end, in one histogram of Prometheus's own client."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any, Final

from prometheus_client import Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from conv_advisor.app.observe.templates import Templates, method_of

BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""From a cached answer, which takes 50 microseconds, to the deadline of a convolution."""

_CLASSES: Final = ("aborted", "1xx", "2xx", "3xx", "4xx", "5xx")


class Meter(Collector):
    """Counts requests by method, template of their route, and class of status.

    The number of label values is bounded: all paths without a route count as one, and so do all unknown methods.

    Parameters
    ----------
    templates : Templates

    Attributes
    ----------
    in_flight : int
        Requests in progress; `Border` counts them.
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._durations = Histogram(
            "conv_advisor_http_request_duration_seconds",
            "Time from a request's first byte to the end of its answer",
            ("method", "route", "status"),
            registry=None,
            buckets=BUCKETS_S,
        )
        self._series: dict[tuple[str, str, int], Histogram] = {}
        self.in_flight = 0
        self._in_flight = Gauge(
            "conv_advisor_http_requests_in_flight", "Requests that are being answered", registry=None
        )
        self._in_flight.set_function(lambda: self.in_flight)

    def count(self, scope: MutableMapping[str, Any], status: int, elapsed_s: float) -> None:
        """Count one request.

        Parameters
        ----------
        scope : ASGI scope
        status : int
            0 where no answer was sent.
        elapsed_s : float
        """
        key = (scope["method"], self._templates.of(scope), status // 100)
        series = self._series.get(key)  # `labels` takes as long again as `observe`
        if series is None:
            series = self._durations.labels(method := method_of(scope), key[1], _CLASSES[key[2]])
            self._series[(method, *key[1:])] = series
        series.observe(elapsed_s)

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        return chain(self._durations.collect(), self._in_flight.collect())
