"""What goes over the border: parameters in, and the shape of every answer, with examples."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from conv_advisor.app.wire.layers import LAYER
from conv_advisor.data.problem import DType, Layout
from conv_advisor.kernels.variant import Maker

MAX_LAYERS: Final = 10_000
"""Layers that one request may ask advice for."""

LONGEST_NAME: Final = 200
"""Characters of any name."""


def _whole(value: Any) -> Any:
    """An integer as anybody writes one: Python would read "1_0" and " 1" too, and true and 1.0 as 1."""
    if isinstance(value, bool | float) or (isinstance(value, str) and not _DIGITS.fullmatch(value)):
        raise ValueError("an integer in plain digits")
    return value


def _maker(value: Any) -> Any:
    """A maker by its name, which is the only way to write one, however strictly the rest is read."""
    return Maker(value) if isinstance(value, str) and value in set(Maker) else value


_DIGITS: Final = re.compile(r"-?[0-9]+")
Whole = BeforeValidator(_whole)
Size = Annotated[int | None, Whole]
Name = Annotated[str | None, Field(max_length=LONGEST_NAME)]
Id = Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[\w.:-]+$")]
"""Names a device or a model: it may become part of a path."""
Baselines = Annotated[
    bool, Field(description="Say what others would run even without the ranking, with which it is always said.")
]


class LayerParameters(BaseModel):
    """A layer: its short form, or its sizes by name; strides, padding, dilation and groups go with either."""

    model_config = ConfigDict(extra="forbid")

    layer: Annotated[
        str | None,
        Field(
            max_length=LONGEST_NAME,
            description="Short form size-batch-filter-filters-depth: stride 1, padding filter // 2.",
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
    stride: Annotated[Size, Field(description="Both strides.")] = None
    stride_h: Size = None
    stride_w: Size = None
    pad: Annotated[Size, Field(description="Zeros on all four sides.")] = None
    pad_h: Annotated[Size, Field(description="Rows of zeros on each side.")] = None
    pad_w: Annotated[Size, Field(description="Columns of zeros on each side.")] = None
    dilation: Annotated[Size, Field(description="Both dilations.")] = None
    dilation_h: Size = None
    dilation_w: Size = None
    groups: Annotated[Size, Field(description="Divides c and k; default 1.")] = None
    dtype: Annotated[
        Name,
        Field(
            description="float32 (the default) means no tensor cores; accumulation is always in float32.",
            json_schema_extra={"enum": list(DType)},
        ),
    ] = None
    layout: Annotated[
        Name, Field(description="Memory order; default nchw.", json_schema_extra={"enum": list(Layout)})
    ] = None

    def given(self) -> dict[str, Any]:
        """What of a layer was named: see `app.wire.layers.problem_from`."""
        return {name: value for name, value in self.__dict__.items() if value is not None and name in LAYER_TYPES}


LAYER_TYPES: Final = {
    name: int if field.annotation == int | None else str for name, field in LayerParameters.model_fields.items()
}
"""The type of each parameter of a layer."""


class LimitParameters(BaseModel):
    """What advice is for, and what a variant may take and must be."""

    model_config = ConfigDict(extra="forbid")

    device: Annotated[
        Id | None,
        Field(description="Device id; default: as configured, else the worker's GPU, else the one measured most."),
    ] = None
    max_workspace_bytes: Annotated[
        int | None,
        Field(ge=0, le=2**63 - 1, description="Scratch memory a variant may use; default 1 GiB."),
        Whole,
    ] = None
    deterministic: Annotated[bool, Field(description="Only variants whose equal inputs give equal bits.")] = False
    only: Annotated[Maker | None, BeforeValidator(_maker), Field(description="Only variants of this maker.")] = None


class AdviceParameters(LimitParameters, LayerParameters):
    """What advice depends on."""


class AdviceQuery(AdviceParameters):
    """What GET asks of advice."""

    ranking: Annotated[bool, Field(description="Beside the best variant the whole ranking, and how it was found.")] = (
        True
    )
    baselines: Baselines = False


class VariantParameters(LayerParameters):
    """A layer that variants are asked about; none is needed."""

    device: Annotated[Id | None, Field(description="Device id; default as in advice.")] = None


class BulkAdviceParameters(AdviceParameters):
    """What holds for a whole list of layers."""

    ranking: Annotated[bool, Field(description="Answer each layer as GET does, not its best variant alone.")] = False
    baselines: Baselines = False


class BulkAdviceRequest(BulkAdviceParameters):
    """Layers to be advised on; parameters beside them hold for every layer that does not name its own."""

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
        int,
        Field(ge=1, le=100, description="With advised: measure so many of the ranking's first, keep the fastest."),
        Whole,
    ] = 1
    seed: Annotated[int, Field(ge=0, le=2**63 - 1, description="Of random operands."), Whole] = 0
    max_workspace_bytes: Annotated[
        int | None,
        Field(ge=0, le=2**63 - 1, description="Scratch memory; never more than the service's own limit."),
        Whole,
    ] = None
    deterministic: Annotated[bool, Field(description="Only variants whose equal inputs give equal bits.")] = False


class ConvolutionRequest(ConvolutionParameters):
    """A convolution of small tensors in JSON; or, without them, of random ones, which is only measured."""

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


class RetrainRequest(BaseModel):
    """What to train on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"device": "nvidia-h200"}]})

    device: Annotated[Id | None, Field(description="Whose measurements; default as in advice.")] = None
    force: Annotated[bool, Field(description="Put the new model in charge even if it is worse.")] = False


class ActivateRequest(BaseModel):
    """Which model shall answer for a device."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"device": "nvidia-h200", "model": "shipped"}]}
    )

    device: Id
    model: Id


class Problem(BaseModel):
    """An error, as RFC 9457 has it; more fields say what is known of it."""

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
