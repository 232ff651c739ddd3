"""Tensors in and out: safetensors, whose header is checked before it is used, and small nested lists in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidTensor
from conv_advisor.data.problem import MAX_ELEMENTS

if TYPE_CHECKING:
    from conv_advisor.app.wire.body import Bytes
    from conv_advisor.app.wire.parts import Parts

MAX_HEADER_BYTES: Final = 64 * 1024
"""Two tensors and thirty parameters take under 2 KiB."""

MAX_DIMENSIONS: Final = 4

_DIMENSIONS: Final = {"bias": 1}
"""Dimensions of the tensors that have fewer than `MAX_DIMENSIONS`."""

NEEDED: Final = ("x", "weight")
"""Tensors that every convolution with given operands has."""

OPTIONAL: Final = ("bias", "residual")
"""Tensors that are added to y, where they are given."""

STORED: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""Element types by their name in safetensors."""

_SPECIAL: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_LACKING: Final = {None: math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBERS: Final = frozenset((int, float))
_ORDERED: Final = ("shape", "dtype", "data_offsets")


def read_safetensors(
    body: Bytes, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors body without copying it.

    Parameters
    ----------
    body : uint8 array
    names : tuple of str
        Tensors it must hold.
    optional : tuple of str
        Tensors it may hold besides, and no others.

    Returns
    -------
    tensors : dict of str to array
        Views of the body.
    metadata : dict of str to str

    Raises
    ------
    InvalidTensor
        Naming the field of the header that is wrong.
    """
    header, data = _split(body)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InvalidTensor("__metadata__", metadata, "an object of strings")
    check_names("header", header, names, optional)
    tensors, spans = {}, []
    for name, entry in header.items():
        dtype, shape, (start, end) = _entry(name, entry, len(data))
        spans.append((start, end))
        tensors[name] = data[start:end].view(dtype).reshape(shape)
    _check_spans(spans, len(data))
    return tensors, metadata


def write_safetensors(y: np.ndarray, metadata: Mapping[str, str]) -> Parts:
    """One tensor, ``y``, with its metadata: the header, and y's bytes uncopied; the library would copy them twice."""
    stored = next(name for name, dtype in STORED.items() if dtype == y.dtype)
    entry = {"dtype": stored, "shape": y.shape, "data_offsets": [0, y.nbytes]}
    header = json.dumps({"__metadata__": dict(metadata), "y": entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, as_bytes(y)


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def from_lists(name: str, lists: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """An array from nested lists of numbers, as `numbers` reads them.

    Raises
    ------
    InvalidTensor
    """
    array = numbers(name, lists, dtype)
    if array.ndim != dimensions_of(name):
        levels = counted(dimensions_of(name), "level")
        raise InvalidTensor(f"{name}.shape", array.shape, f"{levels} of lists")
    return array


def numbers(name: str, lists: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """An array from lists, nested or not; null or "NaN", "Infinity" and "-Infinity" stand for what JSON lacks.

    Raises
    ------
    InvalidTensor
    """
    try:
        with np.errstate(over="ignore"):  # a number beyond the type's range is infinite in it, as IEEE says
            return np.asarray(_plain(name, lists), np.float64).astype(dtype)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        allowed = f"nested lists of numbers, every list of one level as long ({error})"
        raise InvalidTensor(name, lists, allowed) from None


def checked_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """A tensor's shape, before anything of its size is made.

    Raises
    ------
    InvalidTensor
        The shape has not four sizes (a bias: one), or a size out of range; beside a size of 0, NumPy refuses huge
        other sizes.
    """
    if len(shape) != dimensions_of(name) or not all(1 <= size <= MAX_ELEMENTS for size in shape):
        raise InvalidTensor(f"{name}.shape", tuple(shape), f"{sizes_of(name)} from 1 to {MAX_ELEMENTS}")
    return tuple(shape)


def dimensions_of(name: str) -> int:
    """How many sizes a tensor of this name has."""
    return _DIMENSIONS.get(name, MAX_DIMENSIONS)


def check_names(field: str, tensor_names: Iterable[str], names: tuple[str, ...], optional: tuple[str, ...]) -> None:
    """Refuse tensors of other names than these, or two of one.

    Raises
    ------
    InvalidTensor
    """
    sorted_names = sorted(tensor_names)
    if not set(names) <= set(sorted_names) <= {*names, *optional} or len(set(sorted_names)) != len(sorted_names):
        allowed = f"exactly the tensors {' and '.join(names)}"
        raise InvalidTensor(
            field, sorted_names, f"{allowed}, and maybe {' and '.join(optional)}" if optional else allowed
        )


def sizes_of(name: str) -> str:
    """How many sizes a tensor of this name has, in words."""
    return counted(dimensions_of(name), "size")


def to_lists(array: np.ndarray) -> Any:
    """Nested lists of numbers; NaN and infinities are the strings "NaN", "Infinity" and "-Infinity"."""
    if np.isfinite(array).all():
        return array.astype(np.float64).tolist()
    return _named(array.astype(np.float64).tolist())


def _plain(name: str, value: Any) -> Any:
    """The lists with numbers alone: other values that NumPy would read as one, such as "1_000" or true, are refused."""
    if isinstance(value, list):
        return value if {*map(type, value)} <= _NUMBERS else [_plain(name, item) for item in value]
    if type(value) in _NUMBERS:
        return value
    if value is None or (isinstance(value, str) and value in _LACKING):
        return _LACKING[value]
    raise InvalidTensor(name, value, 'numbers; null or "NaN", "Infinity" and "-Infinity" for what JSON lacks')


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(item) for item in value]
    return value if math.isfinite(value) else _SPECIAL.get(value, "NaN")


def _split(body: Bytes) -> tuple[dict[str, Any], Bytes]:
    if len(body) < 8:
        raise InvalidTensor("body", f"{len(body)} bytes", "safetensors: 8 bytes of header length, header, data")
    length = int.from_bytes(body[:8].tobytes(), "little")
    most = min(MAX_HEADER_BYTES, len(body) - 8)
    if length > most:
        raise InvalidTensor("header length", length, f"at most {most} bytes here")
    try:
        # Decoded first: from bytes, Python's reader would guess the encoding, and accept UTF-16 and a byte order mark.
        header = json.loads(body[8 : 8 + length].tobytes().decode("utf-8"), object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise InvalidTensor("header", str(error), "a JSON object in UTF-8, without a byte order mark") from None
    if not isinstance(header, dict):
        raise InvalidTensor("header", header, "a JSON object")
    return header, body[8 + length :]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(pairs)
    if len(by_name) != len(pairs):
        raise InvalidTensor("header", [name for name, _ in pairs], "every name once")
    return by_name


def _entry(name: str, entry: Any, data_bytes: int) -> tuple[np.dtype[Any], tuple[int, ...], tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != set(_ORDERED):
        raise InvalidTensor(name, entry, f"an object of {', '.join(_ORDERED)}")
    dtype = STORED.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise InvalidTensor(f"{name}.dtype", entry["dtype"], ", ".join(STORED))
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _is_naturals(shape):
        raise InvalidTensor(f"{name}.shape", shape, sizes_of(name))
    shape = checked_shape(name, shape)
    if not _is_naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise InvalidTensor(f"{name}.data_offsets", offsets, f"[start, end] within the {data_bytes} bytes of data")
    needed = math.prod(shape) * dtype.itemsize
    if needed != offsets[1] - offsets[0]:
        raise InvalidTensor(f"{name}.data_offsets", offsets, f"{needed} bytes, which {entry['dtype']} {shape} takes")
    return dtype, shape, (offsets[0], offsets[1])


def _is_naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_spans(spans: list[tuple[int, int]], data_bytes: int) -> None:
    expected = 0
    for start, end in sorted(spans):
        if start != expected:
            raise InvalidTensor("data_offsets", spans, "tensors one after the other, with no gap and no overlap")
        expected = end
    if expected != data_bytes:
        raise InvalidTensor("data_offsets", spans, f"all of the {data_bytes} bytes of data")
