"""Arrays of a safetensors file as views of its content, which is read once and never copied."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_ORDERED: Final = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
}
"""Element types by their name in safetensors: those of trees, and those that NumPy makes by default."""


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def read_whole(file: Path) -> memoryview:
    """The content of a file, in memory of its own: it stays whatever becomes of the file.

    Raises
    ------
    OSError
    """
    with file.open("rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        # Large pages where there are any: mapping small ones takes twice as long as reading their content.
        pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        content = memoryview(pages)[:size]
        length = opened.readinto(content)
    return content[:length].toreadonly()


def arrays_in(content: bytes | memoryview) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, each a read-only view of its content.

    Raises
    ------
    ValueError
        The content is no such file, or has a type that is not one of a tree's.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    if start > len(content):
        raise ValueError(f"its header ends at {start} of {len(content)} bytes")
    try:
        header = msgspec.json.decode(content[8:start], type=dict[str, _Entry])
    except msgspec.MsgspecError as error:
        raise ValueError(f"its header is wrong: {error}") from error
    return {name: _view(content, start, entry) for name, entry in header.items()}


def _view(content: bytes | memoryview, start: int, entry: _Entry) -> np.ndarray:
    if entry.dtype not in _ORDERED:
        raise ValueError(f"its type is {entry.dtype}; allowed: {', '.join(_ORDERED)}")
    dtype, count = np.dtype(_ORDERED[entry.dtype]), math.prod(entry.shape)
    first, last = entry.data_offsets
    if last - first != count * dtype.itemsize:
        raise ValueError(f"{entry.data_offsets} are not the bytes of {entry.dtype} {entry.shape}")
    view = np.frombuffer(content, dtype, count, start + first) if count else np.empty(0, dtype)
    return np.require(view.reshape(entry.shape), requirements="A")
