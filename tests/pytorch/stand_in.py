"""A GPU that is none: the chooser as it is, with kernels that are NumPy on PyTorch's memory and times that a test sets.

Everything between a graph and a kernel runs as it does on a GPU: candidates, trials and their errors, plan files, and
the operators' way to what is loaded. CUDA alone is missing: streams, captures and events.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import reference
from conv_advisor.kernels.variant import Launch, Variant
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.planning.conversion import converter
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from conv_advisor.torch import log
from conv_advisor.torch.calls import loaded, running, timing
from conv_advisor.torch.choosing import gpu, preparing
from conv_advisor.torch.choosing.plans import Basis
from conv_advisor.torch.operators import conv2d as operator
from conv_advisor.torch.operators import conv2d_ending as ending_operator

CPU = -1
"""PyTorch's index of the device of a tensor on a CPU, by which plans are loaded."""


@cache
def advisor() -> Advisor:
    """Advice for an H200."""
    return Advisor(read(SHIPPED / "nvidia-h200"))


class NumPyRunner:
    """Prepares any variant as the reference in float64.

    Attributes
    ----------
    launches : list of ConvProblem
        What ran, in this order.
    refuses : callable (problem) -> bool
        Whether no variant can be prepared for a problem.
    off : float
        What is added to every output.
    wrong : collection of str
        Variants whose outputs are wrong.
    calling_blas : collection of str
        Variants that say that they call cuBLAS.
    prepared : list of str
        The variants that were made ready, in this order.
    written_within : list of ConvProblem
        What ran, and wrote some of the channels of a larger tensor.
    writes_within : callable (problem) -> bool
        Whether variants can do so.
    behind_prologue : list of (ConvProblem, int)
        What ran behind a prologue, and the channels that x is some of.
    fails_behind_prologue : bool
    """

    def __init__(self) -> None:
        self.device = advisor().device
        self.launches: list[ConvProblem] = []
        self.refuses: Callable[[ConvProblem], bool] = lambda _problem: False
        self.off = 0.0
        self.wrong: Collection[str] = ()
        self.calling_blas: Collection[str] = ()
        self.prepared: list[str] = []
        self.written_within: list[ConvProblem] = []
        self.behind_prologue: list[tuple[ConvProblem, int]] = []
        self.fails_behind_prologue = False
        self.writes_within: Callable[[ConvProblem], bool] = lambda problem: problem.layout == "nhwc"

    def prepare(self, variant: Variant, problem: ConvProblem, limit_bytes: int, plan: Mapping[str, Any]) -> Launch:
        """As `CudaRunner.prepare`."""
        if self.refuses(problem):
            raise RuntimeError("refused on purpose")
        self.prepared.append(variant.id)
        off = self.off + (variant.id in self.wrong)

        def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
            assert len(ends) == (2 if problem.epilogue.bias or problem.epilogue.residual else 0)
            self.launches.append(problem)
            y[...] = reference.convolve(problem, x, weight, *ends) + off

        def within(channels: int) -> Callable[..., None]:
            def run_within(x: Any, weight: Any, y: Any, *ends: Any) -> None:
                self.written_within.append(problem)
                shapes = (problem.x_shape, problem.weight_shape, *map(problem.shapes.get, ("bias", "residual")))
                given = [
                    operand and array_at_address(shape, operand.ptr)
                    for shape, operand in zip(shapes, (x, weight, *ends), strict=False)
                ]
                pixels = array_at_address((*problem.y_shape[:3], channels), y.ptr, last=problem.k)
                pixels[..., : problem.k] = reference.convolve(problem, *given) + off

            return run_within

        def behind_prologue(channels: int) -> Callable[..., None]:
            def run_behind(x: Any, weight: Any, y: Any, prologue: Any, *ends: Any) -> None:
                if self.fails_behind_prologue:
                    raise RuntimeError("failed on purpose")
                self.behind_prologue.append((problem, channels))
                shapes = (problem.weight_shape, (2, problem.c), *map(problem.shapes.get, ("bias", "residual")))
                weight, given, *ends = [
                    operand and array_at_address(shape, operand.ptr)
                    for shape, operand in zip(shapes, (weight, prologue, *ends), strict=False)
                ]
                pixels = array_at_address((*problem.x_shape[:3], channels), x.ptr, last=problem.c)[..., : problem.c]
                made = np.maximum(pixels * given[0] + given[1], 0)
                array_at_address(problem.y_shape, y.ptr)[...] = reference.convolve(problem, made, weight, *ends) + off

            return run_behind

        return Launch(
            run,
            plan=dict(plan),
            calls_blas=variant.id in self.calling_blas,
            within=within if self.writes_within(problem) else None,
            behind_prologue=behind_prologue if problem.layout == "nhwc" else None,
        )


class FakePreparer(preparing.Preparer):
    """A `Preparer` whose variants run on the CPU."""

    def __init__(self) -> None:
        self.runner = self._runner = NumPyRunner()  # type: ignore[assignment]  # it stands in for one
        self._index, self._place = CPU, torch.device("cpu")
        self.device = self.runner.device
        self._can_overlap = False


class FakeGpu(gpu.Gpu):
    """A `Gpu` whose device is the CPU.

    Attributes
    ----------
    runner : NumPyRunner
    """

    def __init__(self) -> None:
        self._preparer = FakePreparer()
        self.runner, self.device = self._preparer.runner, self._preparer.device
        self._index, self._place, self._stream = CPU, torch.device("cpu"), None
        self._advisor = advisor()
        self._convert_ms = converter(self._advisor)
        self._basis = Basis("no device", "0", "0", torch.__version__)
        self._files = {}
        self._loaded = {}
        self._lock = threading.RLock()


def array_at(shape: tuple[int, ...], dtype: np.dtype[Any], memory: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of memory that somebody else owns."""
    assert memory.nbytes == np.prod(shape) * dtype.itemsize
    return np.frombuffer((ctypes.c_char * memory.nbytes).from_address(memory.address), dtype).reshape(shape)


def array_at_address(shape: Any, address: int, last: int | None = None) -> np.ndarray[Any, Any]:
    """Float32 memory at an address; of the last pixel only so many channels are there."""
    strides = np.cumprod((4, *shape[:0:-1]))[::-1]
    count = int(np.prod(shape)) - (shape[-1] - last if last else 0)
    values = np.frombuffer((ctypes.c_char * (4 * count)).from_address(address), np.float32)
    return np.lib.stride_tricks.as_strided(values, shape, strides)


@contextmanager
def on_cpu_by_plan() -> Iterator[None]:
    """Both operators run on a CPU what is loaded for their plans, as they do on a GPU."""
    with torch.library._scoped_library("conv_advisor", "IMPL") as library:
        library.impl("conv2d_v1", operator._on_cuda, "CPU", allow_override=True)
        library.impl(ending_operator.NAME, ending_operator._on_cuda, "CPU", allow_override=True)
        yield


def time_by(monkeypatch: pytest.MonkeyPatch, time_ms: Callable[[str], float]) -> None:
    """Let trials run what they time once, and take its time from a function of its name."""

    def run_once(_trial: Any, call: Callable[[], Any]) -> float:
        call()
        return time_ms(call.__name__)

    monkeypatch.setattr(timing.Trial, "_time_ms", run_once)


@contextmanager
def opened(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[FakeGpu]:
    """The one GPU of this process: its variants take half of what PyTorch's own takes, and its plans are kept there."""
    monkeypatch.setenv("CONV_ADVISOR_PLANS", str(folder))
    memory = SimpleNamespace(Device=lambda _: SimpleNamespace(use=lambda: None), using_allocator=nullcontext)
    monkeypatch.setattr(preparing, "cupy", SimpleNamespace(cuda=memory))
    monkeypatch.setattr(running, "cupy", SimpleNamespace(ndarray=array_at))
    monkeypatch.setattr(
        running, "UnownedMemory", lambda address, nbytes, *_: SimpleNamespace(address=address, nbytes=nbytes)
    )
    monkeypatch.setattr(running, "MemoryPointer", lambda memory, _offset: memory)
    monkeypatch.setattr(running, "_stream", lambda *_: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    for name, stand_in in {
        "is_current_stream_capturing": lambda: False,
        "current_device": lambda: torch.device("cpu").index,
        "device": nullcontext,
        "stream": nullcontext,
        "synchronize": lambda: None,
        "graph_pool_handle": lambda: None,
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    time_by(monkeypatch, lambda name: 1.0 if name == "run_as_compiled" else 0.5)
    fake = FakeGpu()
    monkeypatch.setattr(gpu, "open_gpu", lambda _index: fake)
    for module in ("backend", "swapping"):
        monkeypatch.setattr(import_module(f"conv_advisor.torch.{module}"), "chooser_for", lambda _inputs: fake)
    monkeypatch.setattr(log, "_warned", set())
    torch.compiler.reset()
    loaded.LOADED.clear()
    with on_cpu_by_plan():
        yield fake
    loaded.LOADED.clear()
    torch.compiler.reset()
