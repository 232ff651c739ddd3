"""A variant: a stateless value with a stable id, a rule that says where it applies, and its workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout

if TYPE_CHECKING:
    from conv_advisor.kernels.scratch import Scratch

DEFAULT_WORKSPACE_LIMIT_BYTES: Final = 2**30


class Algorithm(StrEnum):
    """The method, independent of the implementation."""

    DIRECT = "direct"
    TWO_STAGE = "two_stage"
    """cuConv: scalar products of filter rows, then their sum."""
    GEMM = "gemm"
    IMPLICIT_GEMM = "implicit_gemm"
    WINOGRAD = "winograd"
    FFT = "fft"
    ENGINE = "engine"
    """A closed cuDNN engine; its method is not published."""


class Backend(StrEnum):
    """Which package prepares the launch."""

    CPU = "cpu"
    CUDA = "cuda"
    CUDNN_LEGACY = "cudnn_legacy"
    CUDNN_GRAPH = "cudnn_graph"

    @property
    def device_kind(self) -> str:
        """The kind of device it runs on: ``cpu`` or ``cuda``."""
        return "cpu" if self is Backend.CPU else "cuda"

    @property
    def has_complete_rules(self) -> bool:
        """Whether its variants' rules and workspaces alone decide what runs; cuDNN refuses more than it documents."""
        return self in (Backend.CPU, Backend.CUDA)


class Ending(StrEnum):
    """How a variant computes the epilogue of a problem."""

    FUSED = "fused"
    """In the output stage of its own kernel."""
    LIBRARY = "library"
    """By the library's fused call."""
    APPENDED = "appended"
    """By an elementwise step after the convolution."""


class Maker(StrEnum):
    """A library whose variants can be selected alone."""

    CUDNN = "cudnn"

    def has(self, variant: Variant) -> bool:
        """Whether a variant is this library's."""
        return variant.backend in (Backend.CUDNN_LEGACY, Backend.CUDNN_GRAPH)


Rule = Callable[[ConvProblem, Device], str | None]
"""Why a variant does not apply, or None where it does: it then gives the right answer."""


Workspace = Callable[[ConvProblem, Device], int | None]
"""Bytes of scratch memory that a variant takes on a device; None where only the library knows."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One runnable implementation.

    Parameters
    ----------
    id : str
        Stable: stored data, never renamed.
    algorithm : Algorithm
    backend : Backend
    is_deterministic : bool
        Equal inputs give bitwise equal outputs.
    why_not : callable (problem, device) -> str or None
        The reason why it does not apply; None where it applies.
    workspace_bytes : callable (problem, device) -> int or None
        Scratch memory under the default limit, else the least it needs; None where only a call of the library tells.
    source : str
        Paper, documentation or post that the method comes from.
    least_workspace_bytes : callable (problem) -> int, optional
        The least workspace it needs, where that is faster to compute than `workspace_bytes`.
    ending : Ending, optional
        How it computes an epilogue; None where it refuses every epilogue, whatever `why_not` says.
    in_library_call : frozenset of Epilogue
        The epilogues that a call of the library computes, whatever `ending` says of the others.
    """

    id: str
    algorithm: Algorithm
    backend: Backend
    is_deterministic: bool
    why_not: Rule
    workspace_bytes: Workspace
    source: str
    least_workspace_bytes: Callable[[ConvProblem], int] | None = None
    ending: Ending | None = None
    in_library_call: frozenset[Epilogue] = frozenset()

    def __post_init__(self) -> None:
        # A copy made with an `ending` inherits `_no_epilogue` from a variant without one.
        others = [part for part in parts_of(self.why_not) if part is not _no_epilogue]
        object.__setattr__(self, "why_not", all_of(*others) if self.ending else all_of(_no_epilogue, *others))

    def ending_of(self, epilogue: Epilogue) -> Ending | None:
        """How it computes one epilogue; None where it cannot."""
        return Ending.LIBRARY if epilogue in self.in_library_call else self.ending

    def needed_bytes(self, problem: ConvProblem, device: Device, limit_bytes: int) -> int | None:
        """Bytes that exceed the limit if and only if `workspace_bytes` does; None where `workspace_bytes` is None."""
        if self.least_workspace_bytes and limit_bytes >= DEFAULT_WORKSPACE_LIMIT_BYTES:
            return self.least_workspace_bytes(problem)
        return self.workspace_bytes(problem, device)


@dataclass
class Launch:
    """One variant prepared for one problem: everything allocated and compiled, ready to be run many times.

    Parameters
    ----------
    run : callable (x, weight, y, bias, residual) -> None
        Computes y from x and weight, contiguous arrays in the problem's memory order: NumPy on a CPU (bfloat16 is
        ``ml_dtypes.bfloat16``); CuPy on a GPU (bfloat16 as its bits in uint16), where it only enqueues work on the
        current stream, allocates nothing and does not synchronise, so that it can be captured in a graph. Where the
        epilogue adds bias or residual, both are passed, None for the one it does not add; else neither is passed.
    workspace_bytes : int
        Scratch memory it holds.
    plan : dict
        Together with the variant's id, rebuilds the launch, as in `Measurement.plan`.
    scratch : tuple of Scratch
        Its scratch memory, which may be replaced. Where this is empty though `workspace_bytes` is not 0, the launch
        keeps its own memory for good, and must not run on two streams at once.
    by_address : bool
        Whether ``run`` reads only an array's address, so that it also takes an `Address`, and enqueues on
        `addresses.current_stream`.
    calls_blas : bool
        Whether ``run`` calls cuBLAS, which takes the host several times as long as launching kernels.
    within : callable (channels) -> run, optional
        Gives the ``run`` that writes y as some of so many channels of a larger tensor, nhwc: its y is the address of
        the first of them; this and the bytes of a pixel are multiples of 16. None where y is only written whole.
    behind_prologue : callable (channels) -> run, optional
        Gives the ``run`` that reads x as the first of so many channels of a tensor, nhwc, and convolves max(x * scale +
        shift, 0), rounded to x's type: it is called with x, weight, y, then scale and shift by channel, float32 of
        shape (2,C), then the operands of the epilogue. x begins at a multiple of 16 bytes, as its pixels do. None where
        x is only read as it is.
    """

    run: Callable[..., None]
    workspace_bytes: int = 0
    plan: dict[str, Any] = field(default_factory=dict)
    scratch: tuple[Scratch, ...] = ()
    by_address: bool = False
    calls_blas: bool = False
    within: Callable[[int], Callable[..., None]] | None = None
    behind_prologue: Callable[[int], Callable[..., None]] | None = None


def why_not(variant: Variant, problem: ConvProblem, device: Device) -> str | None:
    """Why a variant does not compute a problem on a device, whatever the device's kind; None where it does."""
    kind = variant.backend.device_kind
    if kind != device.kind:
        return f"it runs on {kind} devices, and {device.id} is {device.kind}"
    return variant.why_not(problem, device)


def no_workspace(_problem: ConvProblem, _device: Device) -> int:
    """Workspace of a variant that needs none."""
    return 0


def unknown_workspace(_problem: ConvProblem, _device: Device) -> None:
    """Workspace that only the library knows."""
    return


_PARTS: Final[dict[Rule, tuple[Rule, ...]]] = {}
"""The rules that each rule of `all_of` combines."""
_OF_DEVICE: Final[set[Rule]] = set()
"""Rules that give the same answer for every problem."""


def parts_of(rule: Rule) -> tuple[Rule, ...]:
    """The elementary rules that a rule combines, in order: the first reason that they give is the rule's."""
    return _PARTS.get(rule, (rule,))


def of_device(rule: Rule) -> Rule:
    """Register a rule that depends on the device alone."""
    _OF_DEVICE.add(rule)
    return rule


def left_to_ask(rule: Rule, problem: ConvProblem, device: Device) -> tuple[Rule, ...] | None:
    """The parts of a rule that depend on the problem; None where another part already refuses the device.

    Parameters
    ----------
    rule : Rule
    problem : ConvProblem
        Any problem.
    device : Device
    """
    parts = parts_of(rule)
    if any(part(problem, device) for part in parts if part in _OF_DEVICE):
        return None
    return tuple(part for part in parts if part not in _OF_DEVICE)


def all_of(*rules: Rule) -> Rule:
    """A rule that gives the first reason of several rules; each can judge every problem, whatever the others say."""
    # One plain loop over their elementary rules: a list of layers calls these 100,000 times a second.
    parts = tuple(part for rule in rules for part in parts_of(rule))

    def why_not(problem: ConvProblem, device: Device) -> str | None:
        for rule in parts:
            reason = rule(problem, device)
            if reason:
                return reason
        return None

    _PARTS[why_not] = parts
    return why_not


def padding_of(problem: ConvProblem) -> str:
    """A problem's padding as reasons write it: ``1x1``, or ``1x1 and 1x0`` where opposite sides differ."""
    begin = f"{problem.pad_h}x{problem.pad_w}"
    return f"{begin} and {problem.pad_h_end}x{problem.pad_w_end}" if problem.has_uneven_padding else begin


def _no_epilogue(problem: ConvProblem, _device: Device) -> str | None:
    return f"epilogue is {problem.epilogue}, and it computes the convolution alone" if problem.epilogue else None


@cache
def dtype_in(*dtypes: DType) -> Rule:
    """Applies to these dtypes."""
    reasons = {dtype: None if dtype in dtypes else f"dtype is {dtype}, not {' or '.join(dtypes)}" for dtype in DType}

    def why_not(problem: ConvProblem, _device: Device) -> str | None:
        return reasons[problem.dtype]

    return why_not


@cache
def layout_is(layout: Layout) -> Rule:
    """Applies to one layout."""
    reasons = {other: None if other is layout else f"layout is {other}, not {layout}" for other in Layout}

    def why_not(problem: ConvProblem, _device: Device) -> str | None:
        return reasons[problem.layout]

    return why_not


@cache
def bytes_as_in(layout: Layout) -> Rule:
    """Applies to one layout, and to problems whose tensors have the same bytes in it."""
    is_other = layout_is(layout)

    def why_not(problem: ConvProblem, device: Device) -> str | None:
        reason = is_other(problem, device)
        return None if reason is None or problem.is_alike_in_layouts else reason

    return why_not


@cache
def filter_is(*sizes: tuple[int, int]) -> Rule:
    """Applies to these filter sizes (r, s)."""
    allowed = " or ".join(f"{r}x{s}" for r, s in sizes)

    def why_not(problem: ConvProblem, _device: Device) -> str | None:
        if (problem.r, problem.s) in sizes:
            return None
        return f"filter is {problem.r}x{problem.s}, not {allowed}"

    return why_not


def stride_1(problem: ConvProblem, _device: Device) -> str | None:
    """Applies to stride 1."""
    if problem.stride_h == problem.stride_w == 1:
        return None
    return f"stride is {problem.stride_h}x{problem.stride_w}, not 1x1"


def dilation_1(problem: ConvProblem, _device: Device) -> str | None:
    """Applies to dilation 1."""
    if problem.dilation_h == problem.dilation_w == 1:
        return None
    return f"dilation is {problem.dilation_h}x{problem.dilation_w}, not 1x1"


def groups_1(problem: ConvProblem, _device: Device) -> str | None:
    """Applies to one group."""
    return None if problem.groups == 1 else f"groups is {problem.groups}, not 1"


@cache
def at_least_capability(capability: str) -> Rule:
    """Applies from this compute capability on."""
    least = _numbers(capability)

    def why_not(_problem: ConvProblem, device: Device) -> str | None:
        if _numbers(device.capability or "0.0") >= least:
            return None
        return f"compute capability is {device.capability or 'unknown'}, below {capability}"

    return of_device(why_not)


@cache
def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))
