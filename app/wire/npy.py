"""Tensors as NumPy's .npy: the header is read by hand and checked against the body before anything is believed.

A body holds one array after the other, as ``cat x.npy weight.npy`` gives them. `numpy.load` is not used: it allocates
what the header asks for before it looks whether the data are there, and evaluates the header as Python.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from conv_advisor.app.wire.safetensors import MAX_DIMENSIONS, as_bytes
from conv_advisor.data.errors import InvalidTensor

if TYPE_CHECKING:
    from conv_advisor.app.wire.body import Bytes
    from conv_advisor.app.wire.parts import Parts

MAX_HEADER_BYTES: Final = 1024
"""NumPy writes 128 bytes where there are four dimensions."""

_MAGIC: Final = b"\x93NUMPY"
_ALIGNMENT: Final = 64
_HEADER: Final = re.compile(
    rb"\{ *'descr': *'([<>|=]?\w{1,16})', *'fortran_order': *(True|False),"
    rb" *'shape': *\(((?:\d{1,10}, ?)*\d{0,10})\),? *\} *\n?"
)
_DTYPES: Final[dict[bytes, np.dtype[Any]]] = {
    b"<f4": np.dtype(np.float32),
    b"<f2": np.dtype(np.float16),
    b"<V2": np.dtype(ml_dtypes.bfloat16),
    b"|V2": np.dtype(ml_dtypes.bfloat16),
}
"""The format has no name for bfloat16: libraries write two bytes without a meaning."""


def read_npy(body: Bytes, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Take a body of several arrays apart without copying it.

    Parameters
    ----------
    body : uint8 array
    names : tuple of str
        What the arrays are, in order.

    Returns
    -------
    dict of str to array
        Views of the body.

    Raises
    ------
    InvalidTensor
        Naming what in which header is false.
    """
    tensors, rest = {}, body
    for name in names:
        if not len(rest):
            raise InvalidTensor(name, "missing", f"{' and '.join(names)}, one .npy after the other")
        dtype, shape, start = _header(name, rest)
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(rest):
            raise InvalidTensor(f"{name}.shape", shape, f"no more than the {len(rest) - start} bytes that follow")
        tensors[name] = rest[start:end].view(dtype).reshape(shape)
        rest = rest[end:]
    if len(rest):
        raise InvalidTensor("body", f"{len(rest)} bytes after {names[-1]}", "none")
    return tensors


def write_npy(y: np.ndarray) -> Parts:
    """One array: its header, and its own bytes."""
    descr = next(name for name, dtype in _DTYPES.items() if dtype == y.dtype).decode()
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {y.shape}, }}".encode()
    padding = -(len(_MAGIC) + 4 + len(header) + 1) % _ALIGNMENT
    header += b" " * padding + b"\n"
    return b"".join((_MAGIC, b"\x01\x00", len(header).to_bytes(2, "little"), header)), as_bytes(y)


def _header(name: str, data: Bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Element type, shape, and where the data begin."""
    start = data[:12].tobytes()
    if start[:6] != _MAGIC or len(start) < 12 or start[6] not in (1, 2, 3):
        raise InvalidTensor(name, start[:8], "an array in NumPy's format .npy, version 1, 2 or 3")
    size_bytes = 2 if start[6] == 1 else 4
    length = int.from_bytes(start[8 : 8 + size_bytes], "little")
    offset = 8 + size_bytes
    if length > min(MAX_HEADER_BYTES, len(data) - offset):
        raise InvalidTensor(
            f"{name}, length of its header", length, f"at most {MAX_HEADER_BYTES} bytes, and those there are"
        )
    text = data[offset : offset + length].tobytes()
    match = _HEADER.fullmatch(text)
    if match is None:
        raise InvalidTensor(f"{name}, its header", text, "descr, fortran_order and shape, as NumPy writes them")
    dtype = _DTYPES.get(match[1])
    if dtype is None:
        raise InvalidTensor(f"{name}.dtype", match[1].decode(), ", ".join(each.decode() for each in _DTYPES))
    if match[2] != b"False":
        raise InvalidTensor(f"{name}.fortran_order", True, "False: rows one after the other")
    shape = tuple(int(size) for size in match[3].split(b",") if size.strip())
    if len(shape) != MAX_DIMENSIONS:
        raise InvalidTensor(f"{name}.shape", shape, f"{MAX_DIMENSIONS} sizes")
    return dtype, shape, offset + length
