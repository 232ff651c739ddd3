"""PyTorch's conv2d as something to launch: with its default choice of plan, and with cudnn.benchmark = True.

What a time holds: every kernel that conv2d, and what follows it, enqueue for tensors that lie in memory already, in the
layout asked for, without gradient; the output is allocated by PyTorch, once, when the graph is captured. Host time is
not in it, as it is not in any other time here.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeVar

from benchmarks.rivals.rows import DEFAULT, TUNED
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import NotSupported
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Launch

T = TypeVar("T")

MODES: Final = (DEFAULT, TUNED)

_FIRST_CALLS: Final = 3
"""One that tunes or compiles, which may take seconds, and two that tell how long a call takes."""


@dataclass(frozen=True)
class Called:
    """One layer in PyTorch, after its first call.

    Parameters
    ----------
    mode : str
        One of the peer's.
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

    modes: ClassVar[tuple[str, ...]] = MODES

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

        self._threads = {mode: ThreadPoolExecutor(1, mode, initializer=enter) for mode in self.modes}

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

    def layer_of(self, problem: ConvProblem, mode: str) -> Callable[..., Any]:
        """What is called in a mode: a function of x, weight, bias and residual, None where there is none."""
        return layer_of(self._torch.nn.functional, problem)

    def release(self) -> None:
        """Give memory back to the device, which the runner's own cache may need."""
        self._torch.cuda.empty_cache()

    def _in_thread(self, mode: str, task: Callable[[], T], problem: ConvProblem) -> T:
        backend = self._torch.backends.cudnn
        backend.benchmark = mode == TUNED
        # A compiler may make a product of matrices of a 1x1 convolution.
        backend.allow_tf32 = self._torch.backends.cuda.matmul.allow_tf32 = problem.dtype is not DType.FLOAT32
        return self._threads[mode].submit(task).result()

    def _call(self, problem: ConvProblem, operands: Operands, mode: str) -> Called:
        y = self._tensor(operands.y, problem)
        arrays = (operands.x, operands.weight, operands.bias, operands.residual)
        tensors = tuple(None if array is None else self._tensor(array, problem) for array in arrays)
        once = partial(self.layer_of(problem, mode), *tensors)
        calls_s: list[float] = []

        def verified(*_operands: Any) -> None:
            self._pointer = self._cupy.cuda.get_current_stream().ptr
            with _OnStream(self._torch, self._pointer) as stream:
                stream.synchronize()
                for _ in range(1 if calls_s else _FIRST_CALLS):
                    started = time.perf_counter()
                    output = once()
                    stream.synchronize()
                    calls_s.append(time.perf_counter() - started)
                y.copy_(output)

        def run(*_operands: Any) -> None:
            with _OnStream(self._torch, self._pointer):
                once()

        first = self._runner.first_run(problem, Launch(verified), operands)
        launch_ms = 1e3 * min(calls_s)  # with the code loaded; the host's time in it makes it an upper bound
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
        tensor = self._torch.from_dlpack(array)
        if problem.dtype is DType.BFLOAT16:
            tensor = tensor.view(self._torch.bfloat16)
        is_image = len(tensor.shape) == 4
        return tensor.permute(0, 3, 1, 2) if is_image and problem.layout is Layout.NHWC else tensor


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


def layer_of(functional: Any, problem: ConvProblem) -> Callable[..., Any]:
    """A layer as eager PyTorch has it: conv2d, with the bias in it, then the residual, then the activation.

    Parameters
    ----------
    functional : module
        ``torch.nn.functional``.
    problem : ConvProblem

    Returns
    -------
    layer : callable (x, weight, bias, residual) -> y
        It holds functions and numbers alone, so that it can be compiled.
    """
    convolve = partial(
        functional.conv2d,
        stride=(problem.stride_h, problem.stride_w),
        padding=(problem.pad_h, problem.pad_w),
        dilation=(problem.dilation_h, problem.dilation_w),
        groups=problem.groups,
    )
    activation = problem.epilogue.activation
    activate = {
        Activation.NONE: None,
        Activation.GELU_TANH: partial(functional.gelu, approximate="tanh"),
    }.get(activation, getattr(functional, activation, None))

    def layer(x: Any, weight: Any, bias: Any, residual: Any) -> Any:
        y = convolve(x, weight, bias)
        if residual is not None:
            y = y + residual
        return y if activate is None else activate(y)

    return layer


def open_peer(runner: Runner, device_id: str) -> Peer:
    """PyTorch on the runner's device.

    Raises
    ------
    ImportError
        It is not installed.
    """
    return PyTorch(runner, device_id)
