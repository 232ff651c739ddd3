"""POST /v1/convolutions, through the real application and a worker process that replays a recording."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from conv_advisor.app.advice.local import Local
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.safetensors import read_safetensors
from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.gpus import gpus
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.records import Records
from conv_advisor.data.transfer import measurements_table
from conv_advisor.kernels import catalog, reference
from conv_advisor.models.advice.unsure import SURE_ENOUGH
from conv_advisor.models.costs import from_table
from tests import fakes
from tests.app.serving import (
    CRASHING,
    FAST,
    GPU,
    HANGING,
    LARGE,
    LAYER,
    LEAN,
    REFUSED,
    SLOW,
    SMALL,
    TIMES_MS,
    Client,
    is_problem,
    measure_enough,
    recording,
    serving,
    small_tree,
)
from tests.processes import eventually, read_pid

VARIED = [replace(SMALL, dtype=dtype, layout=layout) for dtype in DType for layout in Layout]
STRIDED = ConvProblem(2, 4, 8, 9, 6, 3, 2, 2, 1, 1, 0, 2, 1, 2)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), *VARIED, LARGE, STRIDED) as client:
        yield client


def convolve(client: Client, content: bytes, **headers: str):
    kind = headers.pop("content_type", "application/vnd.safetensors")
    return client.post("/v1/convolutions", content=content, headers={"content-type": kind} | headers)


def packed(problem: ConvProblem, x: np.ndarray, weight: np.ndarray, **metadata: str) -> bytes:
    names = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups", "dtype", "layout")
    return save({"x": x, "weight": weight}, {name: str(getattr(problem, name)) for name in names} | metadata)


def unpacked(response) -> tuple[np.ndarray, dict[str, str]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.safetensors"
    tensors, metadata = read_safetensors(np.frombuffer(response.content, np.uint8), ("y",))
    return tensors["y"], metadata


@pytest.mark.parametrize("problem", [*VARIED, STRIDED], ids=lambda problem: problem.key)
def test_tensors_come_back_convolved_in_every_dtype_and_layout(client: Client, problem: ConvProblem) -> None:
    x, weight = reference.random_operands(problem, seed=1)
    y, metadata = unpacked(convolve(client, packed(problem, x, weight, variant=SLOW)))
    expected = reference.convolve(problem, x, weight).astype(x.dtype)
    assert y.dtype == reference.HOST_DTYPE[problem.dtype]
    np.testing.assert_array_equal(y, expected)
    assert metadata["variant"] == SLOW
    assert json.loads(metadata["problem"])["dtype"] == problem.dtype


def test_metadata_says_time_samples_error_problem_and_device(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    _, metadata = unpacked(convolve(client, packed(SMALL, x, weight, variant=SLOW)))
    assert float(metadata["time_ms"]) == pytest.approx(TIMES_MS[SLOW])
    assert len(json.loads(metadata["samples_ms"])) == 3
    assert float(metadata["max_error"]) == pytest.approx(1e-7)
    assert int(metadata["n_compared"]) == int(np.prod(SMALL.y_shape)), "all of y"
    assert json.loads(metadata["workspace_bytes"]) == 2**20
    assert json.loads(metadata["problem"])["layer"] == LAYER
    assert json.loads(metadata["device"])["id"] == "fake-gpu"
    assert metadata["chosen_by"] == "named"


def test_octet_stream_is_safetensors_too(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    unpacked(convolve(client, packed(SMALL, x, weight), content_type="application/octet-stream"))


def test_the_advised_variant_runs_unless_another_is_named(client: Client) -> None:
    answer = client.post("/v1/convolutions", json={"layer": LAYER}).json()
    assert (answer["variant"], answer["chosen_by"]) == (FAST, "advice")
    assert answer["y"] is None
    assert answer["time_ms"] == pytest.approx(TIMES_MS[FAST])


def test_small_tensors_go_as_lists_and_carry_nan_and_infinity(client: Client, tmp_path: Path) -> None:
    problem = ConvProblem(1, 1, 1, 4, 1, 1, 1)
    with serving(tmp_path, problem) as own:
        body = {"x": [[[["NaN", "Infinity", -1, 0]]]], "weight": [[[[2]]]], "variant": LEAN}
        answer = own.post("/v1/convolutions", json=body).json()
        assert answer["y"] == [[[["NaN", "Infinity", -2.0, 0.0]]]]
        x = np.array([np.nan, -np.inf, 1, 0], np.float32).reshape(1, 1, 1, 4)
        y, _ = unpacked(convolve(own, packed(problem, x, np.full((1, 1, 1, 1), 2, np.float32), variant=LEAN)))
        np.testing.assert_array_equal(y.ravel(), [np.nan, -np.inf, 2, 0])


def test_accept_decides_the_form_of_the_answer(client: Client) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    content = packed(SMALL, x, weight, variant=LEAN)
    as_json = convolve(client, content, accept="application/json;q=0.9, application/vnd.safetensors;q=0.1").json()
    y, _ = unpacked(convolve(client, content, accept="application/*"))
    np.testing.assert_array_equal(np.array(as_json["y"], np.float32), y)
    lists = {"x": x.tolist(), "weight": weight.tolist(), "pad": 1, "variant": LEAN}
    again, _ = unpacked(client.post("/v1/convolutions", json=lists, headers={"accept": "application/vnd.safetensors"}))
    np.testing.assert_array_equal(again, y)
    is_problem(convolve(client, content, accept="text/html"), 406, "not-acceptable")


def test_an_answer_too_long_for_json_is_refused_before_it_is_computed(client: Client) -> None:
    body = {"x": [[[[1.0]]]], "weight": [[[[1.0]]]], "pad": 600}
    assert is_problem(client.post("/v1/convolutions", json=body), 400, "invalid-problem")["field"] == "y"
    assert is_problem(client.post("/v1/convolutions", json=body | {"pad": 10_000}), 400, "invalid-problem")


def test_all_runs_every_applicable_variant_and_tells_what_became_of_each(client: Client, tmp_path: Path) -> None:
    problem = ConvProblem.parse("5-1-3-2-2")
    with serving(tmp_path, problem, recorded=harmless) as own:
        answer = own.post("/v1/convolutions", json={"layer": problem.short, "variant": "all"}).json()
        attempts = {attempt["variant"]: attempt for attempt in answer["attempts"]}
        assert answer["variant"] == FAST
        assert answer["chosen_by"] == "measured_now"
        assert {name for name, each in attempts.items() if each["outcome"] == "measured"} == set(TIMES_MS)
        assert attempts[REFUSED]["outcome"] == "not_supported"
        x, weight = reference.random_operands(problem, seed=1)
        y, metadata = unpacked(convolve(own, packed(problem, x, weight, variant="all")))
        assert metadata["variant"] == FAST
        assert {attempt["variant"] for attempt in json.loads(metadata["attempts"])} == set(attempts)
        np.testing.assert_array_equal(y, reference.convolve(problem, x, weight).astype(np.float32))


def test_the_first_of_the_ranking_are_measured_and_the_fastest_answers(tmp_path: Path) -> None:
    problem = ConvProblem.parse("5-1-3-2-2")
    with serving(tmp_path, problem, recorded=harmless) as own:
        ranking = [
            choice["variant"] for choice in own.get("/v1/advice?layer=5-1-3-2-2&device=fake-gpu").json()["ranking"]
        ]
        store = own.app.state.service.store
        answer = own.post("/v1/convolutions", json={"layer": problem.short, "top": 2}).json()
        assert answer["chosen_by"] == "measured_now"
        assert [attempt["variant"] for attempt in answer["attempts"]] == ranking[:2]
        assert answer["time_ms"] == pytest.approx(min(TIMES_MS[name] for name in ranking[:2]))
        assert set(Records(store).summaries([problem], "fake-gpu")[problem.key]) == set(ranking[:2])
        x, weight = reference.random_operands(problem, seed=1)
        y, metadata = unpacked(convolve(own, packed(problem, x, weight, top="100")))
        assert [attempt["variant"] for attempt in json.loads(metadata["attempts"])] == ranking
        assert metadata["variant"] == FAST
        np.testing.assert_array_equal(y, reference.convolve(problem, x, weight).astype(np.float32))


def test_if_unsure_the_first_three_are_measured_and_after_that_the_best_alone(tmp_path: Path) -> None:
    problem = ConvProblem.parse("5-1-3-2-2")
    asked = {"layer": problem.short, "measure": "if unsure"}
    with serving(tmp_path, problem, recorded=harmless) as own:
        registry = own.app.state.service.registry
        level = small_tree({FAST: 0.0101, SLOW: 0.0100, LEAN: 0.0102})
        registry.activate(GPU.id, registry.add(level))
        trust = own.get(f"/v1/advice?layer={problem.short}&device=fake-gpu").json()["trust"]
        assert trust["confidence"] < SURE_ENOUGH
        first = own.post("/v1/convolutions", json=asked).json()
        assert (first["chosen_by"], first["variant"]) == ("measured_now", FAST)
        assert {attempt["variant"] for attempt in first["attempts"]} == {FAST, SLOW, LEAN}
        again = own.post("/v1/convolutions", json=asked).json()
        assert (again["chosen_by"], [attempt["variant"] for attempt in again["attempts"]]) == ("advice", [FAST])


def test_who_is_sure_measures_nothing_more(tmp_path: Path) -> None:
    problem = ConvProblem.parse("5-1-3-2-2")
    with serving(tmp_path, problem, recorded=harmless) as own:
        x, weight = reference.random_operands(problem, seed=1)
        _, metadata = unpacked(convolve(own, packed(problem, x, weight, measure="if unsure")))
        assert (metadata["chosen_by"], metadata["variant"]) == ("advice", FAST)
        assert len(json.loads(metadata["attempts"])) == 1


@pytest.mark.parametrize(("gpu", "tried"), [("nvidia-a100-sxm4-80gb", 3), ("nvidia-h100-80gb-hbm3", 1)])
def test_where_a_borrowed_tree_abstains_the_first_three_are_measured(tmp_path: Path, gpu: str, tried: int) -> None:
    def recorded(problem: ConvProblem) -> list[Measurement]:
        device, ranking = gpus()[gpu].device, Local(Settings(home=tmp_path)).advise(problem, gpu).ranking
        return [
            Measurement(problem, choice.variant, device, Outcome.MEASURED, "", (1.0 / place,), 0, 1e-7)
            for place, choice in enumerate(ranking, start=1)
        ]

    with serving(tmp_path, LARGE, recorded=recorded, has_tree=False) as own:
        told = own.get(f"/v1/advice?layer={LARGE.short}&device={gpu}").json()
        assert told["trust"]["abstains"] is (tried > 1)
        ranking = [each["variant"] for each in told["ranking"]]
        answer = own.post("/v1/convolutions", json={"layer": LARGE.short}).json()
        assert [attempt["variant"] for attempt in answer["attempts"]] == ranking[:tried]
        assert answer["variant"] == ranking[tried - 1]


def test_where_none_of_the_first_runs_the_next_one_answers(tmp_path: Path) -> None:
    problem = ConvProblem.parse("5-1-3-2-2")
    by_time = sorted(TIMES_MS, key=lambda name: TIMES_MS[name])
    with serving(tmp_path, problem, recorded=lambda problem: refused(harmless(problem), *by_time[:2])) as own:
        ranking = [
            choice["variant"] for choice in own.get("/v1/advice?layer=5-1-3-2-2&device=fake-gpu").json()["ranking"]
        ]
        assert ranking == by_time
        answer = own.post("/v1/convolutions", json={"layer": problem.short, "top": 2}).json()
        assert [attempt["variant"] for attempt in answer["attempts"]] == ranking[:3]
        assert answer["variant"] == ranking[2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"variant": "all", "top": 2}, "top is 2; allowed: 1 beside the variant 'all'"),
        ({"variant": SLOW, "top": 3}, f"top is 3; allowed: 1 beside the variant '{SLOW}'"),
        ({"top": 0}, "top"),
        ({"measure": "if unsure", "top": 3}, "measure is 'if unsure'; allowed: not together with"),
        ({"measure": "if unsure", "top": 1}, "measure is 'if unsure'; allowed: not together with"),
        ({"measure": "if unsure", "variant": "all"}, "measure is 'if unsure'; allowed: not together with"),
        ({"measure": "always"}, "measure"),
        ({"top": 101}, "top"),
    ],
)
def test_top_is_for_what_is_advised(client: Client, body: dict[str, Any], message: str) -> None:
    found = client.post("/v1/convolutions", json={"layer": LAYER, **body})
    assert found.status_code in (400, 422)
    assert message in found.text


def harmless(problem: ConvProblem) -> list[Measurement]:
    """What was recorded of a problem but for what brings the worker down."""
    return [row for row in recording(problem) if row.variant not in (CRASHING, HANGING)]


def refused(rows: list[Measurement], *variants: str) -> list[Measurement]:
    """The same where these variants are not supported."""
    return [
        replace(row, outcome=Outcome.NOT_SUPPORTED, samples_ms=(), max_error=None) if row.variant in variants else row
        for row in rows
    ]


def test_what_was_timed_joins_the_store(client: Client) -> None:
    problem = replace(SMALL, dtype=DType.TF32)
    store = client.app.state.service.store
    client.post("/v1/convolutions", json={"layer": LAYER, "dtype": "tf32", "variant": SLOW})
    assert Records(store).summaries([problem], "fake-gpu")[problem.key][SLOW].time_ms == pytest.approx(
        TIMES_MS[SLOW], rel=1e-5
    )
    advice = client.get(f"/v1/advice?layer={LAYER}&dtype=tf32&device=fake-gpu").json()
    assert {choice["variant"]: choice["source"] for choice in advice["ranking"]}[SLOW] == "measured"


def test_a_layer_of_which_every_variant_was_run_joins_the_training_set_and_one_variant_does_not(tmp_path: Path) -> None:
    """Beside layers that were swept: those rows name the variants that do not apply too."""
    swept, asked, named = (ConvProblem.parse(layer, layout="nhwc") for layer in ("5-1-3-2-2", "5-1-1-2-2", "6-1-1-2-2"))
    with serving(tmp_path, swept, asked, named, recorded=harmless) as own:
        every = [variant.id for variant in catalog.for_device_kind(GPU.kind)]
        store = own.app.state.service.store
        store.append([Measurement(swept, name, GPU, Outcome.MEASURED, samples_ms=(1.0,) * 5) for name in every])
        own.post("/v1/convolutions", json={"layer": asked.short, "layout": "nhwc", "variant": "all"})
        own.post("/v1/convolutions", json={"layer": named.short, "layout": "nhwc", "variant": FAST})
        found = from_table(measurements_table(store, GPU.id), GPU.id)
    assert set(found.problems) == {swept, asked}
    assert found.is_known[found.problems.index(asked)].sum() < len(every) / 2


def test_a_device_without_a_model_measures_first_and_then_knows(tmp_path: Path) -> None:
    problem = ConvProblem.parse("5-1-3-2-2")
    with serving(tmp_path, problem, has_tree=False, recorded=harmless) as own:
        first = own.post("/v1/convolutions", json={"layer": problem.short}).json()
        assert (first["variant"], first["chosen_by"]) == (FAST, "measured_now")
        x, weight = reference.random_operands(problem, seed=1)
        y, metadata = unpacked(convolve(own, packed(problem, x, weight)))
        assert (metadata["variant"], metadata["chosen_by"]) == (FAST, "stored_times")
        assert y.shape == problem.y_shape
        with pytest.raises(UnknownDevice):
            own.app.state.service.registry.active("fake-gpu")


@pytest.mark.parametrize("has_tensors", [False, True])
def test_what_the_library_refuses_is_a_conflict_with_its_reason(client: Client, has_tensors: bool) -> None:
    x, weight = reference.random_operands(SMALL, seed=1)
    if has_tensors:
        response = convolve(client, packed(SMALL, x, weight, variant=REFUSED))
    else:
        response = client.post("/v1/convolutions", json={"layer": LAYER, "variant": REFUSED})
    assert "as recorded" in is_problem(response, 409, "not-supported")["detail"]


def test_a_worker_that_dies_is_told_at_once_and_the_next_job_runs(client: Client) -> None:
    """Not at the deadline, which is told otherwise."""
    client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
    response = client.post("/v1/convolutions", json={"layer": LAYER, "variant": CRASHING})
    is_problem(response, 503, "worker-died")
    assert int(response.headers["retry-after"]) >= 1
    assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN}).status_code == 200


def test_a_worker_killed_from_outside_is_told_at_once(client: Client) -> None:
    client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
    hanging = fakes.hangs(Path(client.app.state.service.worker.engine.device_id))
    hanging.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(client.post, "/v1/convolutions", json={"layer": LAYER, "variant": HANGING})
        os.kill(read_pid(hanging), signal.SIGKILL)
        is_problem(running.result(), 503, "worker-died")
    assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN}).status_code == 200


def test_one_that_overruns_its_deadline_is_stopped_and_the_next_runs(tmp_path: Path) -> None:
    with serving(tmp_path, convolution_deadline_s=8.0) as own:
        is_problem(own.post("/v1/convolutions", json={"layer": LAYER, "variant": HANGING}), 504, "deadline-exceeded")

        def runs() -> bool:  # what a new worker imports counts, and half a second is not much
            return own.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN}).status_code == 200

        assert eventually(runs)


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, max_queue=1, convolution_deadline_s=8.0) as own, ThreadPoolExecutor(6) as threads:
        own.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
        asked = [
            threads.submit(own.post, "/v1/convolutions", json={"layer": LAYER, "variant": HANGING}) for _ in range(6)
        ]
        refused = [one for one in (each.result() for each in asked) if one.status_code == 503]
        assert len(refused) in (4, 5)  # one runs, one waits, unless the second came before the first was taken
        for response in refused:
            is_problem(response, 503, "queue-full")
            assert int(response.headers["retry-after"]) >= 1


def test_bodies_that_are_worked_on_are_bounded_together(client: Client) -> None:
    budget = client.app.state.service.budget
    x, weight = reference.random_operands(SMALL, seed=1)
    with budget.hold() as held:
        held.more(budget.limit_bytes)
        is_problem(convolve(client, packed(SMALL, x, weight, variant=LEAN)), 503, "queue-full")
    unpacked(convolve(client, packed(SMALL, x, weight, variant=LEAN)))


def test_y_counts_with_the_bodies_before_it_is_made(client: Client) -> None:
    budget = client.app.state.service.budget
    body = packed(SMALL, *reference.random_operands(SMALL, seed=1), variant=LEAN)
    with budget.hold() as held:
        held.more(budget.limit_bytes - len(body) - SMALL.y_bytes + 1)
        is_problem(convolve(client, body), 503, "queue-full")
        held.count -= 1
        budget.held_bytes -= 1
        unpacked(convolve(client, body))
    assert budget.held_bytes == 0


def test_lists_of_numbers_count_as_what_they_become(client: Client) -> None:
    budget = client.app.state.service.budget
    asked = {"x": [[[[1.5] * 8] * 8] * 4], "weight": [[[[1.5] * 3] * 3] * 4] * 6, "pad": 1, "variant": LEAN}
    body = json.dumps(asked).encode()
    with budget.hold() as held:
        held.more(budget.limit_bytes - 2 * len(body))
        headers = {"content-type": "application/json"}
        is_problem(client.post("/v1/convolutions", content=body, headers=headers), 503, "queue-full")
    assert budget.held_bytes == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/advice", {"layers": [LAYER]}),
        ("POST", "/v1/jobs", {"kind": "retrain"}),
        ("POST", "/v1/models", {}),
        ("PUT", "/v1/models/active", {"device": "fake-gpu", "model": "none"}),
    ],
)
def test_json_bodies_are_bounded_together_and_tensors_keep_none_out(
    client: Client, method: str, path: str, body: dict
) -> None:
    service = client.app.state.service
    with service._json_budget.hold() as held:
        held.more(service._json_budget.limit_bytes - 1)
        is_problem(client.request(method, path, json=body), 503, "queue-full")
    assert service._json_budget.held_bytes == 0
    measure_enough(client)
    with service.budget.hold() as held:
        held.more(service.budget.limit_bytes)
        assert client.request(method, path, json=body).status_code in (200, 202, 404)
    assert service._json_budget.held_bytes == 0


def test_what_runs_for_a_client_that_hangs_up_is_stopped(client: Client) -> None:
    client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})
    engine = client.app.state.service.worker.engine
    pid = engine.pid
    left, hang_up = threading.Event(), threading.Event()
    body = json.dumps({"layer": LAYER, "variant": HANGING}).encode()

    async def ask() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict:
            import asyncio

            if messages:
                return messages.pop()
            while not hang_up.is_set():
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(_message: dict) -> None:
            return

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/convolutions",
            "raw_path": b"/v1/convolutions",
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "server": ("testserver", 80),
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
        }
        await client.app(scope, receive, send)
        left.set()

    thread = threading.Thread(target=client.await_, args=(ask(),))
    thread.start()
    assert eventually(lambda: engine.state == "busy")
    hang_up.set()
    thread.join(300)
    assert left.is_set()
    assert eventually(lambda: engine.pid != pid and engine.is_alive)
    assert client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN}).status_code == 200


def test_bfloat16_lists_are_rounded_to_it(client: Client) -> None:
    x, weight = reference.random_operands(replace(SMALL, dtype=DType.BFLOAT16), seed=3)
    body = {"x": x.astype(float).tolist(), "weight": weight.astype(float).tolist(), "pad": 1, "dtype": "bfloat16"}
    y = client.post("/v1/convolutions", json=body | {"variant": LEAN}).json()["y"]
    expected = reference.convolve(replace(SMALL, dtype=DType.BFLOAT16), x, weight).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.array(y).astype(ml_dtypes.bfloat16), expected)
