"""Tensors as NumPy's .npy: NumPy reads the header, which is checked against the body before it is used.

A body holds one array after the other, as ``cat x.npy weight.npy`` writes them. `numpy.load` is not used: it allocates
the size in the header before it checks that the data are there.
"""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
from numpy.lib import format as npy_format

from conv_advisor.app.wire.safetensors import as_bytes, checked_shape, sizes_of
from conv_advisor.data.errors import InvalidTensor

if TYPE_CHECKING:
    from conv_advisor.app.wire.body import Bytes
    from conv_advisor.app.wire.parts import Parts

MAX_HEADER_BYTES: Final = 1024
"""NumPy writes 128 bytes for four dimensions."""

_BEFORE_HEADER_BYTES: Final = npy_format.MAGIC_LEN + 4
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "<f4": np.dtype(np.float32),
    "<f2": np.dtype(np.float16),
    "|V2": np.dtype(ml_dtypes.bfloat16),
}
"""The format has no name for bfloat16: libraries write it as two opaque bytes."""
_UNREADABLE: Final = (
    *(ValueError, TypeError, OverflowError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError),
)
"""Errors that NumPy and Python's reader of literals raise on 1,024 arbitrary bytes."""


def read_npy(body: Bytes, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Take a body of several arrays apart without copying it.

    Parameters
    ----------
    body : uint8 array
    names : tuple of str
        Names of the arrays, in order.

    Returns
    -------
    dict of str to array
        Views of the body.

    Raises
    ------
    InvalidTensor
        Naming the header and its wrong field.
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
    descr = next(name for name, dtype in _DTYPES.items() if dtype == y.dtype)
    file = io.BytesIO()
    npy_format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": y.shape})
    return file.getvalue(), as_bytes(y)


def _header(name: str, data: Bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Element type, shape, and where the data begin."""
    file = io.BytesIO(data[: _BEFORE_HEADER_BYTES + MAX_HEADER_BYTES].tobytes())
    try:
        with warnings.catch_warnings(action="ignore"):  # about files of Python 2, which are read all the same
            version = npy_format.read_magic(file)
            read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
            if version not in ((1, 0), (2, 0), (3, 0)):  # 3 differs from 2 in names of fields, of which there are none
                raise ValueError(f"version {version}")
            shape, is_fortran, dtype = read(file, max_header_size=MAX_HEADER_BYTES)
    except _UNREADABLE as error:
        allowed = f"NumPy's format .npy, version 1, 2 or 3, in at most {MAX_HEADER_BYTES} bytes ({error})"
        raise InvalidTensor(f"{name}, its header", data[:40].tobytes(), allowed) from None
    if dtype.str not in _DTYPES or dtype.fields or dtype.subdtype:
        allowed = "float32, float16, or bfloat16 as two opaque bytes (V2); little-endian"
        raise InvalidTensor(f"{name}.dtype", str(dtype), allowed)
    if is_fortran:
        raise InvalidTensor(f"{name}.fortran_order", True, "False: rows one after the other")
    if not all(type(size) is int for size in shape):
        raise InvalidTensor(f"{name}.shape", shape, sizes_of(name))
    return _DTYPES[dtype.str], checked_shape(name, shape), file.tell()
