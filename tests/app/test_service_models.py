"""/v1/models and /v1/jobs, through the real application and a real training process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conv_advisor.app.jobs.answers import JobAnswer
from conv_advisor.app.service.service import PROMOTED_S
from conv_advisor.app.workers import tasks
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.training.enough import ENOUGH_MEASURED
from conv_advisor.models.tree.file import TREE_FILE
from tests import fakes
from tests.app.serving import (
    FAST,
    GPU,
    LAYER,
    LEAN,
    SLOW,
    Client,
    is_problem,
    keep_tree,
    measure_enough,
    serving,
    small_tree,
)
from tests.processes import eventually

OTHER_TREE = small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with serving(home) as client:
        yield client


def best(client: Client) -> str:
    return client.get(f"/v1/advice?layer={LAYER}&device=fake-gpu").json()["variant"]


def test_models_are_listed_with_their_cards(client: Client) -> None:
    active = client.app.state.service.registry.active("fake-gpu").id
    (model,) = (each for each in client.get("/v1/models").json()["models"] if each["id"] == active)
    assert model["device"] == "fake-gpu"
    assert model["is_active"]
    assert not model["is_shipped"]
    assert model["problem"] is None
    assert model["card"]["scores"] == {"geometric_mean": 1.1}


def test_another_model_answers_from_the_next_request_on_and_the_first_again(client: Client, home: Path) -> None:
    registry = client.app.state.service.registry
    first, second = registry.active("fake-gpu").id, registry.add(OTHER_TREE)
    assert best(client) == FAST
    answer = client.request("PUT", "/v1/models/active", json={"device": "fake-gpu", "model": second})
    assert (answer.status_code, answer.json()["id"], answer.json()["is_active"]) == (200, second, True)
    assert best(client) == LEAN
    client.request("PUT", "/v1/models/active", json={"device": "fake-gpu", "model": first})
    assert best(client) == FAST


def test_a_model_that_another_process_activates_answers_too(client: Client, home: Path) -> None:
    first = client.app.state.service.registry.active("fake-gpu").id
    keep_tree(home, OTHER_TREE)
    time.sleep(2 * PROMOTED_S)
    assert best(client) == LEAN
    Registry(home).activate("fake-gpu", first)
    time.sleep(2 * PROMOTED_S)
    assert best(client) == FAST


def test_an_altered_model_is_refused_and_named(client: Client, home: Path) -> None:
    altered = small_tree({FAST: 0.05, SLOW: 0.02, LEAN: 0.01})
    folder = home / "models" / "fake-gpu" / client.app.state.service.registry.add(altered)
    content = bytearray((folder / TREE_FILE).read_bytes())
    content[-1] ^= 1
    (folder / TREE_FILE).write_bytes(content)
    body = {"device": "fake-gpu", "model": folder.name}
    assert (
        "sha256" in is_problem(client.request("PUT", "/v1/models/active", json=body), 409, "model-rejected")["detail"]
    )
    listed = {each["id"]: each for each in client.get("/v1/models").json()["models"]}
    assert "sha256" in listed[folder.name]["problem"]
    assert best(client) == FAST


def test_what_does_not_exist_is_not_found(client: Client) -> None:
    put = "/v1/models/active"
    is_problem(client.request("PUT", put, json={"device": "fake-gpu", "model": "0" * 12}), 404, "unknown-model")
    is_problem(client.request("PUT", put, json={"device": "no-gpu", "model": "0" * 12}), 404, "unknown-device")
    is_problem(client.post("/v1/models", json={"device": "no-gpu"}), 404, "unknown-device")
    is_problem(client.get("/v1/jobs/none"), 404, "unknown-job")
    is_problem(client.request("DELETE", "/v1/jobs/none"), 404, "unknown-job")


def test_a_retrain_on_too_little_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        own.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
        for path, body in (("/v1/models", {}), ("/v1/jobs", {"kind": "retrain"})):
            refused = is_problem(own.post(path, json=body | {"device": GPU.id}), 409, "not-enough-data")
            assert f"device {GPU.id}: 1 problem was measured, and 0 are left to train on" in refused["detail"]
            assert f"about {ENOUGH_MEASURED} are measured" in refused["detail"]
        assert own.get("/v1/jobs").json()["jobs"] == []
        measure_enough(own)
        assert own.post("/v1/models", json={"device": GPU.id}).status_code == 202


def test_retraining_is_a_job_and_says_how_it_ended(client: Client) -> None:
    measure_enough(client)
    response = client.post("/v1/models", json={"device": GPU.id})
    assert response.status_code == 202, response.text
    job = response.json()
    assert set(job) == set(JobAnswer.__annotations__)
    assert (job["kind"], job["request"]) == ("retrain", {"device": GPU.id, "force": False})
    where = response.headers["location"]
    assert eventually(lambda: client.get(where).json()["state"] == "failed"), client.get(where).text
    ended = client.get(where).json()
    assert ended["error"]["type"].endswith("not-enough-data")
    assert ended["finished_at"] >= ended["started_at"] >= ended["created_at"]
    assert client.get("/v1/jobs").json()["jobs"][0] == ended


def test_a_job_can_be_cancelled_and_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "train", fakes.train_for_long)
    with serving(tmp_path) as own:
        measure_enough(own)
        first = own.post("/v1/models", json={"device": GPU.id}).headers["location"]
        second = own.post("/v1/models", json={"device": GPU.id}).headers["location"]
        assert own.request("DELETE", second).json()["state"] == "cancelled"
        assert own.request("DELETE", first).json()["state"] == "cancelled"
        assert own.get(first).json()["state"] == "cancelled"
        assert own.get(second).json()["state"] == "cancelled"
        assert own.request("DELETE", second).json()["state"] == "cancelled"


def test_jobs_do_not_pile_up_without_end(tmp_path: Path) -> None:
    with serving(tmp_path, max_queue=2) as own:
        measure_enough(own)
        answers = [own.post("/v1/models", content=json.dumps({"device": GPU.id}), headers=JSON) for _ in range(4)]
        assert answers[0].status_code == 202
        is_problem(answers[-1], 503, "queue-full")


JSON = {"content-type": "application/json"}
