"""Counts requests as they end: on the event loop alone, without locks, in less than a microsecond each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, MutableMapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from conv_advisor.app.observe.templates import Templates, method_of

BUCKETS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""From a kept answer, which takes 50 microseconds, to the deadline of a convolution."""

_CLASSES: Final = ("aborted", "1xx", "2xx", "3xx", "4xx", "5xx")
_BOUNDS: Final = (*map(str, BUCKETS_S), "+Inf")


class _Series:
    """How long the requests of one method, template and class of status took."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0


class Meter(Collector):
    """Requests by method, template of their route, and class of status.

    Its labels have so many values and no more: every path that no route has is one, every other method too.

    Parameters
    ----------
    templates : Templates
    """

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._series: dict[tuple[str, str, int], _Series] = {}
        self.in_flight = 0

    def count(self, scope: MutableMapping[str, Any], status: int, elapsed_s: float) -> None:
        """Count one request.

        Parameters
        ----------
        scope : ASGI scope
        status : int
            0 where nothing was answered.
        elapsed_s : float
        """
        key = (scope["method"], self._templates.of(scope), status // 100)
        series = self._series.get(key)
        if series is None:
            series = self._series.setdefault((method_of(scope), *key[1:]), _Series())
        series.counts[bisect_left(BUCKETS_S, elapsed_s)] += 1
        series.sum_s += elapsed_s

    def collect(self) -> Iterator[Metric]:
        """What Prometheus is told."""
        durations = HistogramMetricFamily(
            "conv_advisor_http_request_duration_seconds",
            "Time from a request's first byte to the end of its answer",
            labels=("method", "route", "status"),
        )
        for (method, template, status), series in list(self._series.items()):
            counts = accumulate(list(series.counts))
            buckets = [(bound, float(count)) for bound, count in zip(_BOUNDS, counts, strict=True)]
            durations.add_metric((method, template, _CLASSES[status]), buckets, series.sum_s)
        yield durations
        yield GaugeMetricFamily(
            "conv_advisor_http_requests_in_flight", "Requests that are being answered", self.in_flight
        )
