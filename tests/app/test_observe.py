"""What the service tells of itself: counts with bounded labels, workers, regret, log lines, and traces."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.jobs.job import JobState
from conv_advisor.app.main import create_app
from conv_advisor.app.observe import logs, traces
from conv_advisor.app.observe.meter import BUCKETS_S, Meter
from conv_advisor.app.observe.templates import Templates
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.caller import Scope
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from tests import fakes
from tests.app.serving import FAST, GPU, LAYER, LEAN, SLOW, Client, measure_enough, serving
from tests.processes import eventually

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]
DURATIONS = "conv_advisor_http_request_duration_seconds"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.fixture
def stored(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a service on each of the databases, whose retraining does not end by itself."""
    monkeypatch.setattr(tasks, "train", fakes.train_for_long)
    with serving(tmp_path, database_url=database_url) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        yield client


def scraped(client: Client) -> Samples:
    """Every sample by name and labels."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples: Samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def count_of(samples: Samples, method: str, route: str, status: str) -> float:
    wanted = (("method", method), ("route", route), ("status", status))
    return samples.get(f"{DURATIONS}_count", {}).get(wanted, 0.0)


def test_requests_are_counted_by_template_method_and_class_of_status(client: Client) -> None:
    for _ in range(3):
        client.get(f"/v1/advice?layer={LAYER}")
    client.post("/v1/advice", json={"layers": [LAYER]})
    client.get("/v1/advice?layer=x")
    for job_id in ("a", "b", "c"):
        client.get(f"/v1/jobs/{job_id}")
    client.get("/jobs/a")
    client.get("/v2/models/conv")
    client.get("/static/page.css")
    client.request("PUT", "/livez")
    client.post("/v1/advice", headers={"content-length": "9" * 12})
    samples = scraped(client)
    assert count_of(samples, "GET", "/v1/advice", "2xx") == 3
    assert count_of(samples, "POST", "/v1/advice", "2xx") == 1
    assert count_of(samples, "GET", "/v1/advice", "4xx") == 1
    assert count_of(samples, "GET", "/v1/jobs/{job_id}", "4xx") == 3
    assert count_of(samples, "GET", "/jobs/{job_id}", "4xx") == 1
    assert count_of(samples, "GET", "/v2/models/{model}", "2xx") == 1
    assert count_of(samples, "GET", "/static/{path}", "2xx") == 1
    assert count_of(samples, "PUT", "/livez", "4xx") == 1
    assert count_of(samples, "POST", "/v1/advice", "4xx") == 1
    assert samples["conv_advisor_http_requests_in_flight"][()] == 1, "the scrape itself"


def test_labels_stay_few_whatever_is_asked_for(client: Client) -> None:
    before = scraped(client)
    for each in range(30):
        client.get(f"/nowhere/{each}")
        client.request(f"METHOD{each}", f"/nowhere/{each}")
        client.get(f"/v1/jobs/{each}", headers={"host": "evil.example"})
    samples = scraped(client)
    assert count_of(samples, "GET", "other", "4xx") == 30
    assert count_of(samples, "other", "other", "4xx") == 30
    assert count_of(samples, "GET", "/v1/jobs/{job_id}", "4xx") == 30
    assert len(samples[f"{DURATIONS}_count"]) <= len(before[f"{DURATIONS}_count"]) + 4


def test_a_histogram_has_every_request_in_the_bucket_of_its_time() -> None:
    meter = Meter(Templates(FastAPI()))
    scope = {"method": "GET", "path": "/x"}
    for elapsed_s in (0.0, 0.0001, 0.0002, 1.0, 1e9):
        meter.count(scope, 200, elapsed_s)
    meter.count(scope, 0, 0.5)
    durations = next(iter(meter.collect()))
    buckets = {
        s.labels["le"]: s.value for s in durations.samples if s.name.endswith("_bucket") and s.labels["status"] == "2xx"
    }
    assert (
        buckets["0.0001"],
        buckets["0.00025"],
        buckets["0.5"],
        buckets["1.0"],
        buckets["60.0"],
        buckets["+Inf"],
    ) == (2, 3, 3, 4, 4, 5)
    assert list(buckets.values()) == sorted(buckets.values())
    assert len(buckets) == len(BUCKETS_S) + 1
    sums = {s.labels["status"]: s.value for s in durations.samples if s.name.endswith("_sum")}
    assert sums == {"2xx": pytest.approx(1e9 + 1.0003), "aborted": 0.5}


def test_a_bug_is_counted_as_an_error_of_ours(client: Client) -> None:
    @client.app.get("/bug/{n}")
    def bug(n: int) -> None:
        _ = n / 0

    assert client.get("/bug/3").status_code == 500
    assert count_of(scraped(client), "GET", "/bug/{n}", "5xx") == 1


def test_workers_queues_and_jobs_are_told(stored: Client) -> None:
    measure_enough(stored)
    job = stored.post("/v1/models", json={"device": GPU.id}).json()
    assert stored.request("DELETE", f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
    engine, _ = stored.await_(stored.app.state.service.worker.opened())
    assert eventually(lambda: engine.state is EngineState.IDLE)
    samples = scraped(stored)
    assert samples["conv_advisor_worker_up"][(("worker", "device"),)] == 1
    states = samples["conv_advisor_worker_state"]
    of_device = {dict(labels)["state"]: value for labels, value in states.items() if dict(labels)["worker"] == "device"}
    assert set(of_device) == set(EngineState)
    assert sum(of_device.values()) == of_device["idle"] == 1
    jobs = {dict(labels)["state"]: value for labels, value in samples["conv_advisor_jobs"].items()}
    assert jobs == dict.fromkeys(JobState, 0.0) | {"cancelled": 1.0}
    assert samples["conv_advisor_queue_limit"][()] == 64
    engine._child.kill()
    assert eventually(lambda: scraped(stored)["conv_advisor_worker_restarts_total"][(("worker", "device"),)] == 1)


def timed(problem: ConvProblem, variant: str, ms: float, **changes: Any) -> Measurement:
    return Measurement(problem, variant, GPU, Outcome.MEASURED, "", (ms, ms, ms), 0, 1e-7, **changes)


def test_the_live_regret_compares_what_is_measured_with_what_the_tree_said(stored: Client) -> None:
    store, problem = stored.app.state.service.store, ConvProblem.parse("21-2-3-6-4")
    predicted = {
        choice["variant"]: choice["time_ms"]
        for choice in stored.get(f"/v1/advice?layer={problem.short}").json()["ranking"]
    }
    assert min(predicted, key=predicted.__getitem__) == FAST
    assert "conv_advisor_measured_over_predicted_ratio_count" not in scraped(stored)
    store.append([timed(problem, FAST, 3 * predicted[FAST]), timed(problem, SLOW, 2 * predicted[FAST])])
    for _ in range(2):  # what was counted is not counted again
        samples = scraped(stored)
        of = {"fast": (("device", GPU.id), ("variant", FAST)), "slow": (("device", GPU.id), ("variant", SLOW))}
        sums, counts = (samples[f"conv_advisor_measured_over_predicted_ratio_{part}"] for part in ("sum", "count"))
        assert sums[of["fast"]] == pytest.approx(3.0, rel=1e-3)
        assert sums[of["slow"]] == pytest.approx(2 * predicted[FAST] / predicted[SLOW], rel=1e-3)
        assert (counts[of["fast"]], counts[of["slow"]]) == (1, 1)
        slowdown = samples["conv_advisor_advised_slowdown_ratio_sum"][(("device", GPU.id),)]
        assert slowdown == pytest.approx(1.5, rel=1e-3)
    store.append([timed(problem, LEAN, 1.0)])
    assert (
        scraped(stored)["conv_advisor_measured_over_predicted_ratio_count"][(("device", GPU.id), ("variant", LEAN))]
        == 1
    )


def test_a_device_whose_tree_cannot_be_read_hides_no_other(stored: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    service, problem = stored.app.state.service, ConvProblem.parse("21-2-3-6-4")
    advisor = service.advisor

    def broken(device_id: str) -> object:
        if device_id == "another-gpu":
            raise UnknownDevice(device_id)
        return advisor(device_id)

    monkeypatch.setattr(service, "advisor", broken)
    other = replace(timed(problem, FAST, 1.0), device=replace(GPU, id="another-gpu"))
    service.store.append([other, timed(problem, FAST, 1.0)])
    assert scraped(stored)["conv_advisor_measured_over_predicted_ratio_count"][(("device", GPU.id), ("variant", FAST))]


def test_what_was_measured_long_ago_or_where_there_is_no_tree_says_nothing(stored: Client) -> None:
    from datetime import UTC, datetime

    store, problem = stored.app.state.service.store, ConvProblem.parse("21-2-3-6-4")
    store.append([timed(problem, FAST, 1.0, measured_at=datetime(2020, 1, 1, tzinfo=UTC))])
    store.append([replace(timed(problem, FAST, 1.0), device=replace(GPU, id="another-gpu"))])
    store.append([Measurement(problem, FAST, GPU, Outcome.NOT_SUPPORTED, "no engine")])
    assert "conv_advisor_measured_over_predicted_ratio_count" not in scraped(stored)


def test_more_than_one_look_takes_in_is_taken_up_by_the_next(stored: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from conv_advisor.app.observe import regret

    monkeypatch.setattr(regret, "ROWS_AT_ONCE", 3)
    store = stored.app.state.service.store
    store.append([timed(ConvProblem.parse(f"{size}-2-3-6-4"), FAST, 1.0) for size in range(10, 18)])
    seen = [
        scraped(stored)["conv_advisor_measured_over_predicted_ratio_count"][(("device", GPU.id), ("variant", FAST))]
        for _ in range(4)
    ]
    assert seen == [3, 6, 8, 8]


def test_openmetrics_is_spoken_too_and_a_store_that_is_gone_hides_nothing_else(stored: Client) -> None:
    spoken = stored.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert spoken.headers["content-type"].startswith("application/openmetrics-text")
    assert spoken.text.endswith("# EOF\n")
    service = stored.app.state.service
    with service.store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs RENAME TO jobs_gone")
    samples = scraped(stored)
    assert samples["conv_advisor_store_up"][()] == 0
    assert "conv_advisor_jobs" not in samples
    assert samples["conv_advisor_worker_up"]


def test_advice_is_refused_while_the_store_is_gone_and_goes_on_after(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        asked = f"/v1/advice?layer={LAYER}&device=fake-gpu"
        assert eventually(lambda: own.get(asked).status_code == 200)
        engine = own.app.state.service.store.engine
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE versions RENAME TO gone")
        assert eventually(lambda: own.get(asked).status_code == 503)
        assert own.post("/v1/advice", json={"layers": [LAYER], "device": "fake-gpu"}).status_code == 503
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE gone RENAME TO versions")
        assert own.get(asked).status_code == 200


def test_a_file_of_tokens_that_breaks_is_told(tmp_path: Path) -> None:
    token, path = make_token(), tmp_path / "tokens"
    path.write_text(entry_of("ops", [Scope.READ], token))
    bearer = {"authorization": f"Bearer {token}"}
    with serving(tmp_path, tokens_file=path) as own:
        assert "conv_advisor_tokens_file_ok 1.0" in own.get("/metrics", headers=bearer).text
        path.write_text("nonsense")
        assert eventually(lambda: "conv_advisor_tokens_file_ok 0.0" in own.get("/metrics", headers=bearer).text)


def test_metrics_can_be_left_out(tmp_path: Path) -> None:
    with serving(tmp_path, metrics=False) as client:
        assert client.get("/metrics").status_code == 404
        assert client.get("/livez").status_code == 200


@contextmanager
def written(form: Any) -> Iterator[io.StringIO]:
    """What the access log writes."""
    handler = logging.StreamHandler(stream := io.StringIO())
    handler.setFormatter(logs.formatter(form))
    logger = logging.getLogger("conv_advisor.app.access")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_a_line_of_the_log_is_an_object_with_template_status_and_ms(client: Client) -> None:
    with written("json") as stream:
        client.get("/v1/jobs/secret-id?x=secret", headers={"x-request-id": "asked-for-1"})
        client.get("/v1/jobs/secret-id", headers={"x-request-id": "not an id"})
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["logger"], first["level"]) == ("conv_advisor.app.access", "INFO")
    assert (first["method"], first["route"], first["status"]) == ("GET", "/v1/jobs/{job_id}", 404)
    assert first["request_id"] == "asked-for-1"
    assert 0 < first["ms"] < 60_000
    assert first["timestamp"].startswith("20")
    assert first["message"].startswith("GET /v1/jobs/{job_id} 404 ")
    assert "secret" not in stream.getvalue()
    assert second["request_id"] not in ("", "not an id")


def test_a_line_for_machines_has_no_colours() -> None:
    uvicorns = {"msg": "Finished server process [%d]", "args": (1,), "color_message": "process [\033[36m%d\033[0m]"}
    line = logs.formatter("json").format(logging.makeLogRecord(uvicorns | {"levelname": "INFO"}))
    assert json.loads(line)["message"] == "Finished server process [1]"
    assert "[36m" not in line


def test_the_id_of_a_request_is_given_back(client: Client) -> None:
    assert client.get("/livez", headers={"x-request-id": "a.b-c_1"}).headers["x-request-id"] == "a.b-c_1"
    made = {client.get("/livez").headers["x-request-id"] for _ in range(50)}
    assert len(made) == 50
    for bad in ("a b", "x" * 65, 'a"b'):
        assert client.get("/livez", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_a_line_goes_to_what_standard_error_is_now_and_to_none_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    root, before = logging.getLogger(), (logging.root.handlers[:], logging.root.level)
    first, second = io.StringIO(), io.StringIO()
    root.handlers.clear()  # pytest's own, which configuring would close
    try:
        monkeypatch.setattr(sys, "stderr", first)
        logs.configure("info", "text")
        logging.getLogger("a thread").warning("one")
        first.close()
        logging.getLogger("a thread").warning("lost")
        monkeypatch.setattr(sys, "stderr", second)
        logging.getLogger("a thread").warning("two")
        monkeypatch.setattr(sys, "stderr", None)
        logging.getLogger("a thread").warning("lost")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    assert second.getvalue().endswith("a thread two\n")
    assert second.getvalue().count("\n") == 1


def test_lines_for_people_stay_lines(client: Client) -> None:
    with written("text") as stream:
        client.get("/livez")
    assert " INFO conv_advisor.app.access GET /livez 200 " in stream.getvalue()


class Collector:
    """An OpenTelemetry collector: takes traces over HTTP."""

    def __init__(self) -> None:
        received: list[tuple[str, bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.received = received
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def spans(self) -> dict[str, dict[str, Any]]:
        """Every span by name, with its attributes, its trace, and its service."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        by_name: dict[str, dict[str, Any]] = {}
        for path, body in self.received:
            assert path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        attributes = {each.key: _value(each.value) for each in span.attributes}
                        by_name[span.name] = attributes | {
                            "trace": span.trace_id.hex(),
                            "service": service["service.name"],
                        }
        return by_name


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def test_a_collector_that_is_named_gets_a_span_of_every_request(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="traces need the extra cluster")
    collector = Collector()
    trace = "0af7651916cd43dd8448eb211c80319c"
    try:
        with serving(tmp_path, otlp_endpoint=collector.endpoint) as client:
            headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "authorization": "Bearer cadv_secret"}
            advised = client.get(f"/v1/advice?layer={LAYER}", headers=headers)
            assert advised.json()["variant"] == FAST
            client.get("/v1/jobs/none")
            counted = count_of(scraped(client), "GET", "/v1/advice", "2xx")
        spans = collector.spans()
    finally:
        collector.close()
    assert counted == 1, "what is traced is counted too"
    asked = spans["GET /v1/advice"]
    assert (asked["http.route"], asked["http.response.status_code"]) == ("/v1/advice", 200)
    assert (asked["trace"], asked["service"]) == (trace, "conv-advisor")
    assert spans["GET /v1/jobs/{job_id}"]["http.response.status_code"] == 404
    assert b"cadv_secret" not in b"".join(body for _, body in collector.received)


def test_a_collector_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="traces need the extra cluster")
    with serving(tmp_path, otlp_endpoint="http://127.0.0.1:9") as client:
        assert client.get(f"/v1/advice?layer={LAYER}").status_code == 200


def test_without_a_collector_nothing_is_looked_up(tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path))
    assert traces.config(None) == traces.OFF
    assert not app._native_telemetry.enabled()


def test_the_collector_is_named_by_either_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from conv_advisor.app.settings import load_settings
    from conv_advisor.data.errors import InvalidInput

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert load_settings().otlp_endpoint == "http://collector:4318"
    monkeypatch.setenv("CONV_ADVISOR_OTLP_ENDPOINT", "http://other:4318")
    assert load_settings().otlp_endpoint == "http://other:4318"
    monkeypatch.setenv("CONV_ADVISOR_OTLP_ENDPOINT", "collector")
    with pytest.raises(InvalidInput, match=r"^CONV_ADVISOR_OTLP_ENDPOINT is 'collector'; allowed: an address"):
        load_settings()
