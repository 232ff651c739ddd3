"""Everything that a client can get wrong, and what it is told."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from conv_advisor.app.wire.body import MAX_JSON_BYTES
from tests.app.serving import FAST, LAYER, LEAN, Client, is_problem, serving

NAMED = {"n": 2, "c": 4, "h": 8, "w": 8, "k": 6, "r": 3, "s": 3}
X, WEIGHT = np.ones((2, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)
SAFETENSORS = {"content-type": "application/vnd.safetensors"}
MAX_BODY_BYTES = 2**20


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), max_body_bytes=MAX_BODY_BYTES) as client:
        assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN}).status_code == 200
        yield client


BAD_LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "zero": (NAMED | {"k": 0}, "k"),
    "negative": (NAMED | {"h": -1}, "h"),
    "negative_pad": (NAMED | {"pad_h": -1}, "pad_h"),
    "beyond_32_bits": (NAMED | {"c": 2**31}, "c"),
    "beyond_64_bits": (NAMED | {"n": 2**70}, "n"),
    "too_many_elements": (NAMED | {"n": 2**20, "h": 2**10, "w": 2**10}, "x"),
    "too_many_outputs": (NAMED | {"k": 2**30}, "weight"),
    "filter_larger_than_the_input": (NAMED | {"r": 9}, "r"),
    "dilated_beyond_the_input": (NAMED | {"dilation_w": 4}, "s"),
    "groups_that_do_not_divide_c": (NAMED | {"groups": 3}, "groups"),
    "groups_that_do_not_divide_k": (NAMED | {"groups": 4}, "groups"),
    "unknown_dtype": (NAMED | {"dtype": "float64"}, "dtype"),
    "unknown_layout": (NAMED | {"layout": "chwn"}, "layout"),
    "zero_stride": (NAMED | {"stride": 0}, "stride_h"),
    "nothing": ({}, "n"),
    "a_size_missing": ({name: size for name, size in NAMED.items() if name != "s"}, "s"),
    "layer_and_size": ({"layer": LAYER, "k": 7}, "k"),
}


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_a_layer_that_is_none_names_its_field(client: Client, name: str) -> None:
    layer, field = BAD_LAYERS[name]
    for response in (
        client.get("/v1/advice", params=layer | {"device": "fake-gpu"}),
        client.post("/v1/convolutions", json=layer),
        client.get("/v1/variants", params=layer) if layer else client.get("/v1/advice"),
    ):
        assert is_problem(response, 400, "invalid-problem")["field"] == field
    (answer,) = client.post("/v1/advice", json={"layers": [layer], "device": "fake-gpu"}).json()["advice"]
    assert answer["error"]["field"] == field


@pytest.mark.parametrize(
    "layer",
    [
        "",
        "14",
        "14-1-3-256",
        "14-1-3-256-128-1",
        "a-b-c-d-e",
        "14-1-3-256-128 ",
        "-1-1-3-4-5",
        "9" * 20 + "-1-1-1-1",
        "١-1-1-1-1x",
    ],
)
def test_a_malformed_short_form_is_told_how_to_write_it(client: Client, layer: str) -> None:
    document = is_problem(client.get("/v1/advice", params={"layer": layer}), 400, "invalid-layer-name")
    assert document["field"] == "layer"
    assert layer[:20] in document["value"]
    is_problem(client.post("/v1/convolutions", json={"layer": layer}), 400, "invalid-layer-name")


@pytest.mark.parametrize("value", ["one", "1.5", "", "1e3", "0x10", "true", "9" * 5000])
def test_a_size_that_is_no_integer_cannot_be_read(client: Client, value: str) -> None:
    document = is_problem(client.get("/v1/advice", params=NAMED | {"k": value}), 422, "unprocessable-entity")
    assert document["errors"][0]["field"] == "query.k"


@pytest.mark.parametrize("value", ["one", 1.5, True, [1], {"k": 1}])
def test_a_size_in_json_that_is_no_integer_cannot_be_read(client: Client, value: Any) -> None:
    document = is_problem(client.post("/v1/convolutions", json=NAMED | {"k": value}), 422, "unprocessable-entity")
    assert document["errors"][0]["field"] == "body.k"


def test_an_unknown_parameter_is_named(client: Client) -> None:
    for path in (f"/v1/advice?layer={LAYER}&color=red", f"/v1/variants?layer={LAYER}&color=red"):
        document = is_problem(client.get(path), 422, "unprocessable-entity")
        assert document["errors"][0]["field"] == "query.color"
    for path, body in (
        ("/v1/advice", {"layers": [LAYER]}),
        ("/v1/convolutions", {"layer": LAYER}),
        ("/v1/models", {}),
    ):
        document = is_problem(client.post(path, json=body | {"color": "red"}), 422, "unprocessable-entity")
        assert document["errors"][0]["field"] == "body.color"
    content = save({"x": X, "weight": WEIGHT}, {"color": "red"})
    document = is_problem(
        client.post("/v1/convolutions", content=content, headers=SAFETENSORS), 422, "unprocessable-entity"
    )
    assert document["errors"][0]["field"] == "body.color"


def test_unknown_names_are_not_found_wherever_they_stand(client: Client) -> None:
    variant = client.post("/v1/convolutions", json={"layer": LAYER, "variant": "cuda.magic"})
    assert FAST in is_problem(variant, 404, "unknown-variant")["known"]
    for response in (
        client.get(f"/v1/advice?layer={LAYER}&device=no-gpu"),
        client.get(f"/v1/variants?layer={LAYER}&device=no-gpu"),
        client.post("/v1/advice", json={"layers": [LAYER], "device": "no-gpu"}),
    ):
        assert is_problem(response, 404, "unknown-device")["name"] == "no-gpu"
    is_problem(client.get("/nowhere"), 404, "not-found")


@pytest.mark.parametrize("device", ["../../etc", "a\0b", "", "x" * 300])
def test_a_device_that_could_be_no_name_cannot_be_read(client: Client, device: str) -> None:
    for response in (
        client.get("/v1/advice", params={"layer": LAYER, "device": device}),
        client.post("/v1/models", json={"device": device}),
        client.request("PUT", "/v1/models/active", json={"device": device, "model": "m"}),
    ):
        is_problem(response, 422, "unprocessable-entity")


def test_a_variant_that_does_not_apply_is_a_conflict_with_its_reason(client: Client) -> None:
    strided = {"layer": LAYER, "stride": 2, "variant": "cuda.winograd_fused"}
    assert "stride" in is_problem(client.post("/v1/convolutions", json=strided), 409, "not-applicable")["reason"]
    other = {"layer": LAYER, "variant": "cpu.direct"}
    assert "cpu devices" in is_problem(client.post("/v1/convolutions", json=other), 409, "not-applicable")["reason"]


CONTRADICTIONS: dict[str, tuple[dict[str, np.ndarray], dict[str, str], str, str]] = {
    "depth": ({"x": X[:, :3].copy(), "weight": WEIGHT}, {}, "invalid-tensor", "weight.shape"),
    "groups": ({"x": X, "weight": WEIGHT}, {"groups": "2"}, "invalid-tensor", "weight.shape"),
    "named_size": ({"x": X, "weight": WEIGHT}, {"n": "3"}, "invalid-tensor", "x.shape"),
    "named_filters": ({"x": X, "weight": WEIGHT}, {"k": "8"}, "invalid-tensor", "weight.shape"),
    "layer": ({"x": X, "weight": WEIGHT}, {"layer": "9-2-3-6-4"}, "invalid-tensor", "x.shape"),
    "layout": ({"x": X, "weight": WEIGHT}, {"layout": "nhwc"}, "invalid-tensor", "weight.shape"),
    "dtype": ({"x": X, "weight": WEIGHT}, {"dtype": "float16"}, "invalid-tensor", "x.dtype"),
    "two_dtypes": ({"x": X, "weight": WEIGHT.astype(np.float16)}, {}, "invalid-tensor", "weight.dtype"),
    "filter_larger_than_input": ({"x": X[:, :, :2].copy(), "weight": WEIGHT}, {}, "invalid-problem", "r"),
    "empty": ({"x": X[:0].copy(), "weight": WEIGHT}, {}, "invalid-tensor", "x.shape"),
    "unknown_dtype": ({"x": X, "weight": WEIGHT}, {"dtype": "int8"}, "invalid-problem", "dtype"),
    "unknown_layout": ({"x": X, "weight": WEIGHT}, {"layout": "chwn"}, "invalid-problem", "layout"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_tensors_that_contradict_the_parameters_are_refused_by_name(client: Client, name: str) -> None:
    tensors, metadata, kind, field = CONTRADICTIONS[name]
    response = client.post("/v1/convolutions", content=save(tensors, metadata), headers=SAFETENSORS)
    assert is_problem(response, 400, kind)["field"] == field


def test_metadata_that_is_no_number_cannot_be_read(client: Client) -> None:
    content = save({"x": X, "weight": WEIGHT}, {"pad_h": "one"})
    response = client.post("/v1/convolutions", content=content, headers=SAFETENSORS)
    assert is_problem(response, 422, "unprocessable-entity")["errors"][0]["field"] == "body.pad_h"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        save({"x": X, "weight": WEIGHT})[:-4],
        save({"x": X, "weight": WEIGHT}) + b"more",
        save({"x": X}),
        save({"x": X, "weight": WEIGHT, "bias": WEIGHT}),
    ],
    ids=["empty", "short", "endless", "long", "nothing", "cut", "more", "one", "three"],
)
def test_a_lying_safetensors_header_is_refused(client: Client, content: bytes) -> None:
    is_problem(client.post("/v1/convolutions", content=content, headers=SAFETENSORS), 400, "invalid-tensor")


@pytest.mark.parametrize(
    "body",
    [
        {"x": [[[[1.0]]]]},
        {"weight": [[[[1.0]]]]},
        {"x": [[[[1.0], [2.0, 3.0]]]], "weight": [[[[1.0]]]]},
        {"x": [[1.0]], "weight": [[[[1.0]]]]},
        {"x": [[[["a"]]]], "weight": [[[[1.0]]]]},
        {"x": {"shape": [1, 1, 1, 1]}, "weight": [[[[1.0]]]]},
    ],
    ids=["x_alone", "weight_alone", "ragged", "flat", "words", "object"],
)
def test_lists_that_are_no_tensors_are_refused(client: Client, body: dict[str, Any]) -> None:
    is_problem(client.post("/v1/convolutions", json=body), 400, "invalid-tensor")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"layer": "8-', b"[" * 100_000, b'"text"'])
@pytest.mark.parametrize("path", ["/v1/advice", "/v1/convolutions", "/v1/models"])
def test_a_body_that_is_no_json_object_cannot_be_read(client: Client, path: str, content: bytes) -> None:
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    is_problem(response, 422, "unprocessable-entity")


@pytest.mark.parametrize("layers", [[], "14-1-3-256-128", [5], [None], {}])
def test_a_list_of_layers_must_be_one(client: Client, layers: Any) -> None:
    is_problem(client.post("/v1/advice", json={"layers": layers}), 422, "unprocessable-entity")


def test_faults_are_counted_and_only_the_first_are_listed(client: Client) -> None:
    document = is_problem(client.post("/v1/advice", json={"layers": [5] * 9000}), 422, "unprocessable-entity")
    assert len(document["errors"]) == 20
    assert document["errors"][0]["field"].startswith("body.layers.0")


@pytest.mark.parametrize("path", ["/v1/advice", "/v1/convolutions", "/v1/models"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_wrong_content_type_is_refused(client: Client, path: str, kind: str) -> None:
    response = client.post(path, content=b"{}", headers={"content-type": kind})
    assert "application/json" in is_problem(response, 415, "unsupported-media-type")["detail"]


def test_a_compressed_body_is_refused(client: Client) -> None:
    for encoding in ("gzip", "br", "deflate", "identity, gzip"):
        response = client.post("/v1/advice", json={"layers": [LAYER]}, headers={"content-encoding": encoding})
        is_problem(response, 415, "unsupported-media-type")


def test_a_wrong_method_is_told_the_right_ones(client: Client) -> None:
    for path, allowed in (
        ("/v1/advice", "GET, HEAD, POST"),
        ("/v1/jobs/none", "DELETE, GET, HEAD"),
        ("/v1/convolutions", "POST"),
        ("/static/page.css", "GET, HEAD"),
    ):
        response = client.request("PATCH", path)
        is_problem(response, 405, "method-not-allowed")
        assert response.headers["allow"] == allowed
        assert response.json()["detail"] == f"PATCH is not taken here; allowed: {allowed}"


def test_a_field_that_is_wrong_or_missing_is_told_with_what_is_allowed(client: Client) -> None:
    def told(body: dict[str, Any]) -> str:
        detail: str = is_problem(client.post("/v1/advice", json=body), 422, "unprocessable-entity")["detail"]
        return detail

    short_forms = "Short forms, or objects of named parameters."
    assert told({"layer": LAYER}) == f"body.layers: Field required: {short_forms}"
    assert told({"layers": []}).endswith(f"at least 1 item after validation, not 0: {short_forms}")
    assert told({"layers": [LAYER], "devic": "h100"}) == "body.devic: no such field; did you mean device?"
    assert "body.xyzzy: no such field; allowed: layer, n, c, h, w," in told({"layers": [LAYER], "xyzzy": 1})
    many = told({"layers": [LAYER]} | {f"devic{index}": 1 for index in range(10_000)})
    assert many == "body.devic0: no such field; did you mean device?, and 9999 more"
    asked = is_problem(client.get(f"/v1/advice?layer={LAYER}&devic=h100"), 422, "unprocessable-entity")
    assert asked["detail"] == "query.devic: no such field; did you mean device?"


async def chunks(count: int, size: int) -> AsyncIterator[bytes]:
    """A body without a length of its own."""
    for _ in range(count):
        yield bytes(size)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("application/octet-stream", MAX_BODY_BYTES), ("application/json", min(MAX_BODY_BYTES, MAX_JSON_BYTES))],
)
def test_a_body_beyond_the_limit_is_refused_before_it_is_read(client: Client, kind: str, limit: int) -> None:
    events: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        events.append({"type": "read"})
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        events.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", kind.encode()), (b"content-length", b"%d" % (limit + 1))]
    scope = {"type": "http", "method": "POST", "path": "/v1/convolutions", "headers": headers}
    client.await_(client.app(scope | {"query_string": b"", "root_path": ""}, receive, send))
    assert [event["type"] for event in events] == ["http.response.start", "http.response.body"]
    assert events[0]["status"] == 413
    assert str(limit) in json.loads(events[1]["body"])["detail"]


def test_every_route_refuses_long_bodies(client: Client) -> None:
    headers = {"content-length": str(10**15)}
    for method, path in (("GET", "/livez"), ("POST", "/v1/models"), ("PUT", "/v1/models/active"), ("POST", "/nowhere")):
        response = client.request(method, path, content=chunks(1, 1), headers=headers)
        is_problem(response, 413, "request-entity-too-large")
        assert response.headers["connection"] == "close"


def test_a_body_without_a_length_is_refused_where_it_passes_the_limit(client: Client) -> None:
    headers = {"content-type": "application/octet-stream"}
    is_problem(
        client.post("/v1/convolutions", content=chunks(100, MAX_BODY_BYTES // 10), headers=headers),
        413,
        "request-entity-too-large",
    )


@pytest.mark.parametrize("length", ["-1", "1.5", "x", "+5", "1" * 30])
def test_a_length_that_is_none_is_refused(client: Client, length: str) -> None:
    headers = {"content-type": "application/json", "content-length": length}
    response = client.post("/v1/advice", content=chunks(1, 1), headers=headers)
    assert response.status_code in (400, 413)
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("limit", ["-1", str(2**70), "much"])
def test_a_workspace_limit_that_is_none_cannot_be_read(client: Client, limit: str) -> None:
    response = client.get("/v1/advice", params={"layer": LAYER, "max_workspace_bytes": limit})
    is_problem(response, 422, "unprocessable-entity")


def test_a_problem_that_the_device_cannot_hold_is_refused_before_it_runs(client: Client) -> None:
    huge = {"n": 2**13, "c": 256, "h": 16, "w": 16, "k": 256, "r": 1, "s": 1}
    for variant in ("advised", "all", LEAN):
        response = client.post("/v1/convolutions", json=huge | {"variant": variant})
        is_problem(response, 507, "out-of-memory")


def test_no_bad_input_brought_anything_down(client: Client) -> None:
    assert client.get("/readyz").status_code == 200
    ran = client.post(
        "/v1/convolutions",
        content=json.dumps({"layer": LAYER, "variant": LEAN}),
        headers={"content-type": "application/json; charset=utf-8"},
    )
    assert ran.status_code == 200


@pytest.mark.parametrize("value", ["1_0", "+1", " 1", "1 ", "1.0", "0x1", "١", "true", ""])
@pytest.mark.parametrize("name", ["n", "max_workspace_bytes"])
def test_an_integer_in_a_url_is_plain_digits(client: Client, name: str, value: str) -> None:
    sizes = {"n": "1", "c": "4", "h": "8", "w": "8", "k": "4", "r": "3", "s": "3"} | {name: value}
    for path in ("/v1/advice", "/v1/pareto"):
        problem = is_problem(client.get(path, params=sizes), 422, "unprocessable-entity")
        assert problem["errors"][0]["field"] == f"query.{name}"


DETAILS = (
    *("/v1/advice", "/v1/pareto", "/v1/neighbours", "/v1/snippets"),
    *("/v1/explanations", "/v1/landscapes", "/v1/variants"),
)
"""Where a layer is given in the URL."""


@pytest.mark.parametrize(
    ("query", "plainly"),
    [
        ("stride=2x1", "stride_h=2&stride_w=1"),
        ("stride=2,1", "stride_h=2&stride_w=1"),
        ("stride=2&stride=1", "stride_h=2&stride_w=1"),  # as a generated client sends a list
        ("strides=2&strides=1", "stride_h=2&stride_w=1"),
        ("stride=2", "stride_h=2&stride_w=2"),
        ("padding=valid", "pad_h=0&pad_w=0"),
        ("pads=1&pads=2&pads=1&pads=2", "pad_h=1&pad_w=2"),
    ],
)
def test_pairs_in_a_url_are_read_alike_everywhere(client: Client, query: str, plainly: str) -> None:
    layer = f"layer={LAYER}&dtype=float16&language=python"
    for path in DETAILS:
        given = layer if path == "/v1/snippets" else layer.removesuffix("&language=python")
        answer = client.get(f"{path}?{given}&{query}")
        assert answer.status_code == 200, answer.text
        assert answer.json() == client.get(f"{path}?{given}&{plainly}").json()


@pytest.mark.parametrize("value", ["2;1", "1x1x1x1x1", "1_0", "2&stride=1_0", "1&stride=2&stride=3&stride=4&stride=5"])
def test_a_pair_that_is_none_is_refused_by_name(client: Client, value: str) -> None:
    for path in DETAILS:
        answer = client.get(f"{path}?layer=14-1-3-4-4&stride={value}")
        assert answer.status_code in (400, 422), answer.text
        problem = answer.json()
        fields = [problem["field"]] if "field" in problem else [fault["field"] for fault in problem["errors"]]
        assert {field.removeprefix("query.") for field in fields} == {"stride"}


@pytest.mark.parametrize("query", ["layer=15-1-3-4-4", "%6cayer=15-1-3-4-4", "dtype=float16&dtype=float32", "n=1&n=1"])
def test_a_parameter_that_is_given_twice_is_refused(client: Client, query: str) -> None:
    for path in (*DETAILS, "/v1/jobs"):
        problem = is_problem(client.get(f"{path}?layer=14-1-3-4-4&{query}"), 400, "bad-request")
        assert re.fullmatch(r"the parameter '\w+' is given more than once; allowed: once", problem["detail"])


@pytest.mark.parametrize("name", ["host", "content-type", "content-length", "origin"])
def test_a_header_that_is_given_twice_is_refused(client: Client, name: str) -> None:
    twice = [(name, "localhost"), (name, "localhost")]
    others = [] if name == "host" else [("host", "localhost")]
    problem = is_problem(client.get("/v1/networks", headers=[*others, *twice]), 400, "bad-request")
    assert problem["detail"] == f"the header {name} is given more than once; allowed: once"


def test_a_number_that_is_none_is_said_in_our_words(client: Client) -> None:
    problem = is_problem(client.get(f"/v1/advice?layer={LAYER}&max_workspace_bytes=1e6"), 422, "unprocessable-entity")
    assert problem["detail"] == "query.max_workspace_bytes: an integer in plain digits"
