"""PyTorch's conv2d as something to launch: with its default choice of plan, and with cudnn.benchmark = True.

What a time holds: every kernel that conv2d enqueues for x and weight that lie in memory already, in the layout asked
for, without bias or gradient; its output is allocated by PyTorch, once, when the graph is captured. Host time is not in
it, as it is not in any other time here.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from benchmarks.rivals.rows import DEFAULT, TUNED
from conv_advisor.data.errors import NotSupported
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Launch

T = TypeVar("T")

MODES: Final = (DEFAULT, TUNED)


@dataclass(frozen=True)
class Called:
    """One layer in PyTorch, after its first call.

    Parameters
    ----------
    mode : str
        One of `MODES`.
    problem : ConvProblem
    operands : Operands
    launch : Launch
    first : FirstRun
        Verified, as every variant is.
    first_call_s : float
        Wall time until its first result was there: under cudnn.benchmark the tuning is in it.
    """

    mode: str
    problem: ConvProblem
    operands: Operands
    launch: Launch
    first: FirstRun
    first_call_s: float


class Peer(Protocol):
    """Another library that computes convolutions, on the device and stream of a runner."""

    @property
    def version(self) -> str:
        """What it is, with its version."""

    def call(self, problem: ConvProblem, operands: Operands, mode: str) -> Called:
        """Call it for the first time on a layer, and verify what it gives."""

    def sample(self, called: Called, rule: StopRule) -> tuple[tuple[float, ...], bool]:
        """Times of one call in ms, and whether they are those of replayed graphs."""

    def release(self) -> None:
        """Give back cached memory."""


class PyTorch:
    """PyTorch beside a runner of the same device.

    Each mode has a thread of its own: PyTorch keeps the plan that it chose for a layer, whichever way, in a cache of
    the thread, and would never tune a layer that it has met before.
    """

    def __init__(self, runner: Runner, device_id: str) -> None:
        self._torch = torch = importlib.import_module("torch")
        self._cupy = importlib.import_module("cupy")
        self._runner = runner
        self._pointer = 0  # of the runner's stream, once it was seen
        ordinal = int(device_id.partition(":")[2] or "0")

        def enter() -> None:
            self._cupy.cuda.Device(ordinal).use()
            torch.cuda.set_device(ordinal)
            sizes = ((1, 8, 8, 8), (8, 8, 3, 3))  # libraries are loaded with it, and the first layer is no different
            torch.nn.functional.conv2d(*(torch.zeros(size, device="cuda") for size in sizes))
            torch.cuda.synchronize()

        self._threads = {mode: ThreadPoolExecutor(1, mode, initializer=enter) for mode in MODES}

    @property
    def version(self) -> str:
        """PyTorch and its cuDNN."""
        return f"torch {self._torch.__version__}, its cuDNN {self._torch.backends.cudnn.version()}"

    def call(self, problem: ConvProblem, operands: Operands, mode: str) -> Called:
        """Call conv2d for the first time on a layer, timed and verified."""
        return self._in_thread(mode, lambda: self._call(problem, operands, mode), problem)

    def sample(self, called: Called, rule: StopRule) -> tuple[tuple[float, ...], bool]:
        """Sample as the runner does; where the call cannot be captured, launches between events."""
        return self._in_thread(called.mode, lambda: self._sample(called, rule), called.problem)

    def release(self) -> None:
        """Give memory back to the device, which the runner's own cache may need."""
        self._torch.cuda.empty_cache()

    def _in_thread(self, mode: str, task: Callable[[], T], problem: ConvProblem) -> T:
        backend = self._torch.backends.cudnn
        backend.benchmark = mode == TUNED
        backend.allow_tf32 = problem.dtype is not DType.FLOAT32
        return self._threads[mode].submit(task).result()

    def _call(self, problem: ConvProblem, operands: Operands, mode: str) -> Called:
        x, weight, y = (self._tensor(array, problem) for array in (operands.x, operands.weight, operands.y))
        calls_s: list[float] = []

        def once() -> Any:
            return self._torch.nn.functional.conv2d(
                x,
                weight,
                None,
                (problem.stride_h, problem.stride_w),
                (problem.pad_h, problem.pad_w),
                (problem.dilation_h, problem.dilation_w),
                problem.groups,
            )

        def verified(_x: Any, _weight: Any, _y: Any) -> None:
            self._pointer = self._cupy.cuda.get_current_stream().ptr
            with _OnStream(self._torch, self._pointer) as stream:
                stream.synchronize()
                started = time.perf_counter()
                found = once()
                stream.synchronize()
                calls_s.append(time.perf_counter() - started)
                y.copy_(found)

        def run(_x: Any, _weight: Any, _y: Any) -> None:
            with _OnStream(self._torch, self._pointer):
                once()

        first = self._runner.first_run(problem, Launch(verified), operands)
        launch_ms = 1e3 * min(calls_s)  # the last of the runs has its code loaded; host time in it is an upper bound
        return Called(mode, problem, operands, Launch(run), FirstRun(first.max_error, launch_ms), calls_s[0])

    def _sample(self, called: Called, rule: StopRule) -> tuple[tuple[float, ...], bool]:
        self._refill(called)
        try:
            samples = self._runner.sample(
                called.problem, called.launch, called.operands, called.first.launch_ms, rule, L2State.WARM
            )
        except (NotSupported, RuntimeError):
            return self._between_events(called, rule), False
        return samples.samples_ms, True

    def _refill(self, called: Called) -> None:
        """Launch once, so that the memory it needs is in PyTorch's cache: tuning another layer empties that."""
        with _OnStream(self._torch, self._pointer):
            called.launch.run(None, None, None)

    def _between_events(self, called: Called, rule: StopRule) -> tuple[float, ...]:
        """Times of launches one after the other, twenty between two events."""
        count, samples = 20, list[float]()
        while not rule.is_done(samples, count * sum(samples)):
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            with _OnStream(self._torch, self._pointer):
                start.record()
                for _ in range(count):
                    called.launch.run(None, None, None)
                end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end) / count)
        return tuple(samples)

    def _tensor(self, array: Any, problem: ConvProblem) -> Any:
        """The same memory as a tensor of shape (n, c, h, w), whatever the layout."""
        found = self._torch.from_dlpack(array)
        if problem.dtype is DType.BFLOAT16:
            found = found.view(self._torch.bfloat16)
        return found.permute(0, 3, 1, 2) if problem.layout is Layout.NHWC else found


class _OnStream:
    """PyTorch's current stream is the one at this address inside; a context whose value is the stream."""

    def __init__(self, torch: Any, pointer: int) -> None:
        self._stream = torch.cuda.ExternalStream(pointer)
        self._context = torch.cuda.stream(self._stream)

    def __enter__(self) -> Any:
        self._context.__enter__()
        return self._stream

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)


def open_peer(runner: Runner, device_id: str) -> Peer:
    """PyTorch on the runner's device.

    Raises
    ------
    ImportError
        It is not installed.
    """
    return PyTorch(runner, device_id)
