"""What makes the variants of one GPU ready to run, on PyTorch's memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import cupy
import torch
from cupy.cuda import MemoryPointer, UnownedMemory

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.parts.overlap import LEAST_CAPABILITY, overlapping
from conv_advisor.kernels.cuda.runner import CudaRunner
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend
from conv_advisor.torch.calls.loaded import is_behind, limits_of
from conv_advisor.torch.calls.running import Prepared
from conv_advisor.torch.choosing.choice import Choice
from conv_advisor.torch.log import log, warn_of_failure
from conv_advisor.torch.options import Options

_WORKSPACE: Final = re.compile(r"workspace(\d+)")
"""What `Options.limits` says of scratch memory."""


class Preparer:
    """Prepares variants for one GPU.

    Parameters
    ----------
    index : int

    Raises
    ------
    NotSupported

    Attributes
    ----------
    device : Device
    """

    def __init__(self, index: int) -> None:
        self._index, self._place = index, torch.device("cuda", index)
        with torch.cuda.device(index):
            self._runner = CudaRunner(index)
        self.device = self._runner.device
        self._can_overlap = float(self.device.capability) >= LEAST_CAPABILITY

    def prepare(self, problem: ConvProblem, choice: Choice, options: Options) -> Prepared | Exception:
        """A variant ready to run, or why it is not."""
        try:
            variant = VARIANTS[choice.variant or ""]
            overlap = overlapping() if options.overlap and self._can_overlap else nullcontext()
            with torch.cuda.device(self._index), _memory_of_torch(self._index), overlap:
                cupy.cuda.Device(self._index).use()
                launch = self._runner.prepare(variant, problem, options.max_workspace_bytes, choice.plan)
                return Prepared(problem, launch, self._place)
        except Exception as error:  # whatever it is, there are other variants, and PyTorch's own
            return error

    def prepare_all(
        self, to_prepare: Mapping[ConvProblem, Sequence[Choice]], options: Options
    ) -> dict[ConvProblem, dict[str, Prepared]]:
        """Everything that is to be run, by problem and variant; what cannot be prepared is left out.

        Several threads compile our kernels. cuDNN's handle serves one thread, which prepares its plans meanwhile.
        """
        tasks = [(problem, choice) for problem, choices in to_prepare.items() for choice in choices if choice.variant]
        is_ours = [VARIANTS[choice.variant or ""].backend is Backend.CUDA for _, choice in tasks]
        with ThreadPoolExecutor(2 * available_cores(), "nvrtc") as pool:  # some wait for what others compile
            compiling = [
                pool.submit(self.prepare, *task, options) if ours else None
                for task, ours in zip(tasks, is_ours, strict=True)
            ]
            results = [
                None if ours else self.prepare(*task, options) for task, ours in zip(tasks, is_ours, strict=True)
            ]
        ready: dict[ConvProblem, dict[str, Prepared]] = {problem: {} for problem in to_prepare}
        for (problem, choice), future, result in zip(tasks, compiling, results, strict=True):
            prepared = result if future is None else future.result()
            if isinstance(prepared, Prepared):
                ready[problem][choice.variant or ""] = prepared
            else:
                log.info("%s by %s: %s", problem.key, choice.variant, prepared)
        return ready


def options_of(plan: str) -> Options:
    """Of the options that a plan is named after, those that a variant is prepared with."""
    limits = limits_of(plan)
    most = next(filter(None, map(_WORKSPACE.fullmatch, limits)), None)
    return Options(
        overlap="apart" not in limits, max_workspace_bytes=int(most[1]) if most else DEFAULT_WORKSPACE_LIMIT_BYTES
    )


def warmed(plan: str, ready: Mapping[str, Prepared]) -> dict[str, Prepared]:
    """The variants that ran once without an error, so that all that they load is loaded before a capture."""
    ran = {}
    for variant, prepared in ready.items():
        warm = prepared.warm_behind_prologue if is_behind(plan) else prepared.warm
        try:
            warm()
        except Exception as error:  # whatever it is, PyTorch's own convolution gives the answer
            warn_of_failure(plan, error)
        else:
            ran[variant] = prepared
    return ran


@contextmanager
def _memory_of_torch(index: int) -> Iterator[None]:
    """What CuPy allocates on this thread is PyTorch's, and goes back there."""

    def allocate(nbytes: int) -> Any:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")
        return MemoryPointer(UnownedMemory(tensor.data_ptr(), nbytes, tensor, index), 0)

    with cupy.cuda.using_allocator(allocate):
        yield
