"""GET and POST /v1/plans through the real application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conv_advisor.app.plans import planning
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from tests.app.serving import FAST, GPU, Client, is_problem, serving
from tests.onnx_models import Build, block, stored

ONNX = {"content-type": "application/onnx"}
KINDS = {400: "invalid-input", 404: "unknown-device", 415: "unsupported-media-type", 422: "unprocessable-entity"}
FOR = "device=nvidia-h200&dtype=float16"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), has_tree=False) as client:
        yield client


def test_a_model_is_planned(client: Client) -> None:
    response = client.post(f"/v1/plans?{FOR}&batches=1,32&name=block.onnx", content=block(), headers=ONNX)
    assert response.status_code == 200, response.text
    first, second = response.json()["plans"]
    assert (first["batch"], second["batch"], second["network"]) == (1, 32, "block.onnx")
    assert [layer["problem"]["n"] for layer in second["layers"]] == [32, 32, 32]
    assert second["time_ms"] > first["time_ms"] > 0
    assert second["against"]["pytorch_default"]["speedup"] > 1
    assert second["against"]["pytorch_benchmark"]["speedup"] > 1


def test_a_network_that_ships_is_planned(client: Client) -> None:
    response = client.get(f"/v1/plans?{FOR}&name=resnet50&batches=8")
    assert response.status_code == 200, response.text
    (plan,) = response.json()["plans"]
    assert (plan["n_convolutions"], plan["conversions"]) == (53, [])
    assert sum(layer["share"] for layer in plan["layers"]) == pytest.approx(1)


def test_a_model_is_planned_in_its_own_precision(client: Client) -> None:
    for precision, dtype in (("FLOAT16", "float16"), ("BFLOAT16", "bfloat16"), ("FLOAT", "float32")):
        (plan,) = client.post("/v1/plans?device=nvidia-h200", content=stored(precision), headers=ONNX).json()["plans"]
        assert {layer["problem"]["dtype"] for layer in plan["layers"]} == {dtype}
    refused = client.post("/v1/plans?device=nvidia-h200", content=stored("DOUBLE"), headers=ONNX)
    is_problem(refused, 400, "invalid-input")
    assert "DOUBLE" in refused.text


@pytest.mark.parametrize(
    ("query", "body", "headers", "status", "said"),
    [
        ("", b"", ONNX, 400, "a graph of nodes"),
        ("", block()[:500], ONNX, 400, "cannot be parsed"),
        ("", block(), {"content-type": "application/json"}, 415, "application/onnx"),
        ("batches=0", block(), ONNX, 400, "batches"),
        ("batches=1,x", block(), ONNX, 400, "batches"),
        ("dims=height", block(), ONNX, 400, "height=224"),
        ("dims=height=3", block(), ONNX, 400, "no symbolic dimension|batch"),
        ("dtype=int8", block(), ONNX, 422, "dtype"),
        ("device=nobody", block(), ONNX, 404, "nobody"),
        ("colour=red", block(), ONNX, 422, "colour"),
    ],
)
def test_what_cannot_be_planned_says_why(
    client: Client, query: str, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    response = client.post(f"/v1/plans?{query}", content=body, headers=headers)
    is_problem(response, status, KINDS[status])
    assert any(each in response.text for each in said.split("|"))


def test_a_model_without_convolutions_has_no_plan(client: Client) -> None:
    build = Build()
    response = client.post(f"/v1/plans?{FOR}", content=build.bytes(build.node("Relu", "x")), headers=ONNX)
    is_problem(response, 409, "no-advice")
    assert "no 2-D convolution" in response.text


def test_a_device_that_was_measured_in_one_layout_alone_has_a_plan(client: Client) -> None:
    problem = ConvProblem.parse("28-8-3-64-32", layout="nhwc")
    client.app.state.service.store.append(
        [Measurement(problem, FAST, GPU, Outcome.MEASURED, "", (0.1, 0.1, 0.1), 0, 1e-7)]
    )
    build = Build("batch", 32, 28, 28)
    body = build.bytes(build.conv("x", 64, 32))
    response = client.post("/v1/plans?device=fake-gpu&batches=8", content=body, headers=ONNX)
    assert response.status_code == 200, response.text
    (plan,) = response.json()["plans"]
    assert (plan["layers"][0]["problem"]["layout"], plan["time_ms"]) == ("nhwc", pytest.approx(0.1))
    assert any("not counted" in each for each in plan["remarks"])


def test_an_unknown_network_is_refused(client: Client) -> None:
    is_problem(client.get("/v1/plans?name=resnet51"), 404, "unknown-network")


def test_more_than_can_be_planned_in_time_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build(1, 64, 28, 28)
    body = build.bytes(*(build.conv("x", k, 64) for k in (32, 64, 96)))
    monkeypatch.setattr(planning, "MAX_DIFFERENT", 6)
    assert client.post(f"/v1/plans?{FOR}&batches=1,2", content=body, headers=ONNX).status_code == 200
    problem = is_problem(
        client.post(f"/v1/plans?{FOR}&batches=1,2,4", content=body, headers=ONNX), 400, "invalid-input"
    )
    assert problem["field"] == "model"
    assert "3 different convolutions in 3 batches" in problem["detail"]
    assert "at most 6" in problem["allowed"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_plan_ends_with_the_service(client: Client, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    service, advise, advised = client.app.state.service, planning.advise, []
    monkeypatch.setattr(service, "_is_given_up", False)  # so that it is so again
    monkeypatch.setattr(service.worker, "give_up", lambda: None)

    def advise_until_the_end(*given: Any) -> Iterator[Any]:
        for answer in advise(*given):
            advised.append(answer)
            service.give_up()
            yield answer

    monkeypatch.setattr(planning, "advise", advise_until_the_end)
    body = block() if method == "POST" else b""
    response = client.request(method, f"/v1/plans?{FOR}&name=resnet50", content=body, headers=ONNX)
    is_problem(response, 503, "worker-error")
    assert response.headers["retry-after"]
    assert len(advised) == 1


def test_a_model_has_its_place_until_it_is_planned(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    free = []
    plan, places = planning.plan_network, planning._PLANNERS
    monkeypatch.setattr(planning, "plan_network", lambda *given: free.append(places._value) or plan(*given))
    assert client.post(f"/v1/plans?{FOR}", content=block(), headers=ONNX).status_code == 200
    assert free == [planning.AT_ONCE - 1]
    assert places._value == planning.AT_ONCE


def test_more_models_than_are_planned_at_once_come_back_later(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning._PLANNERS, "acquire", lambda blocking: False)
    response = client.post(f"/v1/plans?{FOR}", content=block(), headers=ONNX)
    is_problem(response, 503, "queue-full")
    assert response.headers["retry-after"]


PAGE = {**ONNX, "hx-request": "true"}


def test_the_page_shows_a_model_before_and_after(client: Client) -> None:
    response = client.post(f"/plan?{FOR}&batches=1,32&name=block.onnx", content=block(), headers=PAGE)
    assert response.status_code == 200, response.text
    plans = client.post(f"/v1/plans?{FOR}&batches=1,32", content=block(), headers=ONNX).json()["plans"]
    for plan in plans:
        assert f"block.onnx, batch {plan['batch']}" in response.text
        for layer in plan["layers"]:
            assert f"layer={ConvProblem.parse(layer['problem']['layer']).brief}&amp;" in response.text
    assert "PyTorch in channels_last" in response.text
    assert "<html" not in response.text


def test_a_layer_is_held_against_pytorch_in_nchw(client: Client) -> None:
    (plan,) = client.get(f"/v1/plans?{FOR}&name=resnet50&batches=8").json()["plans"]
    default_ms = sum(layer["pytorch_default_speedup"] * layer["total_ms"] for layer in plan["layers"])
    assert default_ms == pytest.approx(plan["against"]["pytorch_default"]["time_ms"])


@pytest.mark.parametrize(
    ("query", "body", "said"),
    [("", b"no model", "cannot be parsed"), ("batches=0", block(), "batches"), ("dtype=int8", block(), "dtype")],
)
def test_the_page_says_why_a_model_has_no_plan(client: Client, query: str, body: bytes, said: str) -> None:
    response = client.post(f"/plan?{query}", content=body, headers=PAGE)
    assert response.status_code == 400
    assert 'role="alert"' in response.text
    assert 'id="answer"' in response.text
    assert said in response.text


def test_a_network_that_nobody_knows_has_a_page_that_says_so(client: Client) -> None:
    response = client.get("/plan?name=resnet51")
    assert response.status_code == 404
    assert "resnet50" in response.text
