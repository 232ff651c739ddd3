"""The fast reading of what is asked of advice: it accepts part of what the schemas accept, to the same effect."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from fastapi.exceptions import RequestValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from conv_advisor.app.advice import asked
from conv_advisor.app.advice.asked import AskedList, parse_list, parse_query
from conv_advisor.app.wire.schemas import AdviceQuery, BulkAdviceRequest

TEXTS = st.sampled_from(
    [
        *("14-1-3-256-128", "", "5", "007", "+5", "-5", " 5", "5.0", "1e3", "1_000", "٣", "9" * 11, "9" * 30, "0x10"),
        *("true", "false", "True", "1", "0", "yes", "on", "null", "None", "float16", "nhwc", "FLOAT16", "nvidia-h200"),
        *("2x1", "a\n", "a b", "ä", "x" * 200, "x" * 201, "\x00", "\ud7ff", "é" * 201),
    ]
)
NAMES = st.sampled_from([*AdviceQuery.model_fields, "layers", "ranking", "N", "unknown"])
SCALARS = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.integers(-2, 9))
OBJECTS = st.dictionaries(NAMES, SCALARS, max_size=5)
LAYERS = st.lists(st.one_of(SCALARS, OBJECTS, st.just("14-1-3-256-128")), max_size=3)


def plain(found: Any) -> dict[str, Any]:
    """What was asked, whether or not the schema alone has read it."""
    fields: dict[str, Any] = (found.common if isinstance(found, AskedList) else found).model_dump(exclude={"layers"})
    return fields | ({"layers": [of_layer(layer) for layer in found.layers]} if hasattr(found, "layers") else {})


def of_layer(layer: Any) -> Any:
    """The parameters of a layer."""
    if isinstance(layer, tuple):
        return dict(zip(*layer, strict=True))
    return layer if isinstance(layer, str) else layer.given()


@settings(max_examples=1000, deadline=None)
@given(st.dictionaries(NAMES, TEXTS, max_size=5), st.sampled_from(["", "&n=3", "&stride=3"]))
def test_a_query_means_what_the_schema_says_and_fails_where_it_fails(given: dict[str, str], more: str) -> None:
    query = urlencode(given, errors="surrogatepass") + more
    lists = parse_qs(query, keep_blank_values=True)
    values = {name: several if len(several) > 1 else several[0] for name, several in lists.items()}
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
@given(OBJECTS, st.one_of(LAYERS, SCALARS, OBJECTS), st.booleans())
def test_a_list_means_what_the_schema_says_and_fails_where_it_fails(
    common: dict[str, Any], layers: Any, has_layers: bool
) -> None:
    body = json.dumps(common | ({"layers": layers} if has_layers else {})).encode()
    try:
        expected = BulkAdviceRequest.model_validate_json(body, strict=True)
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


def test_the_common_case_makes_no_model_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "parse_json", None)
    sizes = {"n": 8, "c": 64, "h": 56, "w": 56, "k": 128, "r": 3, "s": 3, "pad": 1}
    layers = ["14-1-3-256-128", {"layer": "7-1-1-32-832", "dtype": "float16"}, sizes]
    common = {"device": "nvidia-h200", "ranking": True, "max_workspace_bytes": 0, "dtype": "tf32", "layout": None}
    found = parse_list(json.dumps(common | {"layers": layers}).encode())
    assert plain(found) == plain(BulkAdviceRequest.model_validate(common | {"layers": layers}))
