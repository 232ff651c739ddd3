"""From an ONNX model's bytes to its outline, by way of a process that a hostile model may take with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

from conv_advisor.app.plans import onnx_reader
from conv_advisor.app.plans.outline import Outline, Read, Request
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.extras import require

MAX_BATCH: Final = 2**16
MAX_MODEL_BYTES: Final = 2**30
"""Longest model; protobuf has none beyond 2 GiB."""
_PATIENCE_S: Final = 6 * onnx_reader.CPU_S
"""For a reader that gets its CPU time on a busy machine; it ends by itself when that is spent."""

_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG")


def read_outline(body: bytes | memoryview, *, batch: int, dims: Mapping[str, int] | None = None) -> Outline:
    """The outline of a model for one batch.

    Parameters
    ----------
    body : bytes
        A serialized ``ModelProto``.
    batch : int
        Stands for the first dimension of its inputs.
    dims : mapping of str to int
        Sizes of other symbolic dimensions by name.

    Raises
    ------
    InvalidInput
        It is no model that can be read, or reading it takes too long or too much memory.
    NotInstalled
    """
    require("onnx")
    if len(body) > MAX_MODEL_BYTES:
        raise InvalidInput("model", f"{len(body)} bytes", f"at most {MAX_MODEL_BYTES} bytes; leave its weights outside")
    if not 1 <= batch <= MAX_BATCH:
        raise InvalidInput("batch", batch, f"an integer from 1 to {MAX_BATCH}")
    head = msgspec.json.encode(Request(batch, dict(dims or {}))) + b"\n"
    answer = _asked(head + bytes(body))
    if answer.fault is not None:
        raise InvalidInput(answer.fault.field, answer.fault.value, answer.fault.allowed)
    assert answer.outline is not None  # noqa: S101 - it answers one of both
    return answer.outline


def _asked(sent: bytes) -> Read:
    allowed = (
        f"one that is read within {onnx_reader.CPU_S} s of CPU time and {onnx_reader.MEMORY_BYTES} bytes of memory"
    )
    command = [sys.executable, "-P", "-m", onnx_reader.__name__]  # no module of the folder that it is called in
    # What finds Python and its packages, and no secret. Libraries would take address space for threads, unasked.
    environment = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            command, input=sent, capture_output=True, timeout=_PATIENCE_S, check=False, env=environment
        )
        return msgspec.msgpack.decode(done.stdout, type=Read)
    except subprocess.TimeoutExpired:
        raise InvalidInput("model", f"{len(sent)} bytes", allowed) from None
    except msgspec.MsgspecError:
        raise InvalidInput(
            "model", f"{len(sent)} bytes, of which reading ended with {done.returncode}", allowed
        ) from None
