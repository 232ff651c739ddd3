"""One variant, ready to run on PyTorch's tensors: nothing is copied, kept or waited for."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, Final

import cupy
import torch
from cupy.cuda import ExternalStream, MemoryPointer, UnownedMemory

from conv_advisor.data.errors import NotSupported
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.checks import storage_type
from conv_advisor.kernels.variant import Launch
from conv_advisor.torch.layers import MEMORY_FORMATS, TORCH_DTYPES

_LOCK: Final = threading.Lock()
"""Handles of cuDNN and cuBLAS serve one thread at a time, and so does scratch memory while it is lent."""

_SCRATCH_ALIGNMENT_BYTES: Final = 256


class Prepared:
    """One variant for one problem on one device: called with x and weight, it returns y.

    It runs on PyTorch's current stream. y and scratch memory are PyTorch's, taken anew by each call, so that calls on
    several streams do not meet there and a captured graph owns what it uses.

    Parameters
    ----------
    problem : ConvProblem
    launch : Launch
        Its scratch memory is freed: each call lends other.
    device : int

    Raises
    ------
    NotSupported
        The launch keeps its scratch memory for good.
    """

    def __init__(self, problem: ConvProblem, launch: Launch, device: int) -> None:
        self.plan = launch.plan
        self._run = launch.run
        self._device = device
        self._shape = (problem.n, problem.k, problem.p, problem.q)
        self._dtype = TORCH_DTYPES[problem.dtype]
        self._memory_format = MEMORY_FORMATS[problem.layout]
        storage = storage_type(problem.dtype)
        self._arrays = [
            (shape, storage, bytes_)
            for shape, bytes_ in (
                (problem.x_shape, problem.x_bytes),
                (problem.weight_shape, problem.weight_bytes),
                (problem.y_shape, problem.y_bytes),
            )
        ]
        self._scratch = launch.scratch
        if launch.workspace_bytes and not self._scratch:
            raise NotSupported("its scratch memory cannot be lent")
        self._offsets, self._scratch_bytes = [], 0
        for scratch in self._scratch:
            scratch.free()
            self._offsets.append(self._scratch_bytes)
            self._scratch_bytes += -(-scratch.nbytes // _SCRATCH_ALIGNMENT_BYTES) * _SCRATCH_ALIGNMENT_BYTES

    def __call__(self, x: Any, weight: Any) -> Any:
        y = torch.empty(self._shape, dtype=self._dtype, device=x.device, memory_format=self._memory_format)
        self.run_into(x, weight, y)
        return y

    def warm(self) -> None:
        """Run once on operands of no meaning, so that everything is loaded before a capture."""
        device = f"cuda:{self._device}"
        x, weight = (torch.zeros(bytes_, dtype=torch.uint8, device=device) for _, _, bytes_ in self._arrays[:2])
        self(x, weight)
        torch.cuda.synchronize()

    def run_into(self, x: Any, weight: Any, y: Any) -> None:
        """Enqueue the convolution; y is dense in the problem's layout."""
        arrays = [
            cupy.ndarray(shape, dtype, MemoryPointer(UnownedMemory(tensor.data_ptr(), bytes_, None, self._device), 0))
            for tensor, (shape, dtype, bytes_) in zip((x, weight, y), self._arrays, strict=True)
        ]
        stream = _stream(torch._C._cuda_getCurrentRawStream(self._device))
        with _LOCK, stream:
            if not self._scratch:
                self._run(*arrays)
                return
            memory = torch.empty(self._scratch_bytes, dtype=torch.uint8, device=x.device)
            address = memory.data_ptr()
            for scratch, offset in zip(self._scratch, self._offsets, strict=True):
                scratch.ptr = address + offset
            self._run(*arrays)


@cache
def _stream(address: int) -> Any:
    return ExternalStream(address)
