"""The API's parameters, with examples and limits, and the problem document."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError

from conv_advisor.app.wire.layers import LAYER
from conv_advisor.app.wire.spellings import AutoPad
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.variant import Maker
from conv_advisor.models.advice.unsure import Measure

MAX_LAYERS: Final = 10_000
"""Layers that one request may ask advice for."""

LONGEST_NAME: Final = 200
"""Characters of any name."""


def _whole(value: Any) -> Any:
    """An integer in plain digits: Python would also read "1_0" and " 1", and true and 1.0 as 1."""
    if isinstance(value, bool | float) or (isinstance(value, str) and not _DIGITS.fullmatch(value)):
        raise ValueError("an integer in plain digits")
    return value


def _maker(value: Any) -> Any:
    """A maker from its name, also where the rest is read strictly: JSON has no other way to write one."""
    return Maker(value) if isinstance(value, str) and value in set(Maker) else value


def _numbers(value: Any) -> int | str | list[int] | None:
    """One number or several, in any spelling; a URL has only text, with each value of a list by itself."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
    if isinstance(value, list) and len(value) <= _MOST_NUMBERS:
        return [_number(item) for item in value]
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBERS and not _DIGITS.fullmatch(value):
        return value
    return None if value is None else _number(value)


def _number(value: Any) -> int:
    whole = _whole(value)
    if not isinstance(whole, int | str) or len(str(whole)) > _LONGEST_NUMBERS:
        raise ValueError("a number, or several such as 3x3 or 3,3")
    return int(whole)


def _named(kind: type[StrEnum]) -> BeforeValidator:
    """Documents the values as a schema of their own; other values are refused by name, later."""
    return BeforeValidator(lambda value: value, json_schema_input_type=kind | None)


_MOST_NUMBERS: Final = 4
_LONGEST_NUMBERS: Final = 40
"""Characters of numbers as text."""
_DIGITS: Final = re.compile(r"-?[0-9]+")
Whole = BeforeValidator(_whole)
Size = Annotated[int | None, Whole]
Numbers = Annotated[
    int | str | list[int] | None,
    PlainValidator(
        _numbers,
        json_schema_input_type=int
        | Annotated[str, Field(max_length=_LONGEST_NUMBERS)]
        | Annotated[list[int], Field(max_length=_MOST_NUMBERS)]
        | None,
    ),
]
"""One number or several: a list, or text such as 3x3 or 3,3, which `app.wire.spellings` reads."""
Name = Annotated[str | None, Field(max_length=LONGEST_NAME)]
Id = Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[\w.:-]+$")]
"""Names a model: it may become part of a path."""
DeviceName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=r"^[\w .:()+-]+$",
        description="A device by its id or another of its names, such as a100, rtx 4090 or cuda:0.",
    ),
]
"""It becomes an id before it becomes part of a path."""
Baselines = Annotated[
    bool, Field(description="Also answer the baselines when ranking is false; with the ranking they are always there.")
]


class LayerParameters(BaseModel):
    """A layer: its short form, or its sizes by name; strides, padding, dilation and groups go with either."""

    model_config = ConfigDict(extra="forbid")

    layer: Annotated[
        str | None,
        Field(
            max_length=LONGEST_NAME,
            description="Short form size-batch-filter-filters-depth, with stride 1 and padding filter // 2. Append "
            "what differs, such as 56-1-3-128-64-stride2-groups4.",
            examples=[LAYER],
        ),
    ] = None
    n: Annotated[Size, Field(description="Batch.")] = None
    c: Annotated[Size, Field(description="Depth: channels of x.")] = None
    h: Annotated[Size, Field(description="Input height.")] = None
    w: Annotated[Size, Field(description="Input width.")] = None
    k: Annotated[Size, Field(description="Filters.")] = None
    r: Annotated[Size, Field(description="Filter height.")] = None
    s: Annotated[Size, Field(description="Filter width.")] = None
    stride: Annotated[Numbers, Field(description="Both strides.", examples=[2, "2x1"])] = None
    stride_h: Size = None
    stride_w: Size = None
    pad: Annotated[Numbers, Field(description="Zeros on all four sides.")] = None
    pad_h: Annotated[Size, Field(description="Rows of zeros on top, and at the bottom without pad_h_end.")] = None
    pad_w: Annotated[Size, Field(description="Columns of zeros on the left, and on the right without pad_w_end.")] = (
        None
    )
    dilation: Annotated[Numbers, Field(description="Both dilations.")] = None
    dilation_h: Size = None
    dilation_w: Size = None
    pad_h_end: Annotated[Size, Field(description="Rows of zeros at the bottom; default: as on top.")] = None
    pad_w_end: Annotated[Size, Field(description="Columns of zeros on the right; default: as on the left.")] = None
    groups: Annotated[Size, Field(description="Divides c and k; default 1.")] = None
    bias: Annotated[bool | None, Field(description="Whether a bias of shape (k,) is added; default false.")] = None
    residual: Annotated[bool | None, Field(description="Whether a residual of y's shape is added; default false.")] = (
        None
    )
    activation: Annotated[
        Name,
        _named(Activation),
        Field(description="Activation, applied before y is rounded; default none. leaky_relu has the slope 0.01."),
    ] = None
    dtype: Annotated[
        Name,
        Field(
            description="float32 (the default) means no tensor cores; accumulation is always in float32. "
            "fp32, fp16, half and bf16 are accepted too.",
            json_schema_extra={"examples": list(DType)},
        ),
    ] = None
    layout: Annotated[
        Name,
        Field(
            description="Memory order; default nchw. channels_last and channels_first are accepted too.",
            json_schema_extra={"examples": list(Layout)},
        ),
    ] = None
    input: Annotated[
        Name,
        Field(
            description="Shape of x, n x c x h x w, for a layer given as PyTorch prints it, Conv2d(64, 128, ...); it "
            "may also stand behind the layer.",
            examples=["1x64x56x56"],
        ),
    ] = None
    padding: Annotated[
        Numbers, Field(description="PyTorch's spelling of pad: one number, two, four, same or valid.")
    ] = None
    pads: Annotated[Numbers, Field(description="ONNX's spelling of pad: top, left, bottom, right.")] = None
    auto_pad: Annotated[
        Name, _named(AutoPad), Field(description="ONNX's automatic padding; TensorFlow's same is SAME_UPPER.")
    ] = None
    in_channels: Annotated[Size, Field(description="PyTorch's name for c.")] = None
    out_channels: Annotated[Size, Field(description="PyTorch's name for k.")] = None
    kernel_size: Annotated[Numbers, Field(description="PyTorch's name for r and s.", examples=["3x3"])] = None
    kernel_shape: Annotated[Numbers, Field(description="ONNX's name for r and s.")] = None
    strides: Annotated[Numbers, Field(description="ONNX's name for both strides.")] = None
    dilations: Annotated[Numbers, Field(description="ONNX's name for both dilations.")] = None
    group: Annotated[Size, Field(description="ONNX's name for groups.")] = None
    memory_format: Annotated[Name, Field(description="PyTorch's name for layout: channels_last.")] = None
    length: Annotated[
        Size,
        Field(description="Input length of a 1-D convolution; stride, pad and the like then take one number."),
    ] = None

    def given(self) -> dict[str, Any]:
        """What of a layer was named: see `app.wire.layers.problem_from`."""
        values = {name: value for name, value in self.__dict__.items() if value is not None and name in LAYER_TYPES}
        # As tuples, which are hashable.
        return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


_NUMBERS: Final = get_args(Numbers)[0]
_TYPES: Final[dict[Any, type]] = {int | None: int, bool | None: bool, Name: str, str | None: str}
LAYER_TYPES: Final = {name: _TYPES.get(field.annotation, int) for name, field in LayerParameters.model_fields.items()}
"""The usual type of each parameter of a layer."""
LISTS: Final = frozenset(name for name, field in LayerParameters.model_fields.items() if field.annotation == _NUMBERS)
"""The parameters of a layer that may be several numbers."""


class LimitParameters(BaseModel):
    """What advice is for, and what a variant may take and must be."""

    model_config = ConfigDict(extra="forbid")

    device: Annotated[
        DeviceName | None,
        Field(
            description="Device, by its id or another name such as a100 or rtx 4090; default: the configured one, else "
            "the worker's GPU, else the one with the most measurements."
        ),
    ] = None
    max_workspace_bytes: Annotated[
        int | None,
        Field(ge=0, le=2**63 - 1, description="Scratch memory a variant may use; default 1 GiB."),
        Whole,
    ] = None
    deterministic: Annotated[bool, Field(description="Only variants that give equal bits for equal inputs.")] = False
    only: Annotated[Maker | None, BeforeValidator(_maker), Field(description="Only variants of this maker.")] = None


class AdviceParameters(LimitParameters, LayerParameters):
    """What advice depends on."""


class AdviceQuery(AdviceParameters):
    """What GET asks of advice."""

    ranking: Annotated[
        bool, Field(description="Answer the whole ranking and how it was found, not only the best variant.")
    ] = True
    baselines: Baselines = False


class VariantParameters(LayerParameters):
    """A layer that variants are asked about; none is needed."""

    device: Annotated[DeviceName | None, Field(description="Device, by any of its names; default as for advice.")] = (
        None
    )


class BulkAdviceParameters(AdviceParameters):
    """What holds for a whole list of layers."""

    ranking: Annotated[
        bool, Field(description="Answer each layer in full, as GET does, not only with its best variant.")
    ] = False
    baselines: Baselines = False


class BulkAdviceRequest(BulkAdviceParameters):
    """Layers to advise on; parameters beside them apply to every layer that does not set its own."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"layers": [LAYER, {"layer": "7-1-1-32-832", "dtype": "float16"}], "dtype": "float32"},
            ]
        },
    )

    layers: Annotated[
        list[Annotated[str, Field(max_length=LONGEST_NAME)] | LayerParameters],
        Field(min_length=1, max_length=MAX_LAYERS, description="Short forms, or objects of named parameters."),
    ]


class ConvolutionParameters(LayerParameters):
    """What shall be run beside the tensors: the metadata of a safetensors body, where all values are strings."""

    variant: Annotated[
        str,
        Field(
            max_length=LONGEST_NAME, description="advised, all, or a variant's id.", examples=["advised", "cpu.direct"]
        ),
    ] = "advised"
    top: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="With advised: measure the first so many of the ranking and keep the fastest; "
            "default: 1, and 3 where the tree abstains.",
        ),
        Whole,
    ] = None
    measure: Annotated[
        Measure | None,
        Field(description="With advised: measure the first three of the ranking if the confidence is below 90 %."),
    ] = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, description="Seed of random operands."), Whole] = 0
    max_workspace_bytes: Annotated[
        int | None,
        Field(ge=0, le=2**63 - 1, description="Scratch memory; never more than the service's own limit."),
        Whole,
    ] = None
    deterministic: Annotated[bool, Field(description="Only variants that give equal bits for equal inputs.")] = False


class ConvolutionRequest(ConvolutionParameters):
    """A convolution of small tensors in JSON; without tensors, random ones are measured and y is not returned."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"layer": "14-1-3-16-8", "variant": "all", "seed": 0},
                {"x": [[[[1.0, 2.0], [3.0, 4.0]]]], "weight": [[[[1.0]]]], "variant": "cpu.direct"},
            ]
        },
    )

    x: Annotated[Any, Field(description="Nested lists in memory order; sizes are taken from them.")] = None
    weight: Annotated[Any, Field(description="Nested lists in memory order.")] = None
    bias: Annotated[Any, Field(description="A list of k numbers to add to y; without x, true or false.")] = None
    residual: Annotated[Any, Field(description="Nested lists in y's shape to add to y; without x, true or false.")] = (
        None
    )


class RetrainRequest(BaseModel):
    """What to train on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"device": "nvidia-h200"}]})

    device: Annotated[
        DeviceName | None, Field(description="Device whose measurements to use; default as for advice.")
    ] = None
    force: Annotated[bool, Field(description="Use the new model even if it is worse.")] = False


class ActivateRequest(BaseModel):
    """Which model is to answer for a device."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"device": "nvidia-h200", "model": "shipped"}]}
    )

    device: DeviceName
    model: Id


class Problem(BaseModel):
    """An error, as in RFC 9457; further fields give its details."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "/problems/invalid-problem",
                    "title": "Invalid problem",
                    "status": 400,
                    "detail": "k is 0; allowed: an integer from 1 to 2147483647",
                    "field": "k",
                    "value": "0",
                    "allowed": "an integer from 1 to 2147483647",
                }
            ]
        },
    )

    type: Annotated[str, Field(description="The same for every error of one kind.")]
    title: str
    status: int
    detail: str


def first_fault(error: ValidationError) -> tuple[str, Any, str]:
    """The first refused parameter, its value, and the reason: the arguments of an `InvalidInput`."""
    fault = error.errors()[0]
    return str(fault["loc"][0]), fault["input"], fault["msg"].removeprefix("Value error, ")
