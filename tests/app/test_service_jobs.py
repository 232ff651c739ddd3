"""/v1/jobs through the real application: what is asked for, the keys it comes with, and the events that follow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conv_advisor.app.jobs import events as job_events
from conv_advisor.app.jobs.answers import JobAnswer
from conv_advisor.app.jobs.background import Background
from conv_advisor.app.jobs.events import EventStream, Streams
from conv_advisor.app.jobs.job import Job, JobKind
from conv_advisor.app.jobs.requests import problems_of
from conv_advisor.app.workers import tasks
from conv_advisor.data.errors import QueueFull
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import DType, Layout
from tests import fakes
from tests.app.serving import FAST, HANGING, LAYER, LEAN, SLOW, SMALL, Client, is_problem, measure_enough, serving
from tests.databases import DATABASES, new_database
from tests.processes import eventually

MEASURE = {"kind": "measure", "layers": [LAYER], "variants": [FAST, SLOW], "samples": 3}


@pytest.fixture(scope="module", params=DATABASES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("home")
    with new_database(request.param, home) as url, serving(home, max_queue=100, database_url=url) as client:
        yield client


def submitted(client: Client, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    response = client.post("/v1/jobs", json=body, headers=headers)
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/jobs/{response.json()['id']}"
    return response.json()


def ended(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    where = f"/v1/jobs/{job['id']}"
    assert eventually(lambda: client.get(where).json()["finished_at"]), client.get(where).text
    return client.get(where).json()


def events(text: str) -> list[dict[str, str]]:
    """The events of a stream, as the specification of server-sent events reads them."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if line and not line.startswith(":")]
        fields = {name: value for name, _, value in lines}
        if "data" in fields:
            found.append(fields)
    return found


def test_a_long_measurement_says_what_is_fastest_and_its_rows_join_the_store(client: Client) -> None:
    job = submitted(client, MEASURE | {"layers": [LAYER, {"layer": "14-1-3-256-128"}, LAYER]})
    assert set(job) == set(JobAnswer.__annotations__)
    assert (job["kind"], job["state"], job["device_id"]) == ("measure", "queued", "fake-gpu")
    result = ended(client, job)["result"]
    assert (result["problems"], result["attempts"], result["outcomes"]) == (2, 4, {"measured": 4})
    assert {each["variant"] for each in result["fastest"]} == {FAST}
    assert [each["time_ms"] for each in result["fastest"]] == [pytest.approx(0.010)] * 2
    assert client.app.state.service.store.attempted(result["run_id"]) == {
        (each["problem"], variant) for each in result["fastest"] for variant in (FAST, SLOW)
    }
    advice = client.get(f"/v1/advice?layer={LAYER}&device=fake-gpu").json()
    assert advice["source"] == "measured"


def test_a_layer_is_kept_by_its_name_and_read_as_older_jobs_keep_it() -> None:
    named = problems_of(JobKind.MEASURE, {"layers": [{"layer": LAYER, "dtype": "float16", "layout": "nhwc"}]})
    by_fields = {"n": 2, "c": 4, "h": 8, "w": 8, "k": 6, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    older = problems_of(JobKind.MEASURE, {"layers": [by_fields | {"dtype": "float16", "layout": "nhwc"}]})
    assert named == older == [replace(SMALL, dtype=DType.FLOAT16, layout=Layout.NHWC)]


def test_a_sweep_measures_what_a_network_has(client: Client) -> None:
    body = {"kind": "sweep", "networks": ["alexnet"], "batches": [1], "dtypes": ["float32", "float16"], "sampled": 2}
    job = submitted(client, body | {"variants": [LEAN]})
    done = ended(client, job)
    assert (done["state"], done["progress"], done["attempt"]) == ("succeeded", 1.0, 1), done
    assert done["result"]["attempts"] == done["result"]["problems"] == 12
    assert set(done["result"]["outcomes"]) <= {str(outcome) for outcome in Outcome}
    again = submitted(client, body | {"variants": [LEAN, SLOW], "run_id": done["result"]["run_id"]})
    assert ended(client, again)["result"]["attempts"] == 24, "twelve of them were there already"


def test_a_retraining_is_a_job_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "train", fakes.train_for_long)
    with serving(tmp_path) as own:
        measure_enough(own)
        job = submitted(own, {"kind": "retrain", "device": "fake-gpu"})
        asked = {"device": "fake-gpu", "force": False}
        assert (job["kind"], job["request"], job["device_id"]) == ("retrain", asked, None)
        assert own.request("DELETE", f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"


def test_a_job_that_waited_for_the_first_start_of_the_worker_is_not_said_to_wait_for_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offer_late(background: Background, *args: Any) -> None:
        time.sleep(0.3)
        offer(background, *args)

    offer = Background.offer
    monkeypatch.setattr(Background, "offer", offer_late)
    with serving(tmp_path) as fresh:
        assert submitted(fresh, MEASURE)["message"] == ""


def test_a_job_for_a_device_that_is_elsewhere_waits_for_it(client: Client) -> None:
    job = submitted(client, MEASURE | {"device": "nvidia-h200"})
    assert job["device_id"] == "nvidia-h200"
    following = submitted(client, MEASURE)
    assert ended(client, following)["state"] == "succeeded"
    assert client.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"
    assert client.request("DELETE", f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "status", "kind", "said"),
    [
        ({"kind": "party"}, 422, "unprocessable-entity", "kind"),
        ({}, 422, "unprocessable-entity", "kind"),
        ([], 422, "unprocessable-entity", "body"),
        (MEASURE | {"layers": []}, 422, "unprocessable-entity", "layers"),
        (MEASURE | {"layers": [LAYER] * 1001}, 422, "unprocessable-entity", "layers"),
        (MEASURE | {"samples": 1}, 422, "unprocessable-entity", "samples"),
        (MEASURE | {"unheard": "of"}, 422, "unprocessable-entity", "unheard"),
        (MEASURE | {"run_id": "a b"}, 422, "unprocessable-entity", "run_id"),
        (MEASURE | {"layers": ["fourteen"]}, 400, "invalid-layer-name", "size-batch-filter-filters-depth"),
        (MEASURE | {"layers": [{"layer": LAYER, "k": 3}]}, 400, "invalid-problem", "not together with layer"),
        (MEASURE | {"variants": ["cuda.nobody"]}, 404, "unknown-variant", "cuda.nobody"),
        (MEASURE | {"device": "abacus"}, 404, "unknown-device", "abacus"),
        ({"kind": "sweep", "networks": ["lenet"]}, 404, "unknown-network", "lenet"),
        ({"kind": "sweep", "networks": []}, 400, "invalid-input", "0 problems"),
        ({"kind": "sweep", "dtypes": ["int8"]}, 422, "unprocessable-entity", "dtypes"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(client: Client, body: Any, status: int, kind: str, said: str) -> None:
    before = client.get("/v1/jobs").json()["jobs"]
    assert said in is_problem(client.post("/v1/jobs", json=body), status, kind)["detail"]
    assert client.get("/v1/jobs").json()["jobs"] == before


@pytest.mark.parametrize("value", [True, "1", 1.0, 1e3, [1], {}], ids=repr)
def test_an_integer_of_a_job_is_one(client: Client, value: Any) -> None:
    sweep: dict[str, Any] = {"kind": "sweep", "networks": ["alexnet"]}
    bodies = [MEASURE | {name: value} for name in ("samples", "seed", "max_workspace_bytes")]
    bodies += [MEASURE | {"layers": [{"layer": LAYER, "groups": value}]}]
    bodies += [sweep | {"sampled": value}, sweep | {"batches": [value]}]
    for body in bodies:
        is_problem(client.post("/v1/jobs", json=body), 422, "unprocessable-entity")


@pytest.mark.parametrize("value", [1, 0, "true", "yes", 1.0], ids=repr)
@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", {"kind": "retrain"}), ("/v1/models", {})])
def test_a_truth_value_of_a_job_is_one(client: Client, path: str, body: dict[str, Any], value: Any) -> None:
    said = is_problem(client.post(path, json=body | {"force": value}), 422, "unprocessable-entity")
    assert "force" in said["detail"]


def test_more_problems_than_a_job_may_have_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conv_advisor.app.jobs.requests.MAX_PROBLEMS", 700)
    body = {"kind": "sweep", "networks": ["seeds"], "batches": [1]}
    body |= {"dtypes": ["float32", "tf32", "float16", "bfloat16"] * 2, "layouts": ["nchw", "nhwc"] * 2, "sampled": 0}
    response = client.post("/v1/jobs", json=body)
    assert response.status_code == 202, "86 layers in 8 kinds: repeated ones count once"
    client.request("DELETE", response.headers["location"])
    refused = client.post("/v1/jobs", json=body | {"sampled": 100})
    is_problem(refused, 400, "invalid-input")
    assert "allowed: 1 to 700 in one job" in refused.json()["detail"]


def test_jobs_are_listed_a_page_at_a_time(client: Client) -> None:
    made = [submitted(client, MEASURE | {"seed": seed})["id"] for seed in range(3)]
    newest = list(reversed(made))
    first = client.get("/v1/jobs?limit=2&kind=measure").json()
    assert [job["id"] for job in first["jobs"]] == newest[:2]
    assert first["next"] == f"/v1/jobs?limit=2&before={newest[1]}&kind=measure"
    second = client.get(first["next"]).json()
    assert second["jobs"][0]["id"] == newest[2]
    last = client.get(f"/v1/jobs?limit=1000&before={newest[2]}").json()
    assert last["next"] is None
    assert not set(newest) & {job["id"] for job in last["jobs"]}
    assert client.get("/v1/jobs?state=failed&kind=sweep").json() == {"jobs": [], "next": None}


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ("limit=0", 422, "limit"),
        ("limit=1001", 422, "limit"),
        ("limit=1_0", 422, "limit"),
        ("state=lost", 422, "state"),
        ("kind=party", 422, "kind"),
        ("page=2", 422, "page"),
        ("before=nobody", 404, "nobody"),
        ("before=%00", 404, "unknown job"),
    ],
)
def test_a_page_of_jobs_that_cannot_be_is_refused(client: Client, asked: str, status: int, field: str) -> None:
    kind = "unknown-job" if status == 404 else "unprocessable-entity"
    assert field in is_problem(client.get(f"/v1/jobs?{asked}"), status, kind)["detail"]


def test_the_same_key_and_request_are_the_same_job(client: Client) -> None:
    key = {"Idempotency-Key": "5f0c-1"}
    first = submitted(client, MEASURE, **key)
    reordered = json.dumps(dict(reversed(MEASURE.items())), indent=3)
    headers = key | {"content-type": "application/json"}
    again = client.post("/v1/jobs", content=reordered, headers=headers)
    assert (again.status_code, again.json()["id"]) == (202, first["id"])
    assert ended(client, first)["state"] == "succeeded"
    assert submitted(client, MEASURE, **key)["state"] == "succeeded", "and after it has ended too"
    assert submitted(client, MEASURE)["id"] != first["id"]
    assert submitted(client, MEASURE, **{"Idempotency-Key": "5f0c-2"})["id"] != first["id"]


def test_the_same_key_with_another_request_is_refused(client: Client) -> None:
    key = {"Idempotency-Key": "reused"}
    submitted(client, MEASURE, **key)
    for other in (MEASURE | {"samples": 4}, {"kind": "retrain", "device": "fake-gpu"}):
        assert "'reused'" in is_problem(client.post("/v1/jobs", json=other, headers=key), 409, "key-reused")["detail"]


def test_a_retraining_by_either_address_is_one_job(client: Client) -> None:
    measure_enough(client)
    key = {"Idempotency-Key": "retrained-once"}
    first = client.post("/v1/models", json={"device": "fake-gpu"}, headers=key)
    again = client.post("/v1/models", json={"force": False, "device": "fake-gpu"}, headers=key)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert submitted(client, {"kind": "retrain", "device": "fake-gpu"}, **key)["id"] == first.json()["id"]
    forced = client.post("/v1/models", json={"device": "fake-gpu", "force": True}, headers=key)
    is_problem(forced, 409, "key-reused")
    refused = client.post("/v1/models", json={"device": "fake-gpu"}, headers={"Idempotency-Key": "a b"})
    is_problem(refused, 400, "invalid-input")


@pytest.mark.parametrize("key", ["", "k" * 256, "a b", "schlüssel".encode("latin-1"), "\x7f"])
def test_a_key_is_of_bounded_length_and_visible(client: Client, key: str | bytes) -> None:
    refused = is_problem(client.post("/v1/jobs", json=MEASURE, headers={"Idempotency-Key": key}), 400, "invalid-input")
    assert refused["field"] == "Idempotency-Key"
    assert "1 to 255 visible" in refused["allowed"]


def test_a_request_without_a_body_or_of_another_kind_is_refused(client: Client) -> None:
    is_problem(client.post("/v1/jobs", content=b"kind=sweep"), 415, "unsupported-media-type")
    json_type = {"content-type": "application/json"}
    is_problem(client.post("/v1/jobs", content=b"", headers=json_type), 422, "unprocessable-entity")


def test_events_tell_a_job_from_where_the_listener_was_until_its_end(client: Client) -> None:
    job = submitted(client, MEASURE | {"samples": 50})
    where = f"/v1/jobs/{job['id']}/events"
    response = client.get(where)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    found = events(response.text)
    assert found[-1]["event"] == "end"
    assert {each["event"] for each in found[:-1]} <= {"job"}
    assert json.loads(found[-1]["data"]) == client.get(f"/v1/jobs/{job['id']}").json()
    ids = [int(each["id"]) for each in found]
    assert ids == sorted(set(ids))
    again = events(client.get(where, headers={"Last-Event-ID": str(ids[-1] - 1)}).text)
    assert again == found[-1:]
    done = client.get(where, headers={"Last-Event-ID": str(ids[-1])})
    assert (done.status_code, done.content) == (204, b""), "an EventSource then stays away"


def test_what_no_event_can_follow_is_refused(client: Client) -> None:
    job = submitted(client, MEASURE)
    is_problem(client.get("/v1/jobs/nobody/events"), 404, "unknown-job")
    for bad in ("x", "-1", "1" * 10, "1.5"):
        refused = client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": bad})
        assert is_problem(refused, 400, "invalid-input")["field"] == "Last-Event-ID"


def test_streams_are_bounded_in_number_and_in_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submitted(client, MEASURE | {"device": "nvidia-h200"})  # which stays queued
    where = f"/v1/jobs/{job['id']}/events"
    monkeypatch.setattr(job_events, "LONGEST_S", 4.0)
    monkeypatch.setattr(job_events, "_KEEP_ALIVE_S", 0.3)
    response = client.get(where)
    assert [each["event"] for each in events(response.text)] == ["job"], "and then it was ended, to be asked for again"
    assert ": ping" in response.text
    monkeypatch.setattr(job_events, "MAX_STREAMS", 0)
    is_problem(client.get(where), 503, "queue-full")
    client.request("DELETE", f"/v1/jobs/{job['id']}")


def test_streams_that_are_asked_for_at_once_are_no_more_than_may_be_open(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, job = Streams(), Job.__new__(Job)
    jobs = client.app.state.service.jobs
    monkeypatch.setattr(job_events, "MAX_STREAMS", 5)
    monkeypatch.setattr(job_events, "MAX_OF_CALLER", 3)
    opened = [streams.open(jobs, job, -1, "one") for _ in range(3)]
    with pytest.raises(QueueFull, match="of the token 'one'"):
        streams.open(jobs, job, -1, "one")
    opened += [streams.open(jobs, job, -1, caller) for caller in ("", "")]
    with pytest.raises(QueueFull, match="5 event streams"):
        streams.open(jobs, job, -1, "")

    async def is_gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def refuses(_message: Any) -> None:
        raise OSError

    async def end(stream: EventStream) -> None:
        with contextlib.suppress(Exception):  # whatever becomes of it
            await stream({"type": "http", "path": "/", "asgi": {"spec_version": "2.4"}}, is_gone, refuses)

    for stream in opened:
        asyncio.run(end(stream))
    assert not streams._open, "one that never began is over too"


def test_streams_end_with_the_service_and_it_is_not_ready_any_more(tmp_path: Path) -> None:
    with serving(tmp_path) as own, ThreadPoolExecutor(1) as thread:
        job = submitted(own, MEASURE | {"device": "nvidia-h200"})  # which stays queued
        listening = thread.submit(own.get, f"/v1/jobs/{job['id']}/events")
        assert eventually(lambda: own.app.state.service.streams._open)
        own.app.state.service.stop_soon()
        assert [each["event"] for each in events(listening.result(timeout=300).text)] == ["job"]
        missing = is_problem(own.get("/readyz"), 503, "service-unavailable")["missing"]
        assert missing["server"] == "it is being stopped"


def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_events, "SEND_TIMEOUT_S", 0.2)

    async def content() -> AsyncIterator[bytes]:
        while True:
            yield b": more\n\n"

    async def never(_message: Any = None) -> Any:
        await asyncio.sleep(3600)

    async def listen() -> None:
        scope = {"type": "http", "path": "/", "asgi": {"spec_version": "2.3"}}
        await asyncio.wait_for(EventStream(content())(scope, never, never), 300)

    asyncio.run(listen())


def test_a_stream_whose_listener_hangs_up_ends_as_any_does() -> None:
    """One that broke off would be an error in the log."""
    sent: list[Any] = []

    async def content() -> AsyncIterator[bytes]:
        while True:
            yield b": more\n\n"
            await asyncio.sleep(0.01)

    async def receive() -> Any:
        await asyncio.sleep(0.1)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/", "asgi": {"spec_version": "2.3"}}
    asyncio.run(EventStream(content())(scope, receive, send))
    assert len(sent) > 2
    assert [message.get("more_body") for message in sent[-2:]] == [True, False]


def test_the_queue_of_jobs_is_bounded_but_a_known_key_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, max_queue=2) as own:
        waiting = MEASURE | {"device": "nvidia-h200"}  # which nobody here has
        first = submitted(own, waiting, **{"Idempotency-Key": "first"})
        submitted(own, waiting)
        is_problem(own.post("/v1/jobs", json=waiting), 503, "queue-full")
        assert submitted(own, waiting, **{"Idempotency-Key": "first"})["id"] == first["id"]


def test_a_measurement_that_overruns_its_deadline_fails_and_frees_the_device(tmp_path: Path) -> None:
    with serving(tmp_path, job_deadline_s=10.0) as own:
        assert eventually(lambda: own.get("/readyz").status_code == 200)
        stuck = ended(own, submitted(own, MEASURE | {"variants": [HANGING]}))  # for two minutes, if it may
        assert (stuck["state"], stuck["error"]["type"]) == ("failed", "deadline-exceeded")
        assert f"run_id {stuck['request']['run_id']} goes on" in stuck["error"]["detail"]
        assert ended(own, submitted(own, MEASURE))["state"] == "succeeded"


def test_jobs_that_nobody_here_can_do_say_so_and_keep_out_no_others(tmp_path: Path) -> None:
    with serving(tmp_path, max_queue=2) as own:
        assert eventually(lambda: own.get("/readyz").status_code == 200)
        for _ in range(2):
            waiting = submitted(own, MEASURE | {"device": "nvidia-h200"})
            assert waiting["message"].startswith("no worker of nvidia-h200 is at this server")
        refused = own.post("/v1/jobs", json=MEASURE | {"device": "nvidia-h200"})
        assert "for nvidia-h200" in is_problem(refused, 503, "queue-full")["detail"]
        assert ended(own, submitted(own, MEASURE))["state"] == "succeeded"
        measure_enough(own)
        assert submitted(own, {"kind": "retrain", "device": "fake-gpu"})["message"] == ""


@pytest.mark.parametrize("name", ["conv-advisor.db", "conv-advisor.db-wal"])
def test_a_job_that_would_go_with_the_process_is_not_acknowledged(tmp_path: Path, name: str) -> None:
    with serving(tmp_path) as client:
        key = {"Idempotency-Key": "again"}
        submitted(client, MEASURE, **key)
        file = tmp_path / name
        file.rename(tmp_path / "away")
        for headers in ({}, key):
            said = is_problem(client.post("/v1/jobs", json=MEASURE, headers=headers), 503, "store-error")
            # A connection that was being opened as the file went may have made another.
            assert re.search(rf"{re.escape(name)} is (gone|not the file that was opened);", said["detail"])
        assert client.get("/readyz").status_code == 503
        (tmp_path / "away").rename(file)
        submitted(client, MEASURE)


def test_a_calibration_from_a_tree_that_does_not_say_where_it_was_trained_is_refused(client: Client) -> None:
    job = submitted(client, {"kind": "calibrate", "minutes": 0.001})
    assert (job["kind"], job["device_id"]) == ("calibrate", "fake-gpu")
    error = ended(client, job)["error"]
    assert "of fake-gpu keeps no domain" in error["detail"]


def test_a_calibration_of_what_is_no_gpu_is_refused_before_it_is_queued(client: Client) -> None:
    client.app.state.service.store.append(fakes.small_measurements(1.0)[:1])
    refused = client.post("/v1/jobs", json={"kind": "calibrate", "device": fakes.SMALL_DEVICE.id})
    assert "a GPU" in is_problem(refused, 400, "invalid-input")["detail"]


def test_a_calibration_without_time_says_what_is_missing(tmp_path: Path) -> None:
    with serving(tmp_path, has_tree=False) as own:
        error = ended(own, submitted(own, {"kind": "calibrate", "minutes": 1e-9}))["error"]
        assert "device fake-gpu: 0 problems were measured to adapt a tree by" in error["detail"]
        assert "what was measured is kept" in error["detail"]


@pytest.mark.parametrize("minutes", [0, -1, 1441, "soon"])
def test_minutes_of_a_calibration_are_bounded(client: Client, minutes: Any) -> None:
    response = client.post("/v1/jobs", json={"kind": "calibrate", "minutes": minutes})
    assert response.status_code in {400, 422}
    assert "minutes" in response.text


def test_a_refresh_of_a_device_without_times_of_its_own_is_refused(client: Client) -> None:
    job = submitted(client, {"kind": "refresh", "minutes": 0.001})
    assert (job["kind"], job["device_id"]) == ("refresh", "fake-gpu")
    error = ended(client, job)["error"]
    assert "allowed: at least 20" in error["detail"] or "no time is known from before" in error["detail"]


@pytest.mark.parametrize(("field", "value"), [("minutes", 0), ("share", 0.03), ("share", 0), ("share", "all")])
def test_what_a_refresh_may_take_is_bounded(client: Client, field: str, value: Any) -> None:
    response = client.post("/v1/jobs", json={"kind": "refresh", field: value})
    assert response.status_code in {400, 422}
    assert field in response.text
