"""Messages between a worker process and its parent: tensors are sent from and read into their memory without copies."""

from __future__ import annotations

import os
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any, Final

_COUNT: Final = struct.Struct("!Q")
_AT_ONCE: Final = 2**30
"""Bytes that Linux reads in one call."""


def send(pipe: Connection[Any, Any], message: Any) -> None:
    """Send a message without copying its arrays.

    Raises
    ------
    OSError
        The other end is closed.
    Exception
        The message cannot be pickled; nothing was sent.
    """
    arrays: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
    parts = [array.raw() for array in arrays]
    pipe.send_bytes(b"".join(_COUNT.pack(part.nbytes) for part in parts))
    pipe.send_bytes(rest)
    for part in parts:
        _write(pipe.fileno(), part)


def receive(pipe: Connection[Any, Any]) -> Any:
    """The next message; its arrays are read directly into their final memory.

    Raises
    ------
    EOFError, OSError
        The other end is closed, maybe in the middle of a message.
    """
    return unpack(receive_packed(pipe))


Packed = tuple[bytes, list[bytearray]]
"""A message that has arrived: its pickle, and the bytes of its arrays."""


def receive_packed(pipe: Connection[Any, Any]) -> Packed:
    """The next message, not yet unpickled; see `receive`."""
    counts = pipe.recv_bytes()
    rest = pipe.recv_bytes()
    return rest, [_read(pipe.fileno(), count) for (count,) in _COUNT.iter_unpack(counts)]


def unpack(packed: Packed) -> Any:
    """The message; if this fails, as where the sender has other modules, the pipe is still sound."""
    rest, arrays = packed
    return pickle.loads(rest, buffers=arrays)  # noqa: S301 - from a process that this one has started, or its parent


def _write(descriptor: int, part: memoryview) -> None:
    with part.cast("B") as left:
        written = 0
        while written < left.nbytes:
            written += os.write(descriptor, left[written : written + _AT_ONCE])


def _read(descriptor: int, count: int) -> bytearray:
    buffer = bytearray(count)
    with memoryview(buffer) as whole:
        filled = 0
        while filled < count:
            got = os.readv(descriptor, [whole[filled : filled + _AT_ONCE]])
            if got == 0:
                raise EOFError
            filled += got
    return buffer
