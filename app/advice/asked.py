"""Requests for advice: checked by the schemas, but for the plainly written layers of a list.

Whatever this module does not understand goes to the schemas (`app.wire.schemas`), which accept it or say what is wrong.
So the parameters and every fault are described once, and a layer of a list costs a fraction of a model.
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
    """A list of layers to advise on, and the parameters that hold for all of them."""

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
        layers = _list(common.pop("layers"))
        parsed = [layer if isinstance(layer, str) else _plain(layer) for layer in layers]
        if not _has_each_once(body, common, layers):
            check_distinct(body)
        return AskedList(BulkAdviceParameters.model_validate(common, strict=True), parsed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError, ValidationError):
        request = parse_json(BulkAdviceRequest, body)
        return AskedList(
            request, [layer if isinstance(layer, str) else named(layer.given()) for layer in request.layers]
        )


def _has_each_once(body: bytes, common: Mapping[str, Any], layers: Sequence[Any]) -> bool:
    """Whether no object repeats a name: the body has no more colons than the names and texts that were read.

    False also where it cannot tell: a text outside this count has a colon, or a text has an escape.

    Notes
    -----
    Reading the body again would take a tenth of the time of an answer; this takes a thousandth.
    """
    n_unexplained = body.count(b":") - 1 - len(common)  # one for the layers themselves
    n_unexplained -= sum(value.count(":") for value in common.values() if isinstance(value, str))  # a device's
    if n_unexplained:
        n_unexplained -= sum([len(layer) for layer in layers if isinstance(layer, dict)])
    return not n_unexplained and b"\\" not in body


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _plain(fields: dict[str, Any]) -> Named:
    """The parameters of a layer.

    Raises
    ------
    LookupError, TypeError
        A parameter is unknown, or not of its type.
    """
    names, values = layer = named(fields)
    if tuple(map(type, values)) != _types(names):
        raise TypeError
    return layer


@lru_cache(1024)
def _types(names: tuple[str, ...]) -> tuple[type, ...]:
    return tuple(LAYER_TYPES[name] for name in names)
