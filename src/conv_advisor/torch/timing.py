"""Device times of variants and of PyTorch's own convolution on the same operands, by replaying CUDA graphs of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import Any, Final

import torch

from conv_advisor.data.errors import RunError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.border import translated
from conv_advisor.kernels.reference import tolerance
from conv_advisor.kernels.stopping import StopRule, launches_per_region
from conv_advisor.torch.layers import MEMORY_FORMATS, TORCH_DTYPES
from conv_advisor.torch.operator import own_convolution
from conv_advisor.torch.running import Prepared

_RULE: Final = StopRule(min_samples=4, max_samples=8, max_noise=0.004, budget_ms=6.0)
"""Enough to choose among candidates; a sweep, whose times are kept for ever, takes more."""
_LEAST_REGION_MS: Final = 0.2
_MOST_LAUNCHES: Final = 64


class Trial:
    """One problem's operands on a GPU, on which variants are checked and timed.

    Parameters
    ----------
    problem : ConvProblem
    device : int
    stream : torch.cuda.Stream
        Used by nobody else meanwhile.

    Attributes
    ----------
    failures : list of Exception
        Why variants have no time.
    """

    def __init__(self, problem: ConvProblem, device: int, stream: Any) -> None:
        self.failures: list[Exception] = []
        self._problem, self._stream = problem, stream
        self._geometry = (
            [problem.stride_h, problem.stride_w],
            [problem.pad_h, problem.pad_w],
            [problem.dilation_h, problem.dilation_w],
            problem.groups,
        )
        self._context = torch.cuda.stream(stream)
        self._generator = torch.Generator(f"cuda:{device}").manual_seed(0)
        self._pool = torch.cuda.graph_pool_handle()
        self._expected: Any = None
        self._graphs: list[Any] = []

    def __enter__(self) -> Trial:
        torch.cuda.synchronize()
        self._context.__enter__()
        problem = self._problem
        self._x = self._random(problem.n, problem.c, problem.h, problem.w)
        self._weight = self._random(problem.k, problem.c // problem.groups, problem.r, problem.s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for graph in self._graphs:  # not sooner: a pool that all have left cannot be captured into again
            graph.reset()
        self._context.__exit__(kind, error, trace)

    def time_own_ms(self) -> float:
        """Median time of PyTorch's own convolution."""
        key = self._problem.key
        return self._time_ms(lambda: own_convolution(self._x, self._weight, *self._geometry, key))

    def time_ms(self, run: Prepared) -> float | None:
        """Median time of a variant, once its outputs are known to be right; None where it fails."""
        try:
            with translated():
                self._check(run)
                return self._time_ms(lambda: run(self._x, self._weight))
        except (RunError, RuntimeError) as error:
            self.failures.append(error)
            return None

    def _check(self, run: Prepared) -> None:
        """Compare the first image with float64, every output of it, and look that the others were written.

        Raises
        ------
        RunError
        """
        if self._expected is None:
            x, weight = self._x[:1].double(), self._weight.double()
            self._expected = torch.nn.functional.conv2d(x, weight, None, *self._geometry)
        y = torch.full_like(run(self._x, self._weight), torch.nan)
        run.run_into(self._x, self._weight, y)
        error = float((y[:1].double() - self._expected).abs().max() / self._expected.abs().max())
        allowed = tolerance(self._problem)
        if not error <= allowed or not bool(torch.isfinite(y).all()):
            raise RunError(f"max error {error:.3g}, allowed {allowed:.3g}")

    def _time_ms(self, call: Callable[[], Any]) -> float:
        call()
        launch_ms = min(self._regions_ms(call, 2))
        launches = launches_per_region(launch_ms, _LEAST_REGION_MS, _MOST_LAUNCHES)
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            for _ in range(launches):
                call()
        finally:
            graph.capture_end()
        region_ms = self._regions_ms(graph.replay, 1)[0]
        samples: list[float] = []
        while not _RULE.is_done(samples, sum(samples) * launches):
            samples += [ms / launches for ms in self._regions_ms(graph.replay, _RULE.next_samples(samples, region_ms))]
        return median(samples)

    def _regions_ms(self, call: Callable[[], Any], count: int) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record(self._stream)
        for event in events[1:]:
            call()
            event.record(self._stream)
        events[-1].synchronize()
        return [float(first.elapsed_time(last)) for first, last in pairwise(events)]

    def _random(self, *shape: int) -> Any:
        values = torch.empty(shape, device=self._generator.device).uniform_(-1, 1, generator=self._generator)
        return values.to(TORCH_DTYPES[self._problem.dtype], memory_format=MEMORY_FORMATS[self._problem.layout])
