"""The fast reading of what is asked of advice: it accepts part of what the schemas accept, to the same effect."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode

import msgspec
import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from conv_advisor.app.advice.asked import AskedAdvice, AskedLayer, AskedList, parse_list, parse_query
from conv_advisor.app.wire.schemas import AdviceQuery, BulkAdviceRequest, LayerParameters, named

TEXTS = st.sampled_from(
    [
        *("14-1-3-256-128", "", "5", "007", "+5", "-5", " 5", "5.0", "1e3", "1_000", "٣", "9" * 11, "9" * 30, "0x10"),
        *("true", "false", "True", "1", "0", "yes", "on", "null", "None", "float16", "nhwc", "FLOAT16", "nvidia-h200"),
        *("a\n", "a b", "ä", "x" * 200, "x" * 201, "\x00", "\ud7ff", "é" * 201),
    ]
)
NAMES = st.sampled_from([*AdviceQuery.model_fields, "layers", "ranking", "N", "unknown"])
SCALARS = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.integers(-2, 9))
OBJECTS = st.dictionaries(NAMES, SCALARS, max_size=5)
LAYERS = st.lists(st.one_of(SCALARS, OBJECTS, st.just("14-1-3-256-128")), max_size=3)


def plain(asked: Any) -> dict[str, Any]:
    """What was asked, whichever reader read it."""
    fields = {name: getattr(asked, name) for name in AdviceQuery.model_fields}
    if hasattr(asked, "layers"):
        layers = [each if isinstance(each, str) else named(each) for each in asked.layers]
        fields |= {"layers": layers, "ranking": asked.ranking}
    return fields


@pytest.mark.parametrize(
    ("fast", "schema"),
    [(AskedLayer, LayerParameters), (AskedAdvice, AdviceQuery), (AskedList, BulkAdviceRequest)],
)
def test_both_descriptions_have_the_same_fields_and_defaults(fast: type[msgspec.Struct], schema: Any) -> None:
    described = {name: None if field.is_required() else (field.default,) for name, field in schema.model_fields.items()}
    found = {field.name: None if field.required else (field.default,) for field in msgspec.structs.fields(fast)}
    assert found == described


@settings(max_examples=1000, deadline=None)
@given(st.dictionaries(NAMES, TEXTS, max_size=5), st.booleans())
def test_a_query_means_what_the_schema_says_and_fails_where_it_fails(given: dict[str, str], is_doubled: bool) -> None:
    query = urlencode(given, errors="surrogatepass") + ("&n=3" if is_doubled else "")
    values = dict(parse_qsl(query, keep_blank_values=True))
    try:
        expected = AdviceQuery.model_validate(values)
    except ValidationError as error:
        with pytest.raises(RequestValidationError) as caught:
            parse_query(query.encode())
        locations = [("query", *fault["loc"]) for fault in error.errors()]
        assert [fault["loc"] for fault in caught.value.errors()] == locations
    else:
        assert plain(parse_query(query.encode())) == plain(expected)


@settings(max_examples=1000, deadline=None)
@given(OBJECTS, LAYERS, st.booleans())
def test_a_list_means_what_the_schema_says_and_fails_where_it_fails(
    common: dict[str, Any], layers: list[Any], has_layers: bool
) -> None:
    body = json.dumps(common | ({"layers": layers} if has_layers else {})).encode()
    try:
        expected = BulkAdviceRequest.model_validate_json(body)
    except ValidationError as error:
        with pytest.raises(RequestValidationError) as caught:
            parse_list(body)
        locations = [("body", *fault["loc"]) for fault in error.errors()]
        assert [fault["loc"] for fault in caught.value.errors()] == locations
    else:
        assert plain(parse_list(body)) == plain(expected)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"layers": ["\\ud800"]}', b"[" * 100_000, b'{"layers": ["1"], "layers": []}'],
)
def test_what_is_no_json_or_none_that_is_allowed_fails_in_both(body: bytes) -> None:
    with pytest.raises(ValidationError):
        BulkAdviceRequest.model_validate_json(body)
    with pytest.raises(RequestValidationError):
        parse_list(body)


def test_the_common_case_is_read_fast() -> None:
    common = b"layer=14-1-3-256-128&dtype=float16&device=nvidia-h200&max_workspace_bytes=0&deterministic=true"
    assert isinstance(parse_query(common), AskedAdvice)
    assert isinstance(parse_query(b"n=8&c=64&h=56&w=56&k=128&r=3&s=3&pad=1"), AskedAdvice)
    assert isinstance(parse_query(quote_plus("layer").encode() + b"=%31-1-1-1-1"), AskedAdvice)
    listed = {"layers": ["14-1-3-256-128", {"layer": "7-1-1-32-832", "dtype": "float16"}], "ranking": True}
    assert isinstance(parse_list(json.dumps(listed).encode()), AskedList)
