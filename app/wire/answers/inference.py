"""What /v2 takes and answers: the schemas of the Open Inference Protocol, version 2, as they are spoken here."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

DATATYPES = Literal["FP32", "FP16", "BF16"]


class ServerAnswer(TypedDict):
    """Name, version, and the supported protocol extensions."""

    name: str
    version: str
    extensions: list[str]


class LiveAnswer(TypedDict):
    """Whether the process runs."""

    live: bool


class ReadyAnswer(TypedDict):
    """Whether the service can do all its work."""

    ready: bool


class TensorAnswer(TypedDict):
    """A tensor that goes in or comes out; -1 stands for any size."""

    name: str
    datatype: str
    shape: list[int]


class ServedModelAnswer(TypedDict):
    """The model, with its tensors and versions."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorAnswer]
    outputs: list[TensorAnswer]


class OutputAnswer(TensorAnswer):
    """y: its numbers (null for those that JSON cannot express), or how many bytes of it follow the JSON."""

    data: NotRequired[list[float | None]]
    parameters: NotRequired[dict[str, Any]]


class InferenceAnswer(TypedDict):
    """y, and as parameters the variant, its time in ms and its error."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    parameters: dict[str, Any]
    outputs: list[OutputAnswer]


class InferenceInput(BaseModel):
    """An input tensor: numbers, or bytes after the JSON, whose number is binary_data_size."""

    name: Literal["x", "weight"]
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=4, max_length=4)]
    datatype: DATATYPES
    data: Annotated[list[Any] | None, Field(description="Numbers, nested or flat, in memory order.")] = None
    parameters: dict[str, Any] = {}


class InferenceOutput(BaseModel):
    """y; the parameter binary_data requests it as bytes."""

    name: Literal["y"]
    parameters: dict[str, Any] = {}


class InferenceRequest(BaseModel):
    """The inputs x and weight; the parameters are those of POST /v1/convolutions, beside the protocol's own."""

    id: str = ""
    inputs: Annotated[list[InferenceInput], Field(min_length=2, max_length=2)]
    outputs: Annotated[list[InferenceOutput], Field(max_length=1)] = []
    parameters: Annotated[
        dict[str, Any],
        Field(
            description="priority, timeout, sequence_id, sequence_start and sequence_end are accepted and ignored.",
            examples=[{"pad": 1, "variant": "advised", "binary_data_output": True}],
        ),
    ] = {}
