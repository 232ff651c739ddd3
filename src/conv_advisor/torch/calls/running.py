"""One variant, ready to run on PyTorch's tensors: nothing is copied, kept or waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

import cupy
import numpy as np
import torch
from cupy.cuda import Device, MemoryPointer, Stream, UnownedMemory

from conv_advisor.data.errors import NotSupported
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem
from conv_advisor.kernels.addresses import ASKED, Address
from conv_advisor.kernels.cuda.checks import storage_type
from conv_advisor.kernels.variant import Launch
from conv_advisor.torch.calls.layers import MEMORY_FORMATS, TORCH_DTYPES

_LOCK: Final = threading.Lock()
"""Handles of cuDNN and cuBLAS serve one thread at a time, and so does scratch memory while it is lent."""

_ALIGNMENT_BYTES: Final = 16
"""Operands begin at a multiple of this, as cuDNN and the vector loads of our kernels want it."""
_SCRATCH_ALIGNMENT_BYTES: Final = 256
_MOST_KEPT: Final = 64
"""Arrays that one variant keeps: making one takes the host longer than a short kernel runs, and in a model that is
called again and again operands lie where they lay."""


class Prepared:
    """One variant for one problem on one device: called with x, weight and what its epilogue adds, it returns y.

    It runs on PyTorch's current stream. y and scratch memory are PyTorch's, taken anew by each call, so that calls on
    several streams do not meet there and a captured graph owns what it uses.

    Parameters
    ----------
    problem : ConvProblem
    launch : Launch
        Its scratch memory is freed: each call lends it other memory.
    device : torch.device

    Raises
    ------
    NotSupported
        The launch keeps its scratch memory for good.

    Attributes
    ----------
    plan : dict
        What rebuilds it, with the variant's id, as in `Measurement.plan`.
    calls_blas : bool
        As `Launch` has it.
    writes_within : bool
        Whether `run_within` may write y.
    takes_prologue : bool
        Whether `run_behind_prologue` may run.
    """

    def __init__(self, problem: ConvProblem, launch: Launch, device: Any) -> None:
        self.plan, self.calls_blas = launch.plan, launch.calls_blas
        self._run, self._by_address = launch.run, launch.by_address
        self._within, self._runs_within = launch.within, dict[int, Callable[..., None]]()
        self.writes_within = launch.within is not None
        self._behind, self._runs_behind = launch.behind_prologue, dict[int, Callable[..., None]]()
        self.takes_prologue = launch.behind_prologue is not None
        self._device, self._place = device.index, device
        self._shape = (problem.n, problem.k, problem.p, problem.q)
        self._dtype = TORCH_DTYPES[problem.dtype]
        self._memory_format = MEMORY_FORMATS[problem.layout]
        shapes = problem.shapes
        ends = [shapes.get("bias"), shapes.get("residual")]
        self._shapes = [problem.x_shape, problem.weight_shape, problem.y_shape, *(ends if any(ends) else ())]
        self._operands = [shape and Address() for shape in self._shapes]
        self._given = [operand for operand in self._operands if operand]
        self._prologue = Address()
        self._given_behind = [*self._given[:3], self._prologue, *self._given[3:]]
        self._kept: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._storage = np.dtype(storage_type(problem.dtype))
        self._scratch = launch.scratch
        if launch.workspace_bytes and not self._scratch:
            raise NotSupported("its scratch memory cannot be lent")
        self._offsets, self._scratch_bytes = [], 0
        for scratch in self._scratch:
            scratch.free()
            self._offsets.append(self._scratch_bytes)
            self._scratch_bytes += -(-scratch.nbytes // _SCRATCH_ALIGNMENT_BYTES) * _SCRATCH_ALIGNMENT_BYTES

    def __call__(self, x: Any, weight: Any, *ends: Any) -> Any:
        """y; None where an operand is not aligned."""
        y = torch.empty(self._shape, dtype=self._dtype, device=x.device, memory_format=self._memory_format)
        return y if self.run_into(x, weight, y, *ends) else None

    def warm(self) -> None:
        """Run once on operands of no meaning, so that everything is loaded before a capture."""
        x, weight, _, *ends = (shape and self._zeros(shape) for shape in self._shapes)
        self(x, weight, *ends)
        torch.cuda.synchronize()

    def warm_behind_prologue(self) -> None:
        """The same behind a prologue, which it must take."""
        x, weight, y, *ends = (shape and self._zeros(shape) for shape in self._shapes)
        prologue = torch.zeros(2, self._shapes[0][3], device=self._place)
        self.run_behind_prologue(x, weight, y, prologue, *ends, channels=self._shapes[0][3])
        torch.cuda.synchronize()

    def run_into(self, x: Any, weight: Any, y: Any, *ends: Any) -> bool:
        """Enqueue the convolution; y is dense in the problem's layout, as are the operands.

        Bias and residual follow where the epilogue adds them; None for one that it does not add is passed over.

        Returns
        -------
        is_enqueued : bool
            False where an operand is not aligned as kernels want it: nothing happens then.
        """
        if torch.cuda.current_device() != self._device:  # a model on one device, called while another is current
            with torch.cuda.device(self._device):
                return self.run_here(x, weight, y, *ends)
        return self.run_here(x, weight, y, *ends)

    def run_within(self, x: Any, weight: Any, y: Any, *ends: Any) -> bool:
        """`run_here` where y is some of the channels of a larger tensor, nhwc; False also where it cannot write so."""
        channels = y.stride(3)
        run = self._runs_within.get(channels)
        if run is None:
            if self._within is None or channels * self._storage.itemsize % _ALIGNMENT_BYTES:
                return False
            run = self._runs_within[channels] = self._within(channels)
        return self.run_here(x, weight, y, *ends, run=run)

    def run_behind_prologue(self, x: Any, weight: Any, y: Any, prologue: Any, *ends: Any, channels: int) -> bool:
        """`run_here` of max(x * scale + shift, 0), where x is the first of so many channels, nhwc.

        ``prologue`` has scale and shift, float32 of shape (2,C). False also where it takes no prologue.
        """
        run = self._runs_behind.get(channels)
        if run is None:
            count = prod(self._shapes[0][:3]) * channels
            if self._behind is None or channels * self._storage.itemsize % _ALIGNMENT_BYTES or count > MAX_ELEMENTS:
                return False
            behind = self._behind(channels)
            run = self._runs_behind[channels] = lambda *operands: behind(*operands[:3], self._prologue, *operands[3:])
        return self.run_here(x, weight, y, prologue, *ends, run=run, given=self._given_behind)

    def run_here(
        self, *tensors: Any, run: Callable[..., None] | None = None, given: Sequence[Address] | None = None
    ) -> bool:
        """`run_into` where the device is the current one, as within a graph that Inductor compiled.

        It is what each layer costs the host: nothing is looked up here that could be known before.
        """
        addresses = [tensor.data_ptr() for tensor in tensors if tensor is not None]
        bits = 0
        for address in addresses:
            bits |= address
        if bits % _ALIGNMENT_BYTES:
            return False
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        memory = torch.empty(self._scratch_bytes, dtype=torch.uint8, device=self._place) if self._scratch else None
        with _LOCK:
            if memory is not None:
                begin = memory.data_ptr()
                for scratch, offset in zip(self._scratch, self._offsets, strict=True):
                    scratch.ptr = begin + offset
            for operand, address in zip(given or self._given, addresses, strict=True):
                operand.ptr = address
            if run is None and not self._by_address:
                self._run_arrays(stream)
                return True
            ASKED.stream = stream
            try:
                (run or self._run)(*self._operands)
            finally:
                ASKED.stream = None
        return True

    def _run_arrays(self, stream: int) -> None:
        """Run a launch that takes arrays alone, on the operands at the addresses that they have now."""
        shapes = zip(self._operands, self._shapes, strict=True)
        arrays = [shape and self._array(operand.ptr, shape) for operand, shape in shapes]
        with _stream(stream, self._device):
            self._run(*arrays)

    def _array(self, address: int, shape: tuple[int, ...]) -> Any:
        """Memory as kernels take it: an array that owns none, and may be kept while others have the memory."""
        array = self._kept.get((address, shape))
        if array is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            memory = UnownedMemory(address, prod(shape) * self._storage.itemsize, None, self._device)
            array = self._kept[address, shape] = cupy.ndarray(shape, self._storage, MemoryPointer(memory, 0))
        return array

    def _zeros(self, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=self._dtype, device=self._place)


class _Foreign(NamedTuple):
    """A stream by its address, as other libraries hand theirs to CuPy."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


@cache
def _stream(address: int, device: int) -> Any:
    with Device(device):  # a stream is the current device's; several devices have one of the same address
        return Stream.from_external(_Foreign(address))
