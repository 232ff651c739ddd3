"""What is asked of advice: checked by the schemas, but for the layers of a list where they are written plainly.

Whatever is not understood here goes to the schemas (`app.wire.schemas`), which accept it or say what is wrong with it.
So there is one description of the parameters and of every fault, and a layer of a list costs a fraction of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from pydantic import ValidationError

from conv_advisor.app.wire.body import parse_json, parse_values
from conv_advisor.app.wire.distinct import check_distinct
from conv_advisor.app.wire.layers import Layer, Named, named
from conv_advisor.app.wire.query import values_of
from conv_advisor.app.wire.schemas import (
    LAYER_TYPES,
    LONGEST_NAME,
    MAX_LAYERS,
    AdviceQuery,
    BulkAdviceParameters,
    BulkAdviceRequest,
)

_Text = Annotated[str, Meta(max_length=LONGEST_NAME)]
_Layers = Annotated[list[_Text | dict[str, _Text | int | bool]], Meta(min_length=1, max_length=MAX_LAYERS)]
_BODY: Final = msgspec.json.Decoder(dict[str, str | int | bool | _Layers | None])


@dataclass(frozen=True)
class AskedList:
    """Layers that advice is asked on, and the parameters that hold for all of them."""

    common: BulkAdviceParameters
    layers: Sequence[Layer]


def parse_query(query: bytes) -> AdviceQuery:
    """The parameters in a URL.

    Raises
    ------
    RequestValidationError
    """
    return parse_values(AdviceQuery, values_of(query.decode("latin-1")), "query")


def parse_list(body: bytes) -> AskedList:
    """The layers in a JSON body.

    Raises
    ------
    RequestValidationError, InvalidInput
    """
    try:
        common: dict[str, Any] = _BODY.decode(body)
        given = _list(common.pop("layers"))
        layers = [each if isinstance(each, str) else _plain(each) for each in given]
        if not _has_each_once(body, common, given):
            check_distinct(body)
        return AskedList(BulkAdviceParameters.model_validate(common, strict=True), layers)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError, ValidationError):
        asked = parse_json(BulkAdviceRequest, body)
        return AskedList(asked, [each if isinstance(each, str) else named(each.given()) for each in asked.layers])


def _has_each_once(body: bytes, common: Mapping[str, Any], layers: Sequence[Any]) -> bool:
    """Whether no object has a name twice: as sure as there are no more colons than what was read has, names and texts.

    Where a text has a colon that is not counted here, or an escape, it may be so and False all the same.

    Notes
    -----
    To read the body again takes a tenth of the time of an answer; this a thousandth.
    """
    more = body.count(b":") - 1 - len(common)  # one for the layers themselves
    more -= sum(value.count(":") for value in common.values() if isinstance(value, str))  # a device's
    if more:
        more -= sum([len(each) for each in layers if isinstance(each, dict)])
    return not more and b"\\" not in body


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _plain(given: dict[str, Any]) -> Named:
    """The parameters of a layer.

    Raises
    ------
    LookupError, TypeError
        One is unknown, or not of its type.
    """
    names, values = layer = named(given)
    if tuple(map(type, values)) != _types(names):
        raise TypeError
    return layer


@lru_cache(1024)
def _types(names: tuple[str, ...]) -> tuple[type, ...]:
    return tuple(LAYER_TYPES[name] for name in names)
