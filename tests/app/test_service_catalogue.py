"""What there is, whether it is ready, and what every answer carries."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from conv_advisor.app.advice import insight
from conv_advisor.app.convolve.answers import ConvolutionAnswer
from conv_advisor.app.jobs.answers import JobsAnswer
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.answers.advice import AdviceAnswer, BulkAdviceAnswer
from conv_advisor.app.wire.answers.catalogue import DevicesAnswer, NetworkAnswer, NetworksAnswer, VariantsAnswer
from conv_advisor.app.wire.answers.models import ModelsAnswer
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import networks
from conv_advisor.data.errors import StoreError, WorkerError
from conv_advisor.data.store import Store
from conv_advisor.kernels.catalog import VARIANTS
from tests.app.serving import FAST, LAYER, LEAN, REFUSED, Client, is_problem, serving
from tests.processes import eventually

REFUSED_ON = "14-1-3-256-128"

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home")) as client:
        assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN}).status_code == 200
        yield client


def test_every_variant_is_listed(client: Client) -> None:
    listed = client.get("/v1/variants").json()["variants"]
    assert [variant["id"] for variant in listed] == list(VARIANTS)
    assert all(variant["source"] and "applies" not in variant for variant in listed)


def test_variants_say_whether_they_compute_a_layer_and_why_not(client: Client) -> None:
    answer = client.get("/v1/variants?layer=14-1-5-8-8&dtype=float16").json()
    listed = {variant["id"]: variant for variant in answer["variants"]}
    assert answer["device"] == "fake-gpu"
    assert answer["problem"]["dtype"] == "float16"
    assert (listed[FAST]["applies"], listed[FAST]["reason"]) == (True, None)
    assert not listed["cuda.winograd_fused"]["applies"]
    assert "5x5" in listed["cuda.winograd_fused"]["reason"]
    assert "cpu devices" in listed["cpu.direct"]["reason"]
    assert listed["cuda.gemm"]["workspace_bytes"] is not None


def test_what_does_not_run_says_so_as_advice_does(client: Client) -> None:
    is_problem(client.post("/v1/convolutions", json={"layer": REFUSED_ON, "variant": REFUSED}), 409, "not-supported")
    for layer in (REFUSED_ON, "28-1-5-64-32"):
        query = f"layer={layer}&device=fake-gpu"
        advice = client.get(f"/v1/advice?{query}&max_workspace_bytes={2**62}").json()
        out = {exclusion["variant"]: exclusion["reason"] for exclusion in advice["excluded"]}
        unknown = {name for name, reason in out.items() if "the model does not know it" in reason}
        ranked = {choice["variant"] for choice in advice["ranking"]}
        listed = {variant["id"]: variant for variant in client.get(f"/v1/variants?{query}").json()["variants"]}
        ours = {name: variant for name, variant in listed.items() if variant["device_kind"] == "cuda"}
        assert {name for name, variant in ours.items() if variant["applies"]} == ranked | unknown
        said = {name: variant["reason"] for name, variant in ours.items() if not variant["applies"]}
        assert said == {name: reason for name, reason in out.items() if name not in unknown}
        assert listed["cudnn.gemm"]["reason"] == (
            "not supported: as recorded"
            if layer == REFUSED_ON
            else "predicted as not supported: it is under 1 % likely to run"
        )


def test_devices_say_who_owns_them_and_who_models_them(client: Client) -> None:
    devices = {device["id"]: device for device in client.get("/v1/devices").json()["devices"]}
    assert devices["fake-gpu"]["is_worker"]
    assert devices["fake-gpu"]["has_model"]
    assert devices["fake-gpu"]["capability"] == "9.0"


def test_networks_give_their_layers_with_sources(client: Client) -> None:
    listed = {network["name"]: network["layers"] for network in client.get("/v1/networks").json()["networks"]}
    assert listed["seeds"] == 86
    layers = client.get("/v1/networks/alexnet").json()["layers"]
    assert [layer["layer"] for layer in layers] == [layer.problem.short for layer in networks.layers("alexnet")]
    assert all(layer["source"] for layer in layers)
    assert "alexnet" in is_problem(client.get("/v1/networks/lenet"), 404, "unknown-network")["known"]


def test_it_lives_and_is_ready(client: Client) -> None:
    assert client.get("/livez").json() == {"status": "live"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_it_lives_but_is_not_ready_without_a_worker_or_a_model(tmp_path: Path) -> None:
    def refuse(_settings: Settings) -> Engine:
        raise WorkerError("no such device")

    app = create_app(Settings(home=tmp_path), open_engine=refuse, timings=tmp_path / "nothing")
    client = Client(app)
    try:
        assert eventually(lambda: "no such device" in client.get("/readyz").text)
        document = is_problem(client.get("/readyz"), 503, "service-unavailable")
        assert "worker" in document["missing"]
        assert client.get("/livez").status_code == 200
        is_problem(client.post("/v1/convolutions", json={"layer": LAYER}), 503, "worker-error")
    finally:
        client.close()


def test_a_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        own.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
        for table in ("measurements", "devices"):
            with own.app.state.service.store.engine.begin() as connection:
                connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO gone_{table}")
        assert "store" in is_problem(own.get("/readyz"), 503, "service-unavailable")["missing"]
        is_problem(own.get(f"/v1/advice?layer={LAYER}&device=fake-gpu"), 503, "store-error")


def test_a_store_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    app = create_app(Settings(home=tmp_path / "file"), timings=tmp_path)
    with pytest.raises(StoreError):
        Client(app)


def test_every_answer_carries_an_id_and_headers_of_caution(client: Client) -> None:
    for path in ("/livez", "/v1/advice?layer=x", "/nowhere", "/openapi.json"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert len(headers["x-request-id"]) == 16
    assert client.get("/livez", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert client.get("/livez", headers={"x-request-id": "a b\x7f" * 40}).headers["x-request-id"] != "a b\x7f" * 40


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        (AdviceAnswer, f"/v1/advice?layer={LAYER}&device=fake-gpu"),
        (VariantsAnswer, f"/v1/variants?layer={LAYER}"),
        (VariantsAnswer, "/v1/variants"),
        (DevicesAnswer, "/v1/devices"),
        (NetworksAnswer, "/v1/networks"),
        (NetworkAnswer, "/v1/networks/vgg19"),
        (ModelsAnswer, "/v1/models"),
        (JobsAnswer, "/v1/jobs"),
        (insight.ExplanationAnswer, f"/v1/explanations?layer={LAYER}"),
        (insight.LandscapeAnswer, f"/v1/landscapes?layer={LAYER}"),
    ],
)
def test_answers_are_what_their_schema_says(client: Client, answer: type, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200, response.text
    TypeAdapter(answer).validate_json(response.content, strict=True, extra="forbid")


def test_posted_answers_are_what_their_schema_says(client: Client) -> None:
    ran = client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
    TypeAdapter(ConvolutionAnswer).validate_json(ran.content, strict=True, extra="forbid")
    bulk = client.post("/v1/advice", json={"layers": [LAYER, "x"], "device": "fake-gpu"})
    TypeAdapter(BulkAdviceAnswer).validate_json(bulk.content, strict=True, extra="forbid")


def test_the_openapi_document_has_every_route_with_its_errors_and_examples(client: Client) -> None:
    document = client.get("/openapi.json").json()
    expected = {"/v1/advice", "/v1/convolutions", "/v1/models", "/v1/models/active", "/v1/jobs", "/v1/jobs/{job_id}"}
    expected |= {"/v1/variants", "/v1/devices", "/v1/networks", "/v1/networks/{name}", "/livez", "/readyz"}
    expected |= {"/v1/explanations", "/v1/landscapes", "/v1/pareto", "/v1/neighbours", "/v1/snippets", "/v1/plans"}
    expected |= {"/v1/jobs/{job_id}/events", "/metrics", "/problems", "/problems/{name}"}
    expected |= {f"/v2{path}" for path in ("", "/health/live", "/health/ready")}
    expected |= {f"/v2/models/{{model}}{path}" for path in ("", "/ready", "/infer")}
    expected |= {f"/v2/models/{{model}}/versions/{{version}}{path}" for path in ("", "/ready", "/infer")}
    assert set(document["paths"]) == expected
    text = json.dumps(document)
    for reference in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in document["components"]["schemas"], reference
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["description"]
            if path.startswith("/v2"):
                assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
            if path.startswith("/v1/"):
                assert "application/problem+json" in operation["responses"]["422"]["content"]
                assert "application/problem+json" in operation["responses"]["500"]["content"]
    for model in ("BulkAdviceRequest", "ConvolutionRequest", "RetrainRequest", "ActivateRequest", "Problem"):
        assert document["components"]["schemas"][model]["examples"]


def test_the_openapi_document_makes_a_client_that_reads_well(client: Client) -> None:
    document = client.get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name) for name in names), "they become functions"
    summaries = {operation["operationId"]: operation["summary"] for operation in operations}
    assert summaries["post_advice"] == "The best variant for each of up to 10,000 layers"
    assert summaries["cancel_job"] == "Cancel a job, queued or running, on whichever server"
    assert all(len(summary) < 110 for summary in summaries.values()), "they become lines of a list"
    described = {tag["name"] for tag in document["tags"] if tag["description"]}
    assert {tag for operation in operations for tag in operation["tags"]} == described
    assert all("security" in operation for operation in operations)
    assert document["servers"]
    titles = [schema["title"] for schema in document["components"]["schemas"].values() if "title" in schema]
    assert len(set(titles)) == len(titles), "they become classes"
    keywords = {key for schema in document["components"]["schemas"].values() for key in keys_of(schema)}
    assert not keywords & {"ge", "gt", "le", "lt"}, "of pydantic, not of JSON Schema"
    parameters = [parameter for operation in operations for parameter in operation.get("parameters", [])]
    assert not [each["name"] for each in parameters if "enum" in keys_of(each)], "each would become a class of its own"
    layer = document["components"]["schemas"]["LayerParameters"]["properties"]
    assert {"$ref": "#/components/schemas/Activation"} in layer["activation"]["anyOf"]
    assert {"$ref": "#/components/schemas/AutoPad"} in layer["auto_pad"]["anyOf"]


def keys_of(schema: Any) -> set[str]:
    """Every key of a schema and of what is in it."""
    if isinstance(schema, list):
        return {key for part in schema for key in keys_of(part)}
    if not isinstance(schema, dict):
        return set()
    return set(schema) | {key for part in schema.values() for key in keys_of(part)}


@pytest.mark.parametrize(
    "path",
    [f"/v1/advice?layer={LAYER}", f"/v1/advice?layer={LAYER}&n=0", "/v1/variants", "/", "/livez", "/v1/jobs/nobody"],
)
def test_head_says_what_get_would_without_the_body(client: Client, path: str) -> None:
    got, head = client.get(path), client.request("HEAD", path)
    assert head.status_code == got.status_code
    assert not head.content
    changing = {"date", "x-request-id", "server"}
    headers = {name: value for name, value in got.headers.items() if name not in changing}
    assert {name: value for name, value in head.headers.items() if name not in changing} == headers


def test_serving_advice_imports_neither_the_gpu_stack_nor_numba_nor_scikit_learn(tmp_path: Path) -> None:
    code = """
import sys
for name in ("cupy", "cudnn", "cuda", "pynvml", "numba", "sklearn", "torch"):
    sys.modules[name] = None
from pathlib import Path
from typing import Any
from tests.app.serving import LAYER, serving
with serving(Path(sys.argv[1])) as client:
    assert client.get(f"/v1/advice?layer={LAYER}&device=fake-gpu").status_code == 200
    assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": "cuda.gemm"}).status_code == 200
loaded = [name for name in ("numba", "sklearn", "cupy") if sys.modules[name] is not None]
assert not loaded, loaded
"""
    finished = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


def test_importing_makes_nothing(tmp_path: Path) -> None:
    code = (
        "import conv_advisor.app.main, threading, os\nassert threading.active_count() == 1; assert not os.listdir('.')"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


def test_a_store_is_shared_with_the_command_line(client: Client) -> None:
    with Store(client.app.state.service.settings.store_url) as store:
        assert [device.id for device in store.devices()] == ["fake-gpu"]
