"""GET /v1/advice says what the schemas, the rules and the tree say one after the other, however fast it gets there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError

from conv_advisor.app.server.application import Application
from conv_advisor.app.wire.answers.advice import advice_answer
from conv_advisor.app.wire.errors import problem_of
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.schemas import AdviceQuery
from conv_advisor.data.errors import ConvAdvisorError, UnknownDevice
from conv_advisor.data.gpus import listed
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.sampling import sample_problems
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from tests.app.serving import LAYER, Client, is_problem, serving

MODEL = read(SHIPPED / "nvidia-h200")
SHORTS = [each.short for each in sample_problems(300, seed=8)]
SIZES = st.sampled_from(
    ["0", "1", "2", "3", "4", "8", "14", "64", "007", "-1", "+5", "", "x", "1e3", "9" * 12, "2147483648"]
)
VALUES: dict[str, Any] = {
    "layer": st.sampled_from(
        [*SHORTS, "14-1-3", "", "0-1-1-1-1", "7-1-1-32-832 ", "14-1-3-256-128", "9" * 300, "٣-1-1-1-1"]
    ),
    **dict.fromkeys(("n", "c", "h", "w", "k", "r", "s", "stride", "pad_h", "pad", "dilation", "groups"), SIZES),
    "dtype": st.sampled_from([*DType, "float64", "FLOAT16", ""]),
    "layout": st.sampled_from([*Layout, "chwn"]),
    "max_workspace_bytes": st.sampled_from(["0", "1000000", "33554432", "-1", "many", "9223372036854775807"]),
    "deterministic": st.sampled_from(["true", "false", "1", "no", "maybe"]),
    "ranking": st.sampled_from(["true", "false", "0", "nothing"]),
    "only": st.sampled_from(["cudnn", "CUDNN", "nvidia", ""]),
    "baselines": st.sampled_from(["true", "false", "on", "nothing"]),
    "unknown": st.just("1"),
}
COMMON = st.fixed_dictionaries(
    {"layer": st.sampled_from(SHORTS)},
    optional={
        name: VALUES[name]
        for name in ("dtype", "layout", "max_workspace_bytes", "deterministic", "only", "ranking", "baselines")
    },
)
ANY = st.sets(st.sampled_from(sorted(VALUES)), max_size=9).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
)
DEVICES = st.sampled_from(["nvidia-h200"] * 8 + ["nowhere", "no such device"])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home")) as client:
        yield client


def plainly(query: str) -> tuple[int, Any]:
    """The status and the answer, made by what describes them and nothing that is there to be fast."""
    try:
        asked = AdviceQuery.model_validate(dict(parse_qsl(query, keep_blank_values=True)))
    except ValidationError:
        return 422, None
    try:
        problem = problem_from(asked.given())
        if asked.device != "nvidia-h200":
            raise UnknownDevice(str(asked.device), listed(["fake-gpu", "nvidia-h200"]))
        limit = 2**30 if asked.max_workspace_bytes is None else asked.max_workspace_bytes
        advisor = Advisor(MODEL).only(asked.only)
        advice = advisor.advise(problem, max_workspace_bytes=limit, is_deterministic=asked.deterministic)
    except ConvAdvisorError as error:
        document = problem_of(error)
        return document["status"], document
    answer: dict[str, Any] = dict(advice_answer(advice))
    if not asked.ranking:
        answer["layer"] = problem.short
        wanted = ("layer", "variant", "time_ms", "source", "model", "device", *(["baselines"] * asked.baselines))
        answer = {name: answer[name] for name in wanted}
    return 200, answer


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(COMMON, ANY), DEVICES)
def test_every_answer_and_every_error_is_that_of_the_plain_way(
    client: Client, asked: dict[str, str], device: str
) -> None:
    query = urlencode(asked | {"device": device})
    status, expected = plainly(query)
    for _ in range(2):  # the second is kept
        response = client.get(f"/v1/advice?{query}")
        assert response.status_code == status, response.text
        if status == 422:
            is_problem(response, 422, "unprocessable-entity")
        elif "known" in expected:
            lists = {"known": None, "detail": None}  # GPUs that borrow a tree are among them
            assert {**response.json(), **lists} == {**expected, **lists}
            assert response.json()["detail"].startswith(expected["detail"])
        else:
            assert response.json() == json.loads(json.dumps(expected))


def test_the_best_alone_is_the_first_of_the_ranking_measured_or_not(client: Client) -> None:
    seen = {short: client.get(f"/v1/advice?layer={short}&device=fake-gpu").json() for short in (LAYER, "28-8-3-64-32")}
    for short, whole in seen.items():
        alone = client.get(f"/v1/advice?layer={short}&device=fake-gpu&ranking=false").json()
        shared = {name: whole[name] for name in ("variant", "time_ms", "source", "model", "device")}
        assert alone == {"layer": short} | shared


def test_a_request_that_is_traced_is_answered_by_its_route(client: Client) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = Application(telemetry={"tracer_provider": provider})
    assert app.is_observed
    assert not client.app.is_observed


def test_every_layer_marks_even_an_error_that_nobody_foresaw(client: Client) -> None:
    @client.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("nobody foresaw it")

    response = client.get("/broken")
    is_problem(response, 500, "internal-server-error")
    assert response.headers["x-request-id"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_layer_comes_before_the_first_request_or_not_at_all(client: Client) -> None:
    client.get("/livez")
    with pytest.raises(RuntimeError, match="has begun to answer"):
        client.app.add_middleware(object)
