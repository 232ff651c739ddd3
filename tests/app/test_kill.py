"""A real server killed at every commit of its database: no acknowledged job is lost, and none is applied twice."""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from conv_advisor.data import parquet
from conv_advisor.data.database.tables import ACTIVE_MODELS, JOBS, MEASUREMENTS, MODELS, PICKS
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels
from tests.app.killable import Life, fork_server
from tests.app.serving import FAST, GPU, SLOW, keep_tree, recording
from tests.data import arrow
from tests.databases import new_postgresql
from tests.fakes import SMALL_DEVICE, small_tree
from tests.processes import free_port, is_running

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KILLS", "24"))
"""On each database; 0: at every commit there is, before and after."""
LAYERS = [f"{size}-1-3-4-2" for size in range(5, 17 if KILLS else 32)]
VARIANTS = [FAST, SLOW]
JOBS_ASKED: dict[str, dict[str, Any]] = {
    "measure": {"kind": "measure", "layers": LAYERS, "variants": VARIANTS, "samples": 2, "run_id": "the-run"},
    "retrain": {"kind": "retrain", "device": SMALL_DEVICE.id, "force": True},
    "unwanted": {"kind": "measure", "layers": LAYERS[:1], "device": "nvidia-h200"},  # which nobody has here
}
WITHIN_S = 600.0
Point = tuple[int, str, str]
"""The so-manieth commit, whether before or after it, and what it writes; empty: whatever that is."""
AT_ONCE = 4
"""Scenes that are played side by side: most of their time they wait for a lease to end."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A client that makes one of its own reads every certificate of the host."""


@dataclass
class Scene:
    """One home and database, the servers that live on it, and what they have acknowledged."""

    home: Path
    url: str
    starter: Any
    recording: Path
    ids: dict[str, str] = field(default_factory=dict)
    is_cancelled: bool = False

    def begin(self, number: int = 0, when: str = "before", what: str = "") -> tuple[Life, httpx.Client]:
        port = free_port()
        options = {"home": str(self.home), "url": self.url, "port": port, "recording": str(self.recording)}
        life = Life(self.starter, **options, number=number, when=when, what=what)
        return life, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, verify=NO_TLS)

    def play(self, number: int = 0, when: str = "before", what: str = "") -> bool:
        """Let a server live until all is done, or it is killed; whether all was done."""
        life, http = self.begin(number, when, what)
        try:
            with http:
                return self.live(life, http)
        finally:
            life.end()

    def ask(self, http: httpx.Client) -> None:
        """Ask for every job, as a client does who sends again what was not acknowledged."""
        for name, body in JOBS_ASKED.items():
            answer = http.post("/v1/jobs", json=body, headers={"Idempotency-Key": name})
            assert answer.status_code == 202, answer.text
            assert self.ids.setdefault(name, answer.json()["id"]) == answer.json()["id"], f"{name} was lost"
        answer = http.delete(f"/v1/jobs/{self.ids['unwanted']}")
        assert answer.json()["state"] == "cancelled", answer.text
        self.is_cancelled = True

    def live(self, life: Life, http: httpx.Client) -> bool:
        """Ask until all is done, or the server is killed; whether all was done."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            try:
                self.ask(http)
                while any(job["finished_at"] is None for job in http.get("/v1/jobs").json()["jobs"]):
                    assert time.monotonic() < until, http.get("/v1/jobs").text
                    time.sleep(0.15)
            except httpx.TransportError:
                if not is_running(life.pid):
                    return False
                time.sleep(0.1)  # it does not listen yet
            else:
                return True
        raise AssertionError(f"not done within {WITHIN_S} s")


def check_between(scene: Scene) -> None:
    """What was acknowledged is there, and what has succeeded is applied: in the database, after the kill."""
    with Store(scene.url) as store, store.engine.connect() as connection:
        rows = {row.idempotency_key: row for row in connection.execute(select(JOBS))}
        for name, job_id in scene.ids.items():
            assert rows[name].id == job_id
        if scene.is_cancelled:
            assert rows["unwanted"].state == "cancelled"
        if "measure" in rows and rows["measure"].state == "succeeded":
            assert len(store.attempted("the-run")) == len(LAYERS) * len(VARIANTS)
        promoted = connection.execute(select(ACTIVE_MODELS.c.activation)).scalars().all()
        is_trained = "retrain" in rows and rows["retrain"].state == "succeeded"
        if is_trained:
            assert promoted == [2]
        else:  # what this home had before is given to the database as the first of all
            assert promoted in ([], [1]), "a tree is in charge whose job has not succeeded"


def check_end(scene: Scene) -> None:
    """Every job is there once, and was applied once."""
    with Store(scene.url) as store, store.engine.connect() as connection:
        jobs = {row.idempotency_key: row for row in connection.execute(select(JOBS))}
        assert {name: row.id for name, row in jobs.items()} == scene.ids
        assert {name: row.state for name, row in jobs.items()} == {
            **{"measure": "succeeded", "retrain": "succeeded"},
            "unwanted": "cancelled",
        }
        measured = connection.execute(
            select(MEASUREMENTS.c.problem_key, MEASUREMENTS.c.variant).where(MEASUREMENTS.c.run_id == "the-run")
        ).all()
        assert sorted(map(tuple, measured)) == sorted(
            (ConvProblem.parse(layer).key, variant) for layer in LAYERS for variant in VARIANTS
        )
        picked = connection.execute(select(PICKS.c.problem_key).where(PICKS.c.run_id == "the-run")).scalars().all()
        assert sorted(picked) == sorted(ConvProblem.parse(layer).key for layer in LAYERS)
        assert jobs["measure"].result["attempts"] == len(measured)
        assert connection.execute(select(ACTIVE_MODELS.c.activation)).scalars().all() == [2]
        assert connection.execute(select(func.count()).select_from(MODELS)).scalar_one() == 2
        assert jobs["retrain"].result["model"] == small_tree(0.02).id
        SharedModels(Registry(scene.home), store.engine).join()  # as the next server does that starts here
    assert Registry(scene.home).active(SMALL_DEVICE.id).id == small_tree(0.02).id


def kill_once(scene: Scene, number: int, when: str, what: str) -> str | None:
    """Let a server be killed at a commit, and another end what it began; what was written there, None for nothing."""
    is_done = scene.play(number, when, what)
    killed_at = scene.home / "killed-at"
    if is_done and not killed_at.exists():
        return None
    check_between(scene)
    assert scene.play()
    check_end(scene)
    return killed_at.read_text()


@pytest.fixture(scope="module")
def starters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleQueue[Any]]:
    starters: SimpleQueue[Any] = SimpleQueue()
    with ExitStack() as stack:
        for place in range(AT_ONCE):
            log = tmp_path_factory.mktemp("log") / f"servers-{place}.log"
            starters.put(stack.enter_context(fork_server(log)))
        yield starters


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "recording.parquet"
    rows = [row for layer in LAYERS for row in recording(ConvProblem.parse(layer)) if row.variant in VARIANTS]
    parquet.write(arrow.measurements_to_table(rows), path)
    assert rows[0].device == GPU
    return path


def count_commits(scene: Scene) -> int:
    """How many commits it takes to do everything."""
    assert scene.play()
    check_end(scene)
    return int((scene.home / "commits").read_text())


def kill_points(n_commits: int) -> list[Point]:
    """Commits to be killed at: all of them, or so many, evenly; and the first of measurements, which has them all."""
    points = [(number, when, "") for number in range(1, n_commits + 1) for when in ("before", "after")]
    if KILLS:
        points = points[:: max(1, -(-len(points) // KILLS) | 1)]  # odd steps: before and after by turns
    return points + [(1, when, "insert measurements") for when in ("before", "after")]


@contextmanager
def scene_of(database: str, home: Path, starters: SimpleQueue[Any], replayed: Path) -> Iterator[Scene]:
    """A home with a tree in charge, an empty database, and what starts servers for them."""
    keep_tree(home, small_tree(0.01))
    starter = starters.get()
    try:
        if database == "sqlite":
            yield Scene(home, f"sqlite:///{home}/store.db", starter, replayed)
        else:
            with new_postgresql() as url:
                yield Scene(home, url, starter, replayed)
    finally:
        starters.put(starter)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_server_killed_at_any_commit_loses_nothing_and_repeats_nothing(
    database: str, tmp_path: Path, starters: SimpleQueue[Any], replayed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scene_of(database, tmp_path / "unharmed", starters, replayed) as scene:
        n_commits = count_commits(scene)

    def kill_at(point: Point) -> str:
        """Kill a server there, or about there: how many commits there are depends on time, a little."""
        number, when, what = point
        while True:
            home = tmp_path / f"home-{point[0]}-{number}-{when}-{what.replace(' ', '-')}"
            with scene_of(database, home, starters, replayed) as scene:
                wrote = kill_once(scene, number, when, what)
            if wrote is not None:
                return wrote
            assert not what, f"nobody commits: {what}"
            number = max(1, number * int((home / "commits").read_text()) // n_commits)

    points = kill_points(n_commits)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(kill_at, points))
    killed = Counter(f"{when} {what}" for (_, when, _), what in zip(points, found, strict=True))
    with capsys.disabled():
        report = f"{killed.total()} kills, of {n_commits} commits before and after, {len(killed)} kinds"
        sys.stdout.write(f"\n{database}: {report}: {dict(killed)}\n")
    for what in ("update jobs", "insert measurements", *(() if KILLS else ("insert active_models", "insert jobs"))):
        assert what in " ".join(killed), f"no server was killed where it wrote: {what}"
