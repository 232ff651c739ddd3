"""Compiles all that our variants need for some problems, on every core, into the cache that all processes share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from typing import Final

from conv_advisor.data.errors import RunError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import BenchOptions, open_runner
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.runner import Runner

_MOST_PROCESSES: Final = 16
"""Each has a context on a GPU, of half a gigabyte, and takes some seconds to start."""


def compile_ahead(devices: Sequence[str], problems: Sequence[ConvProblem], options: BenchOptions) -> int:
    """Prepare every problem once, in as many processes as there are cores, spread over the devices.

    cuDNN's plans are not among it: it builds them anew in every process.

    Returns
    -------
    n_launches : int
        How many launches were prepared; 0 where the devices are no GPUs.
    """
    gpus = [device for device in devices if device.startswith("cuda")]
    if not gpus:
        return 0
    n_processes = max(1, min(available_cores(), _MOST_PROCESSES) // len(gpus))
    context = multiprocessing.get_context("spawn")
    counts = []
    with ExitStack() as stack:
        for place, device in enumerate(gpus):
            pool = stack.enter_context(ProcessPoolExecutor(n_processes, mp_context=context))
            counts.append(
                pool.map(partial(_prepare, device, options.workspace_limit_bytes), problems[place :: len(gpus)])
            )
        return sum(sum(counted) for counted in counts)


def _prepare(device: str, workspace_limit_bytes: int, problem: ConvProblem) -> int:
    """Prepare a problem by every variant of ours that applies; how many could be."""
    import cupy

    runner, count = _runner(device), 0
    for variant in VARIANTS:
        if variant.why_not(problem, runner.device):
            continue
        try:
            runner.prepare(variant, problem, workspace_limit_bytes)
        except RunError:  # the sweep will say so
            continue
        count += 1
    cupy.get_default_memory_pool().free_all_blocks()  # other processes prepare on the same GPU
    return count


@cache
def _runner(device: str) -> Runner:
    return open_runner(device)
