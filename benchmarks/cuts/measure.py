"""Times every promising cut of a kernel on a problem."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Final

from benchmarks.cuts.kernels import KERNELS, applies, name_of, sources_of
from benchmarks.cuts.rows import Row
from benchmarks.options import say
from conv_advisor.data.errors import LaunchFailed, OutOfMemory, RunError
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.bench import LEAST_PRUNED_MS
from conv_advisor.kernels.cuda.compile import load_module
from conv_advisor.kernels.cuda.family import Tuning
from conv_advisor.kernels.cuda.sources import SOURCES
from conv_advisor.kernels.runner import Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.tolerance import tolerance

RULE: Final = StopRule(min_samples=3, max_samples=5, max_noise=0.01, budget_ms=8)
PROMISING: Final = 2.5
"""Cuts that are expected to take so many times as long as the best are not timed."""
PRUNE_FACTOR: Final = 3.0


def measure(
    runner: Runner, problems: Iterable[ConvProblem], names: Sequence[str], most: int, ends_at_s: float
) -> Iterator[list[Row]]:
    """The rows of each problem and kernel that computes it.

    Parameters
    ----------
    runner : Runner
    problems : iterable of ConvProblem
    names : sequence of str
        Which kernels.
    most : int
        Cuts of one kernel at the most, those first that are expected to be fastest.
    ends_at_s : float
        By the monotonic clock: no problem is begun after it.
    """
    for problem in problems:
        kernels = {name: KERNELS[name] for name in names if applies(name, problem, runner.device)}
        if time.monotonic() >= ends_at_s:
            return
        try:
            operands = runner.make_operands(problem, 0) if kernels else None
        except OutOfMemory as error:
            say(f"{problem.key}: {error}")
            continue
        for name, kernel in kernels.items():
            assert operands is not None  # noqa: S101 - or there were no kernels
            yield list(_times(runner, problem, operands, name, kernel, most))
        runner.release()


def precompile(names: Iterable[str], dtypes: Iterable[DType]) -> None:
    """Compile all that the kernels may launch, on every core; the compiler's cache keeps it."""
    sources = [SOURCES[source] for name in names for source in sources_of(name)]
    jobs = [(source, dtype, defines) for source in sources for dtype in dtypes for defines in source.definitions(dtype)]
    with ThreadPoolExecutor(os.cpu_count(), "compile") as pool:
        for _ in pool.map(lambda job: load_module(job[0], job[1], **job[2]).compile(), jobs):
            pass


def _times(
    runner: Runner, problem: ConvProblem, operands: Operands, name: str, kernel: Tuning, most: int
) -> Iterator[Row]:
    device = runner.device
    expected = kernel.expected(problem, device)
    ranked = sorted(expected, key=expected.__getitem__)
    best_ms = float("inf")
    for cut in ranked[:most]:
        if expected[cut] > PROMISING * expected[ranked[0]]:
            return
        try:
            launch = kernel.launch(problem, device, cut)
            first = runner.first_run(problem, launch, operands)
            if not first.max_error <= tolerance(problem):
                say(f"{problem.key}: {name} {name_of(cut)} errs by {first.max_error:.3g}")
                continue
            time_ms = first.launch_ms
            if time_ms <= max(LEAST_PRUNED_MS, PRUNE_FACTOR * best_ms):
                samples = runner.sample(problem, launch, operands, first.launch_ms, RULE, L2State.WARM)
                time_ms = median(samples.samples_ms)
        except LaunchFailed:
            raise
        except RunError as error:
            say(f"{problem.key}: {name} {name_of(cut)}: {error}")
            continue
        best_ms = min(best_ms, time_ms)
        yield Row(problem, name, name_of(cut), time_ms)
