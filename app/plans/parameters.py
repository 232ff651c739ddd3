"""Parameters of a plan beside the model."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field, field_validator

from conv_advisor.app.plans.reading import MAX_BATCH
from conv_advisor.app.wire.schemas import LONGEST_NAME, LimitParameters
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType

MAX_BATCHES: Final = 8
"""Most batches of one plan."""
_NUMBER: Final = re.compile("[0-9]{1,9}")


class PlanParameters(LimitParameters):
    """For which batches and which precision, and within which limits; a workspace is that of the whole network."""

    batches: Annotated[
        str, Field(max_length=LONGEST_NAME, description="Batch sizes, separated by commas.", examples=["1,8,32"])
    ] = "1"
    dtype: Annotated[
        DType | None,
        Field(description="Precision to plan for, whatever the model is stored in; default: that of its convolutions."),
    ] = None
    dims: Annotated[
        str,
        Field(
            max_length=1000,
            description="Sizes of an ONNX model's symbolic dimensions other than the batch, by name.",
            examples=["height=224,width=224"],
        ),
    ] = ""
    name: Annotated[str, Field(max_length=LONGEST_NAME, description="Name of the network in the answer.")] = "model"

    @field_validator("batches")
    @classmethod
    def _are_batches(cls, text: str) -> str:
        batches_of(text)
        return text

    @field_validator("dims")
    @classmethod
    def _are_dims(cls, text: str) -> str:
        dims_of(text)
        return text


class NetworkParameters(PlanParameters):
    """A network whose layers ship, and what is asked of its plan."""

    name: Annotated[
        str, Field(max_length=LONGEST_NAME, description="A name that /v1/networks lists.", examples=["resnet50"])
    ]
    dtype: Annotated[DType, Field(description="Precision to plan for.")] = DType.FLOAT32


def batches_of(text: str) -> list[int]:
    """Batches from their text form, ``1,8,32``.

    Raises
    ------
    InvalidInput
    """
    words = [word.strip() for word in text.split(",")]
    if not all(_NUMBER.fullmatch(word) and 1 <= int(word) <= MAX_BATCH for word in words) or len(words) > MAX_BATCHES:
        raise InvalidInput("batches", text, f"at most {MAX_BATCHES} integers from 1 to {MAX_BATCH}, by commas")
    return list(dict.fromkeys(map(int, words)))


def dims_of(text: str) -> dict[str, int]:
    """Sizes by name from their text form, ``height=224,width=224``.

    Raises
    ------
    InvalidInput
    """
    sizes = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, size = word.rpartition("=")
        if not name or not _NUMBER.fullmatch(size) or not int(size):
            raise InvalidInput("dims", word, "a name and a size, such as height=224")
        sizes[name] = int(size)
    return sizes
