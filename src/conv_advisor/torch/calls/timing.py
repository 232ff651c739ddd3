"""Device times of variants and of PyTorch's own convolution on the same operands, by replaying CUDA graphs of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from statistics import median
from types import TracebackType
from typing import Any, Final, NamedTuple

import torch

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.border import translated
from conv_advisor.kernels.stopping import StopRule, launches_per_region
from conv_advisor.torch.calls.checking import Operands
from conv_advisor.torch.calls.running import Prepared

_RULE: Final = StopRule(min_samples=4, max_samples=8, max_noise=0.004, budget_ms=6.0)
"""Enough to choose among candidates; a sweep, whose times are kept for ever, takes more."""
_LEAST_REGION_MS: Final = 0.2
_MOST_LAUNCHES: Final = 64


class Timed(NamedTuple):
    """Median device time, and max |y - y64| / max |y64|."""

    time_ms: float
    max_error: float


class Trial:
    """One problem's operands on a GPU, on which variants are checked and timed.

    Parameters
    ----------
    problem : ConvProblem
    device : torch.device or str
    stream : torch.cuda.Stream
        Used by nobody else meanwhile.
    max_error_ratio : float
        As in `Options`.

    Attributes
    ----------
    failures : list of Exception
        Why variants have no time.
    """

    def __init__(self, problem: ConvProblem, device: Any, stream: Any, max_error_ratio: float = inf) -> None:
        self.failures: list[Exception] = []
        self._problem, self._device, self._stream = problem, device, stream
        self._max_error_ratio = max_error_ratio
        self._context = torch.cuda.stream(stream)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[Any] = []

    def __enter__(self) -> Trial:
        torch.cuda.synchronize()
        self._context.__enter__()
        try:
            self._operands = Operands(self._problem, self._device, self._max_error_ratio)
        except BaseException:
            self._context.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for graph in self._graphs:  # not sooner: a pool whose graphs are all reset takes no further capture
            graph.reset()
        self._context.__exit__(kind, error, trace)

    def own(self) -> Timed:
        """PyTorch's own convolution, and one elementwise kernel for what follows it (`Operands.run_as_compiled`)."""
        return Timed(self._time_ms(self._operands.run_as_compiled), self._operands.own_error)

    def of(self, run: Prepared) -> Timed | None:
        """A variant, timed once its outputs are known to be right; None where it fails."""
        operands = self._operands
        try:
            with translated():
                max_error = operands.checked_error(run)
                return Timed(self._time_ms(lambda: run(operands.x, operands.weight, *operands.ends)), max_error)
        except Exception as error:  # whatever it is, there are other variants, and PyTorch's own
            self.failures.append(error)
            return None

    def behind_prologue(self, run: Prepared) -> Timed | None:
        """The same of what takes a prologue, behind one; None where it fails."""
        operands = self._operands
        try:
            with translated():
                max_error = operands.checked_error(run)
                call = operands.checked_behind_prologue(run)
                return Timed(self._time_ms(call), max_error)
        except Exception as error:  # as above
            self.failures.append(error)
            return None

    def _time_ms(self, call: Callable[[], Any]) -> float:
        call()
        launches = launches_per_region(min(self._regions_ms(call, 2)), _LEAST_REGION_MS, _MOST_LAUNCHES)
        replay = self._capture(call, launches)
        region_ms = self._regions_ms(replay, 1)[0]
        if region_ms < _LEAST_REGION_MS and launches < _MOST_LAUNCHES:  # what was timed first was the host
            launches = launches_per_region(region_ms / launches, _LEAST_REGION_MS, _MOST_LAUNCHES)
            replay = self._capture(call, launches)
            region_ms = self._regions_ms(replay, 1)[0]
        samples: list[float] = []
        while not _RULE.is_done(samples, sum(samples) * launches):
            samples += [ms / launches for ms in self._regions_ms(replay, _RULE.next_samples(samples, region_ms))]
        return median(samples)

    def _capture(self, call: Callable[[], Any], launches: int) -> Callable[[], None]:
        """A function that replays so many calls at once."""
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            for _ in range(launches):
                call()
        finally:
            graph.capture_end()
        replay: Callable[[], None] = graph.replay
        return replay

    def _regions_ms(self, call: Callable[[], Any], count: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record(self._stream)
        for event in events[1:]:
            call()
            event.record(self._stream)
        events[-1].synchronize()
        return [float(first.elapsed_time(last)) for first, last in pairwise(events)]
