"""The Open Inference Protocol, version 2 (KServe, Triton): JSON, with the tensors' bytes after it or in it as numbers.

Source: KServe, open-inference-protocol, inference_rest.md; the extension binary_tensor_data of Triton.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import ml_dtypes
import msgspec
import numpy as np

from conv_advisor.app.wire.distinct import check_distinct
from conv_advisor.app.wire.safetensors import MAX_DIMENSIONS, as_bytes, check_names, checked_shape, numbers
from conv_advisor.data.errors import InvalidTensor

if TYPE_CHECKING:
    from conv_advisor.app.wire.body import Bytes
    from conv_advisor.app.wire.parts import Parts

LENGTH_HEADER: Final = "Inference-Header-Content-Length"
"""Header with the length of the JSON, where bytes follow it."""

DATATYPES: Final[dict[str, np.dtype[Any]]] = {
    "FP32": np.dtype(np.float32),
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}

_WHOLE_BINARY: Final = "binary_data_output"
_ONE_BINARY: Final = "binary_data"
_SIZE: Final = "binary_data_size"

_OF_THE_PROTOCOL: Final = frozenset(
    (_WHOLE_BINARY, "priority", "timeout", "sequence_id", "sequence_start", "sequence_end")
)
"""Parameters that do not concern the convolution: requests wait in one queue for the device, with the service's own
deadline, and none depends on another."""

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Input(msgspec.Struct):
    name: str
    shape: Annotated[list[Natural], msgspec.Meta(min_length=1, max_length=MAX_DIMENSIONS)]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: Annotated[list[_Output], msgspec.Meta(max_length=1)] = []


_DECODER: Final = msgspec.json.Decoder(_Request)


@dataclass(frozen=True)
class Inference:
    """A request, read.

    Parameters
    ----------
    id : str
        Sent back with the answer.
    tensors : dict of str to array
        Views of the body where they came as bytes.
    parameters : dict
        The request's, without those of the protocol.
    is_binary : bool
        Whether y is sent back as bytes.
    """

    id: str
    tensors: dict[str, np.ndarray]
    parameters: dict[str, Any]
    is_binary: bool


def read_inference(
    body: Bytes, json_bytes: int, names: tuple[str, ...], output: str, optional: tuple[str, ...] = ()
) -> Inference:
    """Read a request without copying its tensors.

    Parameters
    ----------
    body : uint8 array
    json_bytes : int
        Length of the JSON at the start of the body.
    names : tuple of str
        Tensors it must hold.
    output : str
        The one tensor it may ask for.
    optional : tuple of str
        Tensors it may hold besides, and no others.

    Raises
    ------
    InvalidInput
        Naming the field that is wrong.
    """
    try:
        request = _DECODER.decode(body[:json_bytes].data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTensor("body", str(error), "an inference request in JSON") from None
    check_distinct(body[:json_bytes].tobytes())
    check_names("inputs", (entry.name for entry in request.inputs), names, optional)
    for requested in request.outputs:
        if requested.name != output:
            raise InvalidTensor("outputs", requested.name, output)
    tensors, rest = {}, body[json_bytes:]
    for entry in request.inputs:
        tensors[entry.name], used = _tensor(entry, rest)
        rest = rest[used:]
    if len(rest):
        raise InvalidTensor("body", f"{len(rest)} bytes after the last tensor", "none")
    own = {name: value for name, value in request.parameters.items() if name not in _OF_THE_PROTOCOL}
    whole = request.parameters.get(_WHOLE_BINARY, False)
    is_binary = request.outputs[0].parameters.get(_ONE_BINARY, whole) if request.outputs else whole
    return Inference(request.id, tensors, own, is_binary is True)


def write_inference(head: dict[str, Any], name: str, y: np.ndarray, *, is_binary: bool) -> Parts:
    """An answer: its JSON, and the tensor's bytes, which are empty where the JSON has its numbers.

    Parameters
    ----------
    head : dict
        Its fields but for the outputs.
    """
    datatype = next(datatype for datatype, dtype in DATATYPES.items() if dtype == y.dtype)
    output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": y.shape}
    if not is_binary:
        # JSON has no NaN and no infinities: the protocol leaves them out, and null stands for them.
        text = msgspec.json.encode(head | {"outputs": [output | {"data": y.astype(np.float64).ravel().tolist()}]})
        return text, memoryview(b"")
    text = msgspec.json.encode(head | {"outputs": [output | {"parameters": {_SIZE: y.nbytes}}]})
    return text, as_bytes(y)


def _tensor(entry: _Input, data: Bytes) -> tuple[np.ndarray, int]:
    """A tensor, and the number of bytes that it takes of the data."""
    dtype = DATATYPES.get(entry.datatype)
    if dtype is None:
        raise InvalidTensor(f"{entry.name}.datatype", entry.datatype, ", ".join(DATATYPES))
    shape = checked_shape(entry.name, entry.shape)
    needed = math.prod(shape) * dtype.itemsize
    if _SIZE not in entry.parameters:
        if isinstance(entry.data, msgspec.UnsetType):
            raise InvalidTensor(f"{entry.name}.data", "missing", f"a list of numbers, or {_SIZE} and bytes")
        array = numbers(entry.name, entry.data, dtype)
        if array.size * dtype.itemsize != needed:
            raise InvalidTensor(f"{entry.name}.data", f"{array.size} numbers", f"as many as {shape} has")
        return array.reshape(shape), 0
    if not isinstance(entry.data, msgspec.UnsetType):
        raise InvalidTensor(f"{entry.name}.data", "a list", f"not together with {_SIZE}")
    size = entry.parameters[_SIZE]
    if type(size) is not int or size != needed or size > len(data):
        allowed = f"{needed}, which {entry.datatype} {shape} takes, and no more than the {len(data)} that follow"
        raise InvalidTensor(f"{entry.name}.{_SIZE}", size, allowed)
    return data[:size].view(dtype).reshape(shape), size
