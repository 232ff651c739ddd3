"""The forms in which tensors come and go: .npy and the Open Inference Protocol, through the real application."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from conv_advisor.app.wire.body import MAX_JSON_BYTES
from conv_advisor.app.wire.npy import read_npy, write_npy
from conv_advisor.app.wire.safetensors import read_safetensors
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from tests.app.serving import FAST, LAYER, LEAN, SLOW, SMALL, TIMES_MS, Client, is_problem, serving

VARIED = [replace(SMALL, dtype=dtype, layout=layout) for dtype in DType for layout in Layout]
NPY = {"content-type": "application/x-npy"}
DATATYPES = {"float32": "FP32", "tf32": "FP32", "float16": "FP16", "bfloat16": "BF16"}
INFER = "/v2/models/conv/infer"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), *VARIED, max_body_bytes=2**20 * 16) as client:
        yield client


def npy(*arrays: np.ndarray) -> bytes:
    return b"".join(part for array in arrays for part in write_npy(array))


def inference(problem: ConvProblem, *tensors: np.ndarray, **more: Any) -> tuple[bytes, dict[str, str]]:
    """A binary request, and its headers."""
    inputs = [
        {
            "name": name,
            "datatype": DATATYPES[problem.dtype],
            "shape": tensor.shape,
            "parameters": {"binary_data_size": tensor.nbytes},
        }
        for name, tensor in zip(("x", "weight"), tensors, strict=True)
    ]
    head = json.dumps({"inputs": inputs} | more).encode()
    return head + b"".join(each.tobytes() for each in tensors), {"Inference-Header-Content-Length": str(len(head))}


def opened(response: httpx.Response) -> tuple[dict[str, Any], bytes]:
    """The JSON of a binary answer, and what follows it."""
    assert response.status_code == 200, response.text
    length = int(response.headers["inference-header-content-length"])
    return json.loads(response.content[:length]), response.content[length:]


@pytest.mark.parametrize("problem", VARIED, ids=lambda problem: problem.key)
def test_npy_and_inference_give_the_y_that_safetensors_gives(client: Client, problem: ConvProblem) -> None:
    x, weight = reference.random_operands(problem, seed=1)
    asked = {"pad": "1", "dtype": str(problem.dtype), "layout": str(problem.layout), "variant": SLOW}
    headers = {"content-type": "application/vnd.safetensors"}
    content = save({"x": x, "weight": weight}, asked)
    response = client.post("/v1/convolutions", content=content, headers=headers)
    y = read_safetensors(np.frombuffer(response.content, np.uint8), ("y",))[0]["y"]

    by_npy = client.post("/v1/convolutions", params=asked, content=npy(x, weight), headers=NPY)
    assert by_npy.headers["content-type"] == "application/x-npy"
    assert read_npy(np.frombuffer(by_npy.content, np.uint8), ("y",))["y"].tobytes() == y.tobytes()

    content, headers = inference(problem, x, weight, parameters=asked | {"binary_data_output": True})
    head, data = opened(client.post(INFER, content=content, headers=headers))
    (output,) = head["outputs"]
    assert (output["name"], output["datatype"]) == ("y", DATATYPES[problem.dtype])
    assert tuple(output["shape"]) == problem.y_shape
    assert data == y.tobytes()


def test_npy_takes_the_layer_from_the_url_and_says_the_rest_in_a_header(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    response = client.post(f"/v1/convolutions?layer={LAYER}", content=npy(x, weight), headers=NPY)
    summary = json.loads(response.headers["convolution"])
    assert (summary["variant"], summary["chosen_by"], summary["outcome"]) == (FAST, "advice", "measured")
    assert summary["time_ms"] == pytest.approx(TIMES_MS[FAST])
    y = np.load(io.BytesIO(response.content), allow_pickle=False)
    np.testing.assert_array_equal(y, reference.convolve(SMALL, x, weight).astype(np.float32))


def test_accept_gives_npy_to_whoever_asks(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    lists = {"x": x.tolist(), "weight": weight.tolist(), "pad": 1, "variant": LEAN}
    response = client.post("/v1/convolutions", json=lists, headers={"accept": "application/x-npy"})
    assert np.load(io.BytesIO(response.content)).shape == SMALL.y_shape
    as_json = client.post(
        "/v1/convolutions?pad=1", content=npy(x, weight), headers=NPY | {"accept": "application/json"}
    ).json()
    assert np.array(as_json["y"]).shape == SMALL.y_shape


@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("layer=9-2-3-6-4", 400, "invalid-tensor"),
        ("pad=1&dtype=float16", 400, "invalid-tensor"),
        ("pad=1&variant=nobody", 404, "unknown-variant"),
        ("pad=much", 400, "invalid-problem"),
        ("padded=1", 422, "unprocessable-entity"),
        ("x=1", 422, "unprocessable-entity"),
    ],
)
def test_parameters_in_the_url_that_are_wrong_are_told(client: Client, query: str, status: int, kind: str) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    is_problem(client.post(f"/v1/convolutions?{query}", content=npy(x, weight), headers=NPY), status, kind)


def test_tensors_of_another_type_than_dtype_are_told_which_it_is(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    response = client.post("/v1/convolutions?pad=1&dtype=float16", content=npy(x, weight), headers=NPY)
    assert is_problem(response, 400, "invalid-tensor")["allowed"] == (
        "float16, with dtype=float16; for these tensors dtype=float32 or tf32"
    )


def test_one_array_is_not_enough(client: Client) -> None:
    x, _ = reference.random_operands(SMALL, seed=1)
    response = client.post("/v1/convolutions?pad=1", content=npy(x), headers=NPY)
    assert is_problem(response, 400, "invalid-tensor")["field"] == "weight"


@pytest.mark.parametrize("path", ["/v1/convolutions", INFER])
@pytest.mark.parametrize(
    "kind",
    [
        *("application/x-npz", "application/zip", "application/x-pickle", "application/python-pickle", "text/plain"),
        *("multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/gzip"),
    ],
)
def test_other_forms_are_refused_and_the_right_ones_named(client: Client, path: str, kind: str) -> None:
    response = client.post(path, content=b"PK\x03\x04", headers={"content-type": kind})
    assert "application/json" in is_problem(response, 415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize("path", ["/v1/convolutions", INFER])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_tensors_are_refused(client: Client, path: str, encoding: str) -> None:
    response = client.post(path, content=b"x", headers=NPY | {"content-encoding": encoding})
    assert "identity" in is_problem(response, 415, "unsupported-media-type")["detail"]


def test_the_protocols_metadata_and_health(client: Client) -> None:
    client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})  # waits for the worker
    server = client.get("/v2").json()
    assert server["extensions"] == ["binary_tensor_data"]
    assert server["name"]
    assert server["version"]
    model = client.get("/v2/models/conv").json()
    assert [each["name"] for each in model["inputs"]] == ["x", "weight", "bias", "residual"]
    assert [each["name"] for each in model["outputs"]] == ["y"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/conv/ready"):
        assert client.get(path).status_code == 200
    assert client.get("/v2/models/conv/versions/1").json() == model
    assert client.get("/v2/models/conv/versions/1/ready").status_code == 200
    for path in ("/v2/models/conv/versions/2", "/v2/models/conv/versions/2/ready"):
        assert "versions/2" in is_problem(client.get(path), 404, "unknown-model")["error"]
    for path in ("/v2/models/resnet", "/v2/models/resnet/ready"):
        assert "resnet" in is_problem(client.get(path), 404, "unknown-model")["error"]


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({"host": "elsewhere.example"}, 421, "misdirected-request"),
        ({"origin": "https://elsewhere.example"}, 403, "forbidden"),
        ({"content-encoding": "gzip"}, 415, "unsupported-media-type"),
        ({"content-length": "x"}, 400, "bad-request"),
        ({"transfer-encoding": "gzip, chunked"}, 501, "not-implemented"),
    ],
)
def test_a_refusal_at_the_border_has_the_protocols_error(
    client: Client, headers: dict[str, str], status: int, kind: str
) -> None:
    problem = is_problem(client.post(INFER, content=b"{}", headers=headers), status, kind)
    assert problem["error"] == problem["detail"]
    assert "error" not in is_problem(client.post("/v1/convolutions", content=b"{}", headers=headers), status, kind)


def test_a_version_in_the_path_and_the_protocols_own_parameters_are_taken(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    inputs = [
        {"name": name, "datatype": "FP32", "shape": each.shape, "data": each.ravel().tolist()}
        for name, each in (("x", x), ("weight", weight))
    ]
    own = {"pad": 1, "variant": LEAN, "priority": 3, "timeout": 10_000_000, "sequence_id": 4}
    answer = client.post("/v2/models/conv/versions/1/infer", json={"inputs": inputs, "parameters": own}).json()
    assert answer["model_version"] == "1"
    assert answer["outputs"][0]["shape"] == list(SMALL.y_shape)


def test_it_lives_but_is_not_ready_without_a_worker(tmp_path: Path) -> None:
    from conv_advisor.app.main import create_app
    from conv_advisor.app.settings import Settings
    from conv_advisor.data.errors import WorkerError

    def refuse(_settings: Settings) -> Any:
        raise WorkerError("no device")

    own = Client(create_app(Settings(home=tmp_path, start_timeout_s=1), open_engine=refuse, timings=tmp_path))
    try:
        assert own.get("/v2/health/live").status_code == 200
        for path in ("/v2/health/ready", "/v2/models/conv/ready"):
            assert "worker" in is_problem(own.get(path), 503, "service-unavailable")["missing"]
    finally:
        own.close()


def test_a_request_of_numbers_is_answered_with_numbers(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    inputs = [
        {"name": name, "datatype": "FP32", "shape": tensor.shape, "data": tensor.ravel().tolist()}
        for name, tensor in (("weight", weight), ("x", x))
    ]
    response = client.post(INFER, json={"id": "7", "inputs": inputs, "parameters": {"layer": LAYER, "variant": LEAN}})
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert (answer["model_name"], answer["id"]) == ("conv", "7")
    assert answer["parameters"]["variant"] == LEAN
    assert answer["parameters"]["time_ms"] == pytest.approx(TIMES_MS[LEAN])
    (output,) = answer["outputs"]
    expected = reference.convolve(SMALL, x, weight).astype(np.float32)
    np.testing.assert_array_equal(np.array(output["data"], np.float32).reshape(output["shape"]), expected)


@pytest.mark.parametrize(
    ("more", "status", "kind"),
    [
        ({"parameters": {"layer": "9-2-3-6-4"}}, 400, "invalid-tensor"),
        ({"parameters": {"variant": "nobody", "pad": 1}}, 404, "unknown-variant"),
        ({"parameters": {"nonsense": 1}}, 422, "unprocessable-entity"),
        ({"outputs": [{"name": "z"}]}, 400, "invalid-tensor"),
    ],
)
def test_an_error_says_what_the_protocol_wants_said(client: Client, more: Any, status: int, kind: str) -> None:
    content, headers = inference(SMALL, *reference.random_operands(SMALL, seed=1), **more)
    document = is_problem(client.post(INFER, content=content, headers=headers), status, kind)
    assert document["error"] == document["detail"]


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "99999999", "9" * 30])
def test_a_length_of_the_json_that_is_none_is_refused(client: Client, length: str) -> None:
    content, headers = inference(SMALL, *reference.random_operands(SMALL, seed=1))
    headers = dict.fromkeys(headers, length)
    is_problem(client.post(INFER, content=content, headers=headers), 400, "bad-request")


def test_json_is_bounded_whatever_the_body_is_called(client: Client) -> None:
    content = b'{"inputs": [' + b" " * MAX_JSON_BYTES + b"]}"
    for kind in ("application/json", "application/octet-stream"):
        response = client.post(INFER, content=content, headers={"content-type": kind})
        is_problem(response, 413, "request-entity-too-large")
