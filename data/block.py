"""A block of a shipped table: the attempts at some problems as columns, compressed together."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

_MOST_TEXT_BYTES: Final = 256
"""Bytes for the numbers of one detail, averaged over a block; a bound on what a broken file can make a reader hold."""

_ALWAYS: Final = {"variant": "<u2", "reason": "<u2", "run": "<u2", "at_s": "<u4", "says": "u1"}
"""Columns that every attempt has. ``says``: whether it has the others too; attempts that were never tried do not."""
_SAID: Final = {
    "n_samples": "<u2",
    "time_ms": "<f8",
    "noise": "<u2",
    "max_error": "<u2",
    "workspace_bytes": "<i8",
    "plan": "<u4",
}
"""Columns of attempts that were tried. Times are kept whole, so that training on them gives the same to the last bit.
Noise and errors are kept as bfloat16, which is off by at most 0.4 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """N attempts, those at one problem together.

    Parameters
    ----------
    variant, reason, run : uint16 arrays of shape (N,)
        Indices into the table's lists.
    at_s : uint32 array of shape (N,)
        Time of the attempt, in seconds since 1970.
    n_samples : uint16 array of shape (N,)
    time_ms : float64 array of shape (N,)
        Median of the samples; NaN where there are none.
    noise, max_error : float32 arrays of shape (N,)
        As in `data.measurement.Measurement`; NaN where there are none.
    workspace_bytes : int64 array of shape (N,)
        -1 where the variant never said.
    plan : uint32 array of shape (N,)
        Index into the table's list; 0 is no plan.
    numbers : list of N str
        The numbers for the gaps of the reason, separated by spaces.
    """

    variant: np.ndarray
    reason: np.ndarray
    run: np.ndarray
    at_s: np.ndarray
    n_samples: np.ndarray
    time_ms: np.ndarray
    noise: np.ndarray
    max_error: np.ndarray
    workspace_bytes: np.ndarray
    plan: np.ndarray
    numbers: list[str]

    def __len__(self) -> int:
        return len(self.variant)

    def rows(self, start: int, stop: int) -> Block:
        """Some of the attempts."""
        return Block(*(getattr(self, field.name)[start:stop] for field in fields(self)))


def encode(block: Block) -> bytes:
    """Compress a block: bytes of the same significance stand together, column by column."""
    says = (block.n_samples > 0) | (block.workspace_bytes >= 0) | ~np.isnan(block.max_error) | (block.plan > 0)
    values = {
        **{name: getattr(block, name) for name in _ALWAYS if name != "says"},
        "at_s": np.diff(block.at_s.astype(np.uint32), prepend=np.uint32(0)),
        "says": says,
        **{name: getattr(block, name)[says] for name in ("n_samples", "time_ms", "workspace_bytes", "plan")},
        **{name: _to_bfloat16(getattr(block, name)[says]) for name in ("noise", "max_error")},
    }
    planes = [_planes(values[name].astype(dtype)) for name, dtype in (_ALWAYS | _SAID).items()]
    return zlib.compress(b"".join([*planes, "\n".join(block.numbers).encode("ascii")]), 9)


def decode(content: bytes, n: int) -> Block:
    """Read what `encode` wrote of n attempts.

    Raises
    ------
    ValueError
        The content is not of that form.
    """
    most = n * (sum(np.dtype(dtype).itemsize for dtype in (_ALWAYS | _SAID).values()) + _MOST_TEXT_BYTES)
    planes = _Planes(_decompress(content, most))
    always = {name: planes.take(n, dtype) for name, dtype in _ALWAYS.items()}
    says = always.pop("says").astype(bool)
    tried = {name: planes.take(int(says.sum()), dtype) for name, dtype in _SAID.items()}
    numbers = planes.text().split("\n") if n else []
    if len(numbers) != n:
        raise ValueError(f"a block of {n} attempts has {len(numbers)} lines of numbers")
    return Block(
        **always | {"at_s": np.cumsum(always["at_s"], dtype=np.uint32)},
        n_samples=_spread(tried["n_samples"], says, 0),
        time_ms=_spread(tried["time_ms"], says, np.nan),
        noise=_spread(_from_bfloat16(tried["noise"]), says, np.nan),
        max_error=_spread(_from_bfloat16(tried["max_error"]), says, np.nan),
        workspace_bytes=_spread(tried["workspace_bytes"], says, -1),
        plan=_spread(tried["plan"], says, 0),
        numbers=numbers,
    )


def _decompress(content: bytes, most: int) -> bytes:
    """Decompress at most so many bytes: content that claims to be small must not become large.

    Raises
    ------
    ValueError
    """
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(raw) > most or not stream.eof or stream.unused_data:
        raise ValueError(f"it is no compressed stream of at most {most} bytes")
    return raw


def compress(values: np.ndarray) -> bytes:
    """Compress one array of integers."""
    return zlib.compress(_planes(values), 9)


def decompress(content: bytes, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Read what `compress` wrote.

    Raises
    ------
    ValueError
    """
    planes = _Planes(_decompress(content, int(np.prod(shape)) * np.dtype(dtype).itemsize))
    values = planes.take(int(np.prod(shape)), dtype).reshape(shape)
    if planes.text():
        raise ValueError("there is more than the shape says")
    return values


def compress_text(text: str) -> bytes:
    """Compress a text."""
    return zlib.compress(text.encode(), 9)


def decompress_text(content: bytes, most: int) -> str:
    """Read what `compress_text` wrote, of at most so many bytes.

    Raises
    ------
    ValueError
    """
    return _decompress(content, most).decode()


class _Planes:
    """Arrays taken one after the other from bytes that `_planes` made."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._place = raw, 0

    def take(self, n: int, dtype: str) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        if self._place + n * size > len(self._raw):
            raise ValueError(f"{len(self._raw)} bytes are too few")
        planes = np.frombuffer(self._raw, np.uint8, n * size, self._place).reshape(size, n)
        self._place += n * size
        return np.ascontiguousarray(planes.T).view(dtype).reshape(n)

    def text(self) -> str:
        return self._raw[self._place :].decode("ascii")


def _planes(values: np.ndarray) -> bytes:
    """The first byte of every value, then the second of every value, and so on: similar bytes compress well."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return np.frombuffer(little.tobytes(), np.uint8).reshape(-1, values.dtype.itemsize).T.tobytes()


def _spread(values: np.ndarray, says: np.ndarray, missing: float) -> np.ndarray:
    spread = np.full(len(says), missing, values.dtype)
    spread[says] = values
    return spread


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper half of float32, rounded to the nearest; infinity and NaN stay as they are."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _from_bfloat16(halves: np.ndarray) -> np.ndarray:
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
