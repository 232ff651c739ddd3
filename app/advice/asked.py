"""What is asked of advice, read by msgspec: part of what the schemas accept, and to the same effect.

Whatever is not understood here goes to the schemas (`app.wire.schemas`), which accept it or say what is wrong with it.
So there is one description of the parameters and of every fault, and the common case takes a tenth of the time.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from conv_advisor.app.wire.body import parse_json, parse_values
from conv_advisor.app.wire.schemas import MAX_LAYERS, AdviceQuery, BulkAdviceRequest

Name = Annotated[str, Meta(max_length=200)]
Id = Annotated[str, Meta(max_length=200, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
"""Pydantic takes letters of any script too, which then name no device."""


class AskedLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """`LayerParameters`."""

    layer: Name | None = None
    n: int | None = None
    c: int | None = None
    h: int | None = None
    w: int | None = None
    k: int | None = None
    r: int | None = None
    s: int | None = None
    stride: int | None = None
    stride_h: int | None = None
    stride_w: int | None = None
    pad: int | None = None
    pad_h: int | None = None
    pad_w: int | None = None
    dilation: int | None = None
    dilation_h: int | None = None
    dilation_w: int | None = None
    groups: int | None = None
    dtype: Name | None = None
    layout: Name | None = None


class AskedAdvice(AskedLayer, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`AdviceQuery`."""

    device: Id | None = None
    max_workspace_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    deterministic: bool = False
    ranking: bool = True


class AskedList(AskedAdvice, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`BulkAdviceRequest`."""

    layers: Annotated[list[Name | AskedLayer], Meta(min_length=1, max_length=MAX_LAYERS)]
    ranking: bool = False


_LIST: Final = msgspec.json.Decoder(AskedList)


def parse_query(query: bytes) -> AskedAdvice | AdviceQuery:
    """The parameters in a URL.

    Raises
    ------
    RequestValidationError
    """
    given = _given(query.decode("latin-1"))
    try:
        # A number in a URL is a text, and other texts than plain digits are numbers to some readers only.
        return msgspec.convert({name: _plain(value) for name, value in given.items()}, AskedAdvice)
    except msgspec.ValidationError:
        pass
    return parse_values(AdviceQuery, given, "query")


def parse_list(body: bytes) -> AskedList | BulkAdviceRequest:
    """The layers in a JSON body.

    Raises
    ------
    RequestValidationError
    """
    try:
        return _LIST.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return parse_json(BulkAdviceRequest, body)


def _given(query: str) -> dict[str, str]:
    """What `parse_qsl` finds; it takes four times as long where there is nothing to be decoded."""
    if "%" not in query and "+" not in query:
        try:
            return dict([part.split("=", 1) for part in query.split("&")])
        except ValueError:  # a part without a value
            pass
    return dict(parse_qsl(query, keep_blank_values=True))


def _plain(value: str) -> str | int | bool:
    if value.isascii() and value.isdigit() and len(value) <= 10:
        return int(value)
    return _TRUTHS.get(value, value)


_TRUTHS: Final = {"true": True, "false": False}
