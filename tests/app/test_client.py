"""``conv_advisor.Client`` and ``AsyncClient``, asking a running server, and one in trouble."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

import conv_advisor
from conv_advisor import AsyncClient, Client, ConvAdvisorError, ConvProblem, Refused, Unreachable
from conv_advisor.app.client import calls, parameters
from conv_advisor.app.client.attempts import Attempts, refused
from conv_advisor.app.client.connection import STREAM_SILENCE_S
from conv_advisor.app.jobs.requests import CalibrateJob, MeasureJob, RefreshJob, RetrainJob, SweepJob
from conv_advisor.app.plans.parameters import PlanParameters, batches_of, dims_of
from conv_advisor.app.routes.jobs import JobsQuery
from conv_advisor.app.wire import schemas
from conv_advisor.app.wire.safetensors import read_safetensors
from conv_advisor.app.wire.spellings import OTHER_NAMES
from conv_advisor.data.errors import InvalidInput, InvalidTensor, NotInstalled
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.tolerance import tolerance
from tests.app.serving import FAST, GPU, LAYER, LEAN, SLOW, SMALL
from tests.onnx_models import block
from tests.reliability.servers import Server, running

ROOT = Path(__file__).parents[2]
SIZES = {"layer", "input", *"nchwkrs", *OTHER_NAMES}
"""What the client takes as a layer."""
COMPUTED = [
    SMALL,
    replace(SMALL, dtype="bfloat16"),
    replace(SMALL, dtype="float16", layout="nhwc"),
    replace(SMALL, dtype="tf32"),
]
TOKEN = "ca_secret"  # noqa: S105 - nobody's
JOB = {"id": "j1", "state": "queued", "revision": 0, "progress": 0.0, "finished_at": None, "error": None}
FULL = {"type": "/problems/queue-full", "title": "Queue full", "status": 503, "detail": "2 jobs wait already"}
UNKNOWN = {
    "type": "/problems/unknown-device",
    "title": "Unknown device",
    "status": 404,
    "detail": "unknown device 'tpu'; known: fake-gpu",
    "name": "tpu",
    "known": ["fake-gpu"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("home"), *COMPUTED[1:]) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(str(server.http.base_url), deadline_s=300) as client:
        client.ready()
        yield client


def test_advice_is_what_the_library_returns(client: Client) -> None:
    advice = client.advise(LAYER, max_workspace_bytes=0)
    assert isinstance(advice, conv_advisor.LayerAdvice)
    assert (advice.problem, advice.device_id, advice.variant) == (SMALL, GPU.id, FAST)
    assert [choice.variant for choice in advice.ranking] == [FAST, LEAN]
    assert SLOW in {exclusion.variant for exclusion in advice.excluded}
    assert advice.trust.within == 0.05
    assert str(advice).startswith(f"{LAYER} float32 nchw on {GPU.id}: {FAST}")


def test_a_problem_says_all_of_a_layer(client: Client) -> None:
    problem = ConvProblem(
        n=2, c=8, h=9, w=7, k=4, r=3, s=1, stride_w=2, pad_h=1, groups=2, dtype="float16", layout="nhwc"
    )
    assert client.advise(problem).problem == problem
    (best,) = client.advise_many([problem])
    assert best["layer"] == problem.short


def test_each_layer_of_a_list_is_answered_in_its_place(client: Client) -> None:
    good, bad = client.advise_many([LAYER, "14-1-3-0-128"], dtype="float16")
    assert good["variant"] == client.advise(LAYER, dtype="float16").variant
    assert bad["error"]["field"] == "k"


def test_a_network_is_planned_by_its_name(client: Client) -> None:
    first, second = client.plan("resnet50", device="nvidia-h200", dtype="float16", batches=[1, 32])
    assert (first["network"], first["batch"], second["batch"]) == ("resnet50", 1, 32)
    assert first["n_convolutions"] == sum(layer["count"] for layer in first["layers"]) == 53
    assert second["time_ms"] > first["time_ms"] > 0
    assert second["against"]["pytorch_default"]["speedup"] is not None
    (without,) = client.plan("resnet50", device="nvidia-h200", dtype="float16", max_workspace_bytes=0, only="cudnn")
    assert without["workspace_bytes"] == 0
    assert {layer["variant"].split(".")[0] for layer in without["layers"]} == {"cudnn"}


def test_a_model_is_planned_from_its_file_and_from_its_bytes(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "block.onnx"
    file.write_bytes(block())
    (plan,) = client.plan(file, device="nvidia-h200", batches=[8])
    assert (plan["network"], plan["batch"], plan["n_convolutions"]) == ("block.onnx", 8, 3)
    assert client.plan(str(file), device="nvidia-h200", batches=[8]) == [plan]
    assert client.plan(block(), device="nvidia-h200", batches=[8]) == [plan | {"network": "model"}]


def test_what_is_asked_of_a_plan_is_written_as_the_server_reads_it() -> None:
    call = calls.plan(b"model", {"batches": [1, 8], "dims": {"height": 224, "width": 192}, "deterministic": True})
    assert call.query == {"batches": "1,8", "dims": "height=224,width=192", "deterministic": "true"}
    asked = PlanParameters.model_validate(call.query)
    assert (batches_of(asked.batches), dims_of(asked.dims)) == ([1, 8], {"height": 224, "width": 192})
    assert (call.method, call.body, call.headers) == ("POST", b"model", {"content-type": "application/onnx"})


def test_the_catalogue(client: Client) -> None:
    assert {"cuda.gemm", "cpu.direct"} <= {variant["id"] for variant in client.variants()}
    gemm = next(each for each in client.variants(LAYER, stride=2) if each["id"] == "cpu.gemm")
    assert gemm["applies"] is False
    assert [device["id"] for device in client.devices() if device["is_worker"]] == [GPU.id]
    assert GPU.id in {model["device"] for model in client.models()}


def test_bias_and_residual_are_arrays_that_are_added() -> None:
    problem = ConvProblem.parse("6-2-3-4-3-bias-residual-relu")
    x, weight = reference.random_operands(problem, seed=2)
    bias, residual = reference.random_ends(problem, seed=2)
    assert bias is not None
    assert residual is not None
    calls_said = calls.convolve(x, weight, {"pad": 1, "bias": bias, "residual": residual, "activation": "relu"})
    tensors, metadata = read_safetensors(
        np.frombuffer(calls_said.body, np.uint8), ("x", "weight"), ("bias", "residual")
    )
    assert metadata == {"pad": "1", "activation": "relu"}
    np.testing.assert_array_equal(tensors["bias"], bias)
    np.testing.assert_array_equal(tensors["residual"], residual)


def test_an_epilogue_that_is_not_counted_is_said_as_the_library_says_it(client: Client) -> None:
    advice = client.advise(f"{LAYER}-bias-relu", device=GPU.id)
    assert str(advice.uncounted) == "bias-relu"
    assert advice.asked.short == f"{LAYER}-bias-relu"
    assert advice.ranking == client.advise(LAYER, device=GPU.id).ranking


@pytest.mark.parametrize("problem", COMPUTED, ids=lambda problem: problem.key)
def test_arrays_are_convolved(client: Client, problem: ConvProblem) -> None:
    x, weight = reference.random_operands(problem, seed=1)
    y, measured = client.convolve(x, weight, pad=1, dtype=problem.dtype, layout=problem.layout, top=3)
    assert y.dtype == x.dtype
    assert comparison.max_error(y, reference.convolve(problem, x, weight)) <= tolerance(problem)
    assert measured["variant"] == FAST
    assert measured["time_ms"] == pytest.approx(0.010)
    assert {attempt["variant"] for attempt in measured["attempts"]} >= {FAST, SLOW}
    assert (measured["is_stored"], measured["problem"]["layer"]) == (True, problem.short)


def test_what_is_no_tensor_is_refused_before_it_is_sent() -> None:
    with Client("http://127.0.0.1:9") as nobody, pytest.raises(InvalidTensor, match="complex128"):
        nobody.convolve(np.ones((1, 1, 2, 2), complex), np.ones((1, 1, 1, 1), complex))


def test_a_layer_is_measured_without_tensors(client: Client) -> None:
    measured = client.measure(LAYER, variant=FAST)
    assert (measured["variant"], measured["y"]) == (FAST, None)
    assert client.advise(LAYER).is_measured


def test_a_job_is_waited_for_with_its_progress(client: Client) -> None:
    job = client.submit_measure([LAYER, SMALL], variants=[FAST, SLOW], samples=3, key="once")
    assert client.submit_measure([LAYER, SMALL], variants=[FAST, SLOW], samples=3, key="once")["id"] == job["id"]
    seen: list[float] = []
    done = client.wait(job["id"], deadline_s=300, on_change=lambda job: seen.append(job["progress"]))
    assert done["state"] == "succeeded"
    assert done["result"] is not None
    assert done["result"]["attempts"] == 2
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert [each["state"] for each in client.watch(job["id"], deadline_s=300)] == ["succeeded"]
    assert client.cancel(job["id"])["state"] == "succeeded"
    assert job["id"] in {each["id"] for each in client.jobs(kind="measure", limit=10)["jobs"]}
    assert client.job(job["id"]) == done


def test_a_sweep_is_queued_and_cancelled(client: Client) -> None:
    """For a device that nobody here has: it is not begun before."""
    job = client.submit_sweep(networks=["alexnet"], dtypes=["float16"], layouts=["nhwc"], device="nvidia-h200")
    assert job["request"]["networks"] == ["alexnet"]
    assert client.cancel(job["id"])["state"] == "cancelled"
    assert client.wait(job["id"], deadline_s=300)["state"] == "cancelled"


def test_too_little_to_train_on_is_said(client: Client) -> None:
    with pytest.raises(Refused) as caught:
        client.submit_retrain(device=GPU.id)
    assert caught.value.type == "/problems/not-enough-data"


def test_another_tree_is_put_in_charge(client: Client) -> None:
    (model,) = (each for each in client.models() if each["device"] == GPU.id)
    assert client.activate(GPU.id, model["id"])["is_active"]


def test_errors_carry_what_the_server_says(client: Client) -> None:
    with pytest.raises(Refused, match="unknown device 'tpu'") as caught:
        client.advise(LAYER, device="tpu")
    error = caught.value
    assert isinstance(error, ConvAdvisorError)
    assert (error.status, error.type, error.document["name"]) == (404, "/problems/unknown-device", "tpu")
    assert GPU.id in error.document["known"]


def test_the_asynchronous_client_answers_the_same(server: Server, client: Client) -> None:
    async def ask() -> None:
        async with AsyncClient(client.url, deadline_s=300) as other:
            await other.ready()
            first, second = await asyncio.gather(other.advise(LAYER), other.advise_many([LAYER]))
            assert first == client.advise(LAYER)
            assert second == client.advise_many([LAYER])
            planned = await other.plan("alexnet", device="nvidia-h200")
            assert planned == client.plan("alexnet", device="nvidia-h200")
            x, weight = reference.random_operands(SMALL, seed=1)
            y, measured = await other.convolve(x, weight, pad=1)
            assert comparison.max_error(y, reference.convolve(SMALL, x, weight)) <= tolerance(SMALL)
            assert measured["variant"] == FAST
            assert (await other.measure(LAYER, variant=LEAN))["variant"] == LEAN
            job = await other.submit_measure([LAYER], variants=[FAST], samples=2)
            seen: list[float] = []
            done = await other.wait(job["id"], deadline_s=300, on_change=lambda job: seen.append(job["progress"]))
            assert (done["state"], seen[-1]) == ("succeeded", 1.0)
            assert await other.job(job["id"]) == done == await other.cancel(job["id"])
            assert job["id"] in {each["id"] for each in (await other.jobs(limit=5))["jobs"]}
            sweep = await other.submit_sweep(networks=["alexnet"], device="nvidia-h200")
            assert (await other.cancel(sweep["id"]))["state"] == "cancelled"
            assert await other.variants() == client.variants()
            assert await other.devices() == client.devices()
            assert await other.models() == client.models()
            with pytest.raises(Refused, match="unknown model"):
                await other.activate(GPU.id, "none")
            with pytest.raises(Refused, match="measured"):
                await other.submit_retrain(device=GPU.id)

    asyncio.run(ask())


def test_a_deadline_may_be_infinite(client: Client) -> None:
    async def ask() -> Any:
        async with AsyncClient(client.url, deadline_s=math.inf) as other:
            return await other.devices()

    with Client(client.url, deadline_s=math.inf) as patient:
        assert patient.devices() == client.devices() == asyncio.run(ask())


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md", "docs/plans.md"])
def test_the_examples_of_the_pages_run(server: Server, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    (program,) = (each for each in programs if "conv_advisor.Client(" in each)
    here = program.replace("http://127.0.0.1:8000", str(server.http.base_url))
    few = here.replace("samples=10", f"samples=10, variants={[FAST, SLOW]}")  # of all, one crashes on this device
    exec(few, {})  # noqa: S102 - our own page
    assert "cu" in capsys.readouterr().out


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(each).parameters.values()) for name, each in found if not name.startswith("_")
        }

    assert methods(Client) == methods(AsyncClient)


@pytest.mark.parametrize(
    ("keywords", "schema", "otherwise"),
    [
        (parameters.AdviceKeywords, schemas.AdviceParameters, SIZES),
        (parameters.ManyKeywords, schemas.BulkAdviceParameters, SIZES),
        (parameters.PlanKeywords, PlanParameters, {"name"}),
        (parameters.VariantsKeywords, schemas.VariantParameters, SIZES),
        (parameters.ConvolutionKeywords, schemas.ConvolutionParameters, SIZES),
        (parameters.SweepKeywords, SweepJob, {"kind"}),
        (parameters.LongKeywords, MeasureJob, {"kind", "layers"}),
        (parameters.RetrainKeywords, RetrainJob, {"kind"}),
        (parameters.CalibrateKeywords, CalibrateJob, {"kind"}),
        (parameters.RefreshKeywords, RefreshJob, {"kind"}),
        (parameters.JobsKeywords, JobsQuery, set()),
    ],
)
def test_keywords_are_what_the_server_reads(keywords: type, schema: type[BaseModel], otherwise: set[str]) -> None:
    assert set(keywords.__annotations__) == set(schema.model_fields) - otherwise


class Script:
    """A server that gives one answer after the other, and keeps what it was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers, self.asked = list(answers), []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, **options: Any) -> Client:
        return Client("http://server", transport=httpx.MockTransport(self), **options)

    def ask(self, is_async: bool, name: str, *arguments: Any, within_s: float | None = None, **options: Any) -> Any:
        """One method of either client; within some time, where the method has a deadline of its own."""
        keywords = {} if within_s is None else {"deadline_s": within_s}
        if not is_async:
            with self.client(**options) as client:
                return getattr(client, name)(*arguments, **keywords)

        async def ask() -> Any:
            async with AsyncClient("http://server", transport=httpx.MockTransport(self), **options) as client:
                return await getattr(client, name)(*arguments, **keywords)

        return asyncio.run(ask())


def problem(document: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.Response(
        document["status"], json=document, headers={"content-type": "application/problem+json"} | headers
    )


both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@both
def test_a_busy_server_is_asked_again_with_the_same_key(is_async: bool) -> None:
    answers = [problem(FULL), httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.Response(202, json=JOB)]
    script = Script(*answers)
    assert script.ask(is_async, "submit_retrain") == JOB
    (key,) = {request.headers["idempotency-key"] for request in script.asked}
    assert len(key) == 32
    assert {request.content for request in script.asked} == {b'{"kind":"retrain"}'}
    assert len(script.asked) == 4


@both
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500, 501, 504, 507])
def test_what_will_not_succeed_is_asked_once(is_async: bool, status: int) -> None:
    script = Script(problem(UNKNOWN | {"status": status}))
    with pytest.raises(Refused, match="Unknown device: unknown device 'tpu'") as caught:
        script.ask(is_async, "advise", LAYER)
    assert caught.value.document == UNKNOWN | {"status": status}
    assert len(script.asked) == 1


@pytest.mark.parametrize("name", ["worker-died", "launch-failed"])
def test_what_killed_its_worker_is_not_sent_to_the_next(name: str) -> None:
    script = Script(problem(FULL | {"type": f"/problems/{name}"}))
    with pytest.raises(Refused):
        script.ask(False, "measure", LAYER)
    assert len(script.asked) == 1


@both
def test_a_server_that_wants_to_be_left_alone_for_longer_than_there_is_time_is_not_asked_again(is_async: bool) -> None:
    script = Script(problem(FULL, **{"retry-after": "3600"}))
    with pytest.raises(Refused) as caught:
        script.ask(is_async, "devices", deadline_s=60.0)
    assert caught.value.retry_after_s == 3600.0
    assert len(script.asked) == 1


@both
def test_nobody_there_is_said_once_the_time_is_over(is_async: bool) -> None:
    script = Script(*[httpx.ConnectError("refused")] * 100)
    with pytest.raises(Unreachable, match="http://server does not answer: ConnectError: refused"):
        script.ask(is_async, "models", deadline_s=2.0)
    assert len(script.asked) > 1


@both
@pytest.mark.parametrize("asked", [("ready",), ("wait", "j1")], ids=lambda asked: asked[0])
def test_an_answer_that_never_ends_is_given_up(is_async: bool, asked: tuple[str, ...]) -> None:
    class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                time.sleep(0.01)
                yield b": nothing new\n\n"

        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(0.01)
                yield b": nothing new\n\n"

    script = Script(httpx.Response(200, stream=Endless()))
    with pytest.raises(Unreachable, match="not complete in time"):
        script.ask(is_async, *asked, within_s=1.0)


@contextmanager
def says_little(after_s: float) -> Iterator[str]:
    """The address of a server that begins every answer, says something once more, and never ends it."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nretry: 1000\n\n")
            time.sleep(after_s)
            connection.sendall(b": nothing new\n\n")
            connection.recv(1)  # until the client hangs up

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@both
@pytest.mark.parametrize("asked", [("ready",), ("wait", "j1")], ids=lambda asked: asked[0])
def test_a_deadline_holds_between_two_signs_of_life(is_async: bool, asked: tuple[str, ...]) -> None:
    """A read may take as long as was left when the request was sent: the last one began shortly before the deadline."""

    async def ask_async(url: str) -> None:
        async with AsyncClient(url) as client:
            await getattr(client, asked[0])(*asked[1:], deadline_s=5.0)

    def ask(url: str) -> None:
        if is_async:
            asyncio.run(ask_async(url))
        else:
            with Client(url) as client:
                getattr(client, asked[0])(*asked[1:], deadline_s=5.0)

    with says_little(after_s=4.5) as url:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="not complete in time"):
            ask(url)
    assert 5.0 <= time.monotonic() - began < 7.0


@both
def test_a_wait_asks_for_the_job_itself_within_its_own_deadline(is_async: bool) -> None:
    script = Script(problem(FULL), *[httpx.ConnectError("refused")] * 1000)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="refused"):
        script.ask(is_async, "wait", "j1", within_s=2.0, deadline_s=60.0)
    assert time.monotonic() - began < 4.0


@both
@pytest.mark.parametrize("text", ["<html>hello</html>", "[]", '{"other": 1}', ""])
def test_another_servers_answer_is_not_taken_for_one_of_ours(is_async: bool, text: str) -> None:
    with pytest.raises(Refused, match="Not an answer of conv-advisor"):
        Script(httpx.Response(200, text=text)).ask(is_async, "models")


@both
def test_an_answer_that_was_spoilt_on_its_way_is_asked_for_again(is_async: bool) -> None:
    packed = {"content-encoding": "gzip"}
    spoilt = httpx.Response(200, stream=httpx.ByteStream(b'{"models": []}'), headers=packed)
    whole = httpx.Response(200, stream=httpx.ByteStream(gzip.compress(b'{"models": []}')), headers=packed)
    assert Script(spoilt, whole).ask(is_async, "models") == []


@both
def test_a_proxys_error_page_is_an_error_too(is_async: bool) -> None:
    script = Script(httpx.Response(504, text="<h1>Gateway Time-out</h1>"))
    with pytest.raises(Refused, match="HTTP 504: <h1>Gateway Time-out</h1>") as caught:
        script.ask(is_async, "models")
    assert (caught.value.status, caught.value.type) == (504, "about:blank")


@both
@pytest.mark.parametrize("model", ["missing.onnx", Path("missing"), "\0.onnx"])
def test_a_model_that_cannot_be_read_is_not_sent(is_async: bool, model: str | Path) -> None:
    script = Script()
    with pytest.raises(InvalidInput, match=r"^model is .*; allowed: an ONNX file that can be read"):
        script.ask(is_async, "plan", model)
    assert script.asked == []


@both
def test_a_model_is_sent_again_where_as_many_are_being_read_as_may_be(is_async: bool) -> None:
    script = Script(problem(FULL), httpx.Response(200, json={"plans": []}))
    assert script.ask(is_async, "plan", b"model") == []
    assert [request.content for request in script.asked] == [b"model", b"model"]


def test_a_redirect_is_not_followed_with_the_token() -> None:
    script = Script(httpx.Response(308, headers={"location": "https://elsewhere/v1/models"}))
    with pytest.raises(Refused, match="HTTP 308: https://elsewhere/v1/models"):
        script.ask(False, "models", token=TOKEN)
    assert script.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def stream(*jobs: dict[str, Any]) -> httpx.Response:
    lines = [f"id: {job['revision']}\ndata: {json.dumps(job)}\n\n: nothing new\n\n" for job in jobs]
    return httpx.Response(200, text="retry: 1000\n\n" + "".join(lines))


@both
def test_a_stream_that_breaks_is_taken_up_where_it_was(is_async: bool) -> None:
    running = JOB | {"state": "running", "revision": 2, "progress": 0.5}
    done = running | {"state": "succeeded", "revision": 3, "progress": 1.0, "finished_at": "2026-01-01T00:00:00+00:00"}
    script = Script(
        httpx.ConnectError("starting"),
        stream(JOB, running),
        problem(FULL),  # too many streams: the job itself is asked for
        httpx.Response(200, json=running),
        stream(),
        stream(done),
    )
    assert script.ask(is_async, "wait", "j1") == done
    assert [request.headers.get("last-event-id") for request in script.asked] == [None, None, "2", None, "2", "2"]
    assert [request.url.path for request in script.asked].count("/v1/jobs/j1") == 1
    silences_s = [
        request.extensions["timeout"]["read"] for request in script.asked if request.url.path.endswith("/events")
    ]
    assert silences_s == [STREAM_SILENCE_S] * 5


@both
def test_streams_that_end_before_their_job_are_asked_for_until_the_deadline(is_async: bool) -> None:
    script = Script(*[stream(JOB) for _ in range(1000)])
    # The deadline may also pass in the middle of one.
    with pytest.raises(Unreachable, match=r"has ended before the job|not complete in time"):
        script.ask(is_async, "wait", "j1", within_s=6.0)
    assert len(script.asked) > 1


@both
def test_a_job_whose_server_is_gone_is_waited_for_no_longer_than_a_request(is_async: bool) -> None:
    queued = JOB | {"message": "no worker of x is at this server"}
    script = Script(stream(queued), *[httpx.ConnectError("refused")] * 100)
    with pytest.raises(Unreachable, match=r"j1 is queued \(no worker of x is at this server\).*ConnectError: refused"):
        script.ask(is_async, "wait", "j1", deadline_s=0.3)
    assert 2 < len(script.asked) < 100


def test_a_deadline_that_is_given_is_kept_though_the_server_is_away() -> None:
    done = JOB | {"state": "succeeded", "revision": 1, "finished_at": "2026-01-01T00:00:00+00:00"}
    away = [httpx.ConnectError("refused")] * 4
    for within_s in (60.0, math.inf):
        assert (
            Script(stream(JOB), *away, stream(done)).ask(False, "wait", "j1", within_s=within_s, deadline_s=1e-3)
            == done
        )


def test_a_stream_that_says_anything_shows_that_its_server_is_there() -> None:
    clock = Clock()
    attempts = Attempts(math.inf, clock, chance=lambda: 0.0, patience_s=10.0)
    gone = Unreachable("http://server", "refused")
    for _ in range(3):
        attempts.wait_s(gone)
        clock.now_s += 9
        attempts.wait_s(gone)
        attempts.hear()
        clock.now_s += 3600
    attempts.wait_s(gone)
    clock.now_s += 10
    with pytest.raises(Unreachable):
        attempts.wait_s(gone)


@both
def test_whoever_may_see_a_job_and_not_its_events_is_told_so(is_async: bool) -> None:
    script = Script(problem(UNKNOWN | {"status": 403}), httpx.Response(200, json=JOB))
    with pytest.raises(Refused) as caught:
        script.ask(is_async, "wait", "j1")
    assert caught.value.status == 403
    assert len(script.asked) == 2


@both
def test_a_job_that_failed_raises_its_error(is_async: bool) -> None:
    error = {"type": "/problems/worker-died", "title": "Worker died", "detail": "three times"}
    failed = JOB | {"state": "failed", "revision": 4, "finished_at": "2026-01-01T00:00:00+00:00", "error": error}
    with pytest.raises(Refused, match="Worker died: three times"):
        Script(stream(failed)).ask(is_async, "wait", "j1")


def test_a_jobs_name_is_one_part_of_a_path() -> None:
    script = Script(httpx.Response(200, json=JOB))
    script.ask(False, "job", "../models?x=1")
    assert script.asked[0].url.raw_path == b"/v1/jobs/..%2Fmodels%3Fx%3D1"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(
            ({"url": url}, "url")
            for url in ("server:8000", "file:///etc/passwd", "http://", "http://server:port", "http://[::1", None)
        ),
        *(({"url": f"http://server/{more}"}, "url") for more in ("?layer=1", "#top")),
        ({"token": "two\r\nlines"}, "token"),
    ],
)
def test_what_is_no_address_and_no_token_is_refused(options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field} is") as caught:
        Client(**options)
    assert "lines" not in str(caught.value)


def test_a_token_is_not_shown() -> None:
    with Client(token=TOKEN) as client:
        assert TOKEN not in repr(client)


class Clock:
    """Time that passes when it is told to."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_waits_double_and_are_no_shorter_than_is_asked_for() -> None:
    attempts = Attempts(1000.0, Clock(), chance=lambda: 1.0)
    busy = Unreachable("http://server", "refused")
    assert [round(attempts.wait_s(busy), 3) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert attempts.wait_s(Refused(FULL, 7.0)) == 12.0
    attempts.begin_again()
    assert attempts.wait_s(busy) == 0.1


@pytest.mark.parametrize("deadline_s", [0, -1.0, math.nan, None, "60"])
def test_a_deadline_that_is_none_is_refused(deadline_s: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^deadline_s is .*; allowed: seconds above 0"):
        Client(deadline_s=deadline_s).models()


def test_no_attempt_is_made_after_the_deadline() -> None:
    clock = Clock()
    attempts = Attempts(10.0, clock, chance=lambda: 0.0)
    assert attempts.wait_s(Refused(FULL, 9.0)) == 9.0
    with pytest.raises(Refused):
        attempts.wait_s(Refused(FULL, 10.0))
    clock.now_s += 10
    assert attempts.left_s == 0.0
    with pytest.raises(Unreachable):
        attempts.wait_s(Unreachable("http://server", "refused"))
    with pytest.raises(Unreachable):
        attempts.check("http://server")


@pytest.mark.parametrize(
    ("text", "least_s", "most_s"),
    [
        ("3", 3, 3),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-1", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 2100 23:59:59 GMT", 1e9, 1e10),
        ("Fri, 31 Dec 2100 23:59:59", 0, 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, least_s: float, most_s: float) -> None:
    assert least_s <= refused(503, {"retry-after": text}, b"{}").retry_after_s <= most_s


def test_importing_the_client_loads_no_service() -> None:
    code = "import sys, conv_advisor; conv_advisor.Client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"fastapi", "pydantic", "sqlalchemy", "httpx"} & set(done.stdout.split())


def test_a_client_without_httpx_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    for kind in (Client, AsyncClient):
        with pytest.raises(NotInstalled, match=r"pip install 'conv-advisor\[client\]'"):
            kind()
