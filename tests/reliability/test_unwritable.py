"""A store that cannot be written keeps no reader waiting, and no convolution from being answered, which says so."""

from __future__ import annotations

import json
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import text

from conv_advisor.app.wire.open_inference import LENGTH_HEADER
from conv_advisor.data.database import opening as database
from conv_advisor.data.database.opening import open_engine
from conv_advisor.data.errors import StoreError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from tests.app.serving import FAST, LAYER, SMALL, Client, is_problem, serving
from tests.databases import new_database, new_postgresql
from tests.disks import filled, small_disk
from tests.processes import eventually
from tests.reliability.scale import HASTE
from tests.reliability.servers import Server, running

pytestmark = pytest.mark.slow

WRITES = 12
"""More than there are threads for reading, on any number of cores that tests run on."""
READS = (
    f"/v1/advice?layer={LAYER}",
    f"/v1/pareto?layer={LAYER}",
    f"/v1/neighbours?layer={LAYER}",
    f"/v1/explanations?layer={LAYER}",
    f"/v1/snippets?layer={LAYER}&language=torch",
    "/v1/jobs",
    "/v1/models",
    "/v1/devices",
    "/v1/variants",
    "/v1/networks",
    "/metrics",
    "/livez",
    "/",
    f"/?layer={LAYER}",
    "/models",
    "/jobs",
)
LIST = {"layers": [LAYER, "14-1-3-256-128"], "dtype": "float32"}
SWEEP = {"kind": "sweep", "networks": ["alexnet"]}
NAMED = {"layer": LAYER, "variant": FAST}

Http = httpx.Client | Client


def read_all(http: Http) -> dict[str, int]:
    """The status of every address that only reads."""
    statuses = {path: http.get(path).status_code for path in READS}
    return statuses | {"POST /v1/advice": http.post("/v1/advice", json=LIST).status_code}


def all_read() -> dict[str, int]:
    return dict.fromkeys([*READS, "POST /v1/advice"], 200)


def tensors(problem: ConvProblem = SMALL) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"x": problem.x_shape, "weight": problem.weight_shape}
    return {name: random.random(shape, np.float32) for name, shape in shapes.items()}


def in_json(http: Http) -> dict[str, Any]:
    answer = http.post("/v1/convolutions", json=NAMED)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _binary(http: Http, accept: str) -> httpx.Response:
    body = save(tensors(), metadata={"layer": LAYER, "variant": FAST})
    kinds = {"content-type": "application/vnd.safetensors", "accept": accept}
    answer = http.post("/v1/convolutions", content=body, headers=kinds)
    assert answer.status_code == 200, answer.text
    return answer


def in_safetensors(http: Http) -> dict[str, Any]:
    content = _binary(http, "application/vnd.safetensors").content
    length = int.from_bytes(content[:8], "little")
    said = json.loads(content[8 : 8 + length])["__metadata__"]
    return {"is_stored": json.loads(said["is_stored"]), "why_not_stored": said["why_not_stored"]}


def in_npy(http: Http) -> dict[str, Any]:
    return json.loads(_binary(http, "application/x-npy").headers["convolution"])


def in_inference(http: Http) -> dict[str, Any]:
    inputs = [
        {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}
        for name, array in tensors().items()
    ]
    parameters = {"pad": 1, "variant": FAST}
    answer = http.post("/v2/models/conv/infer", json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    assert LENGTH_HEADER not in answer.headers
    return answer.json()["parameters"]


FORMS = (in_json, in_safetensors, in_npy, in_inference)


@contextmanager
def locked(server: Server) -> Iterator[None]:
    other = sqlite3.connect(server.home / "conv-advisor.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def disk_full(server: Server) -> Iterator[None]:
    size = (server.home / "conv-advisor.db-wal").stat().st_size
    before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)


@contextmanager
def gone(server: Server, name: str) -> Iterator[None]:
    (server.home / name).rename(server.home / "away")
    try:
        yield
    finally:
        (server.home / "away").rename(server.home / name)


@contextmanager
def file_gone(server: Server) -> Iterator[None]:
    with gone(server, "conv-advisor.db"):
        yield


@contextmanager
def log_gone(server: Server) -> Iterator[None]:
    with gone(server, "conv-advisor.db-wal"):
        yield


@contextmanager
def read_only(server: Server) -> Iterator[None]:
    names = "conv-advisor.db", "conv-advisor.db-wal"
    for name in names:
        (server.home / name).chmod(0o400)
    try:
        yield
    finally:
        for name in names:
            (server.home / name).chmod(0o600)


Break = Callable[[Server], Any]


@pytest.mark.parametrize("broken", [locked, disk_full, file_gone, log_gone])
def test_what_was_computed_is_answered_though_it_cannot_be_stored_and_readers_wait_for_nobody(
    tmp_path: Path, broken: Break
) -> None:
    with running(tmp_path, haste=HASTE) as server:
        assert read_all(server.http) == all_read()
        assert [form(server.http)["is_stored"] for form in FORMS] == [True] * len(FORMS)
        with broken(server):
            assert read_all(server.http) == all_read()
            for form in FORMS:
                said = form(server.http)
                assert said["is_stored"] is False
                assert said["why_not_stored"]
            refused = server.http.post("/v1/jobs", json=SWEEP)
            is_problem(refused, 503, "store-error")
            assert refused.headers["retry-after"]
            assert read_all(server.http) == all_read()
        assert eventually(server.is_ready)
        said = in_json(server.http)
        assert (said["is_stored"], said["why_not_stored"]) == (True, "")
        assert server.http.post("/v1/jobs", json=SWEEP).status_code == 202


def test_a_disk_that_fills_up_is_named_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 2**20) as disk, running(disk, haste=HASTE) as server:
        assert in_json(server.http)["is_stored"]
        job = server.http.post("/v1/jobs", json=SWEEP).json()["id"]
        n_stored, full = _count(disk), f"the disk of {disk / 'conv-advisor.db'} is full"
        with filled(disk):
            # Pages that the log has already are written again until there is none left.
            assert eventually(lambda: not in_json(server.http)["is_stored"])
            assert full in in_json(server.http)["why_not_stored"]
            refused = server.http.post("/v1/jobs", json=SWEEP)
            is_problem(refused, 503, "store-error")
            assert full in refused.json()["detail"]
            assert read_all(server.http) == all_read()
        assert eventually(server.is_ready)
        assert _count(disk) >= n_stored
        assert server.http.get(f"/v1/jobs/{job}").status_code == 200
        assert in_json(server.http)["is_stored"]


def test_tables_of_postgresql_that_somebody_has_locked_keep_no_reader_waiting(tmp_path: Path) -> None:
    with new_postgresql() as url, running(tmp_path, haste=HASTE, database_url=url) as server:
        assert read_all(server.http) == all_read()
        other = open_engine(url)
        with other.connect() as holding:
            holding.execute(text("LOCK TABLE measurements, jobs IN EXCLUSIVE MODE"))
            assert read_all(server.http) == all_read()
            assert in_json(server.http)["is_stored"] is False
            is_problem(server.http.post("/v1/jobs", json=SWEEP), 503, "store-error")
            holding.rollback()
            # Against reading too: whoever asks is told, and does not wait for the lock to end.
            holding.execute(text("LOCK TABLE measurements, jobs"))
            is_problem(server.http.get("/v1/jobs"), 503, "store-error")
            assert server.http.get("/livez").status_code == 200
            holding.rollback()
        other.dispose()
        assert in_json(server.http)["is_stored"] is True


def test_what_a_read_only_file_still_takes_is_in_it(tmp_path: Path) -> None:
    """Who opened it before may still write; what is said of it is true."""
    with running(tmp_path) as server:
        in_json(server.http)
        before = _count(tmp_path)
        with read_only(server):
            said = in_json(server.http)
            assert read_all(server.http) == all_read()
        assert _count(tmp_path) - before == said["is_stored"]


def _count(home: Path) -> int:
    with sqlite3.connect(home / "conv-advisor.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM measurements").fetchone()
    connection.close()
    return int(count)


def test_readers_go_on_while_more_writers_wait_than_there_are_threads(tmp_path: Path) -> None:
    """No clock decides: the writes wait until every read has been answered."""
    goes_on = threading.Event()
    with serving(tmp_path) as client, ThreadPoolExecutor(2 * WRITES) as threads:
        assert read_all(client) == all_read()
        service = client.app.state.service
        append, create = service.store.append, service.jobs.create
        waiting = []

        def held(write: Callable[..., Any]) -> Callable[..., Any]:
            def wait(*args: Any, **options: Any) -> Any:
                waiting.append(1)
                goes_on.wait(300)
                return write(*args, **options)

            return wait

        service.store.append, service.jobs.create = held(append), held(create)
        try:
            writes = [threads.submit(client.post, "/v1/convolutions", json=NAMED) for _ in range(WRITES)]
            writes += [threads.submit(client.post, "/v1/jobs", json=SWEEP) for _ in range(WRITES)]
            assert eventually(lambda: waiting)
            assert read_all(client) == all_read()
        finally:
            goes_on.set()
        answers = [write.result() for write in writes]
        assert {answer.status_code for answer in answers} <= {200, 202, 503}
        refused = [answer for answer in answers if answer.status_code == 503]
        assert all(answer.headers["retry-after"] for answer in refused)
        assert all("is_stored" in answer.json() for answer in answers if answer.status_code == 200)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_waits_as_long_as_it_is_told_and_the_same_store_elsewhere_longer(kind: str, tmp_path: Path) -> None:
    with new_database(kind, tmp_path) as url, Store(url) as patient:
        hurried = patient.waiting_at_most(0.05)
        other = open_engine(url)
        update = text("UPDATE alembic_version SET version_num = version_num")
        with other.connect() as holding, ThreadPoolExecutor(1) as threads:
            holding.execute(update)

            def write(store: Store) -> None:
                with store.engine.begin() as connection:
                    connection.execute(update)

            for _ in range(2):  # on the same connection, after a transaction that waits longer
                with pytest.raises(Exception, match="lock"):
                    write(hurried)
            later = threads.submit(write, patient)
            with pytest.raises(Exception, match="lock"):
                write(hurried)
            assert not later.done()
            holding.rollback()
            later.result(timeout=60)
            write(hurried)
        other.dispose()


def test_no_connection_is_opened_beside_a_file_that_is_gone(tmp_path: Path) -> None:
    """SQLite would make a new file, and delete the log of the one that somebody moves back."""
    file = tmp_path / "store.db"
    with Store(f"sqlite:///{file}") as store:
        log_bytes = (tmp_path / "store.db-wal").read_bytes()
        file.rename(tmp_path / "away")
        with store.engine.connect() as pooled:
            with suppress(Exception):
                pooled.execute(text("SELECT 1"))
            with pytest.raises(Exception, match="is gone"), store.engine.connect():
                pass
        assert not file.exists()
        assert (tmp_path / "store.db-wal").read_bytes() == log_bytes
        (tmp_path / "away").rename(file)
        with store.engine.connect(), store.engine.connect() as second:
            assert second.execute(text("SELECT count(*) FROM jobs")).scalar() == 0


def test_readers_of_a_file_that_is_gone_take_turns_with_the_connections_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_tried = threading.Event()
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store, ThreadPoolExecutor(1) as thread:
        held = [store.engine.connect() for _ in range(store.engine.pool.checkedin())]
        (tmp_path / "store.db").rename(tmp_path / "away")
        with pytest.raises(StoreError, match="is gone"):
            store.devices()  # none is given back in time
        monkeypatch.setattr(database, "_TURN_S", 300.0)
        monkeypatch.setattr(database, "sleep", lambda _s: has_tried.set())
        reading = thread.submit(store.devices)
        has_tried.wait(60)
        for connection in held:
            connection.close()
        assert list(reading.result()) == []
