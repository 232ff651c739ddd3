"""From an ONNX model's bytes to its outline, read in a process that a hostile model may bring down."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from tempfile import TemporaryFile
from typing import IO, Final

import msgspec

from conv_advisor.app.plans import onnx_reader
from conv_advisor.app.plans.outline import Outline, Read, Request
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.extras import require

MAX_BATCH: Final = 2**16
MAX_MODEL_BYTES: Final = 2**30
"""Longest model; protobuf allows none beyond 2 GiB."""
_PATIENCE_S: Final = 6 * onnx_reader.CPU_S
"""Longest wait for a reader on a busy machine; a reader ends by itself once its CPU time is spent."""
_CHECK_EVERY_S: Final = 0.25

_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG")


def read_outline(
    body: bytes | memoryview,
    *,
    batch: int,
    dims: Mapping[str, int] | None = None,
    check: Callable[[], object] = lambda: None,
) -> Outline:
    """The outline of a model for one batch.

    Parameters
    ----------
    body : bytes
        A serialized ``ModelProto``.
    batch : int
        First dimension of the inputs.
    dims : mapping of str to int
        Sizes of other symbolic dimensions by name.
    check : callable
        Called now and then while the process reads; what it raises ends the reading.

    Raises
    ------
    InvalidInput
        The body is no readable model, or reading it takes too long or too much memory.
    NotInstalled
    """
    require("onnx")
    if len(body) > MAX_MODEL_BYTES:
        raise InvalidInput("model", f"{len(body)} bytes", f"at most {MAX_MODEL_BYTES} bytes; leave its weights outside")
    if not 1 <= batch <= MAX_BATCH:
        raise InvalidInput("batch", batch, f"an integer from 1 to {MAX_BATCH}")
    head = msgspec.json.encode(Request(batch, dict(dims or {}))) + b"\n"
    answer = _asked(head, body, check)
    if answer.fault is not None:
        raise InvalidInput(answer.fault.field, answer.fault.value, answer.fault.allowed)
    assert answer.outline is not None  # noqa: S101 - the reader answers one of both
    return answer.outline


def _asked(head: bytes, body: bytes | memoryview, check: Callable[[], object]) -> Read:
    allowed = (
        f"one that is read within {onnx_reader.CPU_S} s of CPU time and {onnx_reader.MEMORY_BYTES} bytes of memory"
    )
    command = [sys.executable, "-P", "-m", onnx_reader.__name__]  # imports no module from the working directory
    # Only what Python needs to find its packages, and no secret. Thread pools of libraries would use up address space.
    environment = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        with (
            _file(head, body) as sent,
            subprocess.Popen(  # noqa: S603 - our own words
                command, stdin=sent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            ) as reader,
        ):
            try:
                return msgspec.msgpack.decode(_answer(reader, check), type=Read)
            finally:
                reader.kill()  # has ended already, unless it is given up
    except subprocess.TimeoutExpired:
        raise InvalidInput("model", f"{len(body)} bytes", allowed) from None
    except msgspec.MsgspecError:
        raise InvalidInput(
            "model", f"{len(body)} bytes, of which reading ended with {reader.returncode}", allowed
        ) from None


def _file(*parts: bytes | memoryview) -> IO[bytes]:
    """A file with these parts, in memory if the system can: writing to a pipe would wait for the reader."""
    in_memory = hasattr(os, "memfd_create")
    file = os.fdopen(os.memfd_create("model"), "w+b") if in_memory else TemporaryFile()  # noqa: SIM115 - callers close it
    file.writelines(parts)
    file.seek(0)
    return file


def _answer(reader: subprocess.Popen[bytes], check: Callable[[], object]) -> bytes:
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return reader.communicate(timeout=min(_CHECK_EVERY_S, _PATIENCE_S))[0]
        except subprocess.TimeoutExpired:
            check()
            if time.monotonic() >= until:
                raise
