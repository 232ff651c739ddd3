"""The languages that programs are written in."""

from __future__ import annotations

from enum import StrEnum


class Language(StrEnum):
    """What a program is written in and for."""

    PYTHON = "python"
    """NumPy arrays on a CPU, CuPy arrays on a GPU."""
    TORCH = "torch"
    """Python, on PyTorch's tensors and stream."""
    C = "c"
    """cuDNN's legacy API alone; CUDA C++ where a kernel follows its call."""
