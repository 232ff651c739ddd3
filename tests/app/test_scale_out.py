"""Two real servers on one database: a tree that one puts in charge is the other's within 2 s, and none is mixed up."""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from conv_advisor.app.advice.details import pareto_answer, weighed
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.recall import Recall
from conv_advisor.app.wire.answers.advice import advice_json
from conv_advisor.data import parquet
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import Shipped
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.pareto import NO_BOUNDS
from conv_advisor.models.tree.file import TreeModel
from tests.app.killable import Life, fork_server
from tests.app.serving import FAST, GPU, LEAN, SLOW, SMALL, keep_tree, recording, small_tree
from tests.data import arrow
from tests.databases import new_postgresql
from tests.processes import eventually, free_port, slowness_meanwhile

LAYERS = ["8-2-3-6-4", "14-1-3-256-128", "7-1-1-32-832", "28-64-3-64-64", "56-128-1-64-256"]
TREES = [
    small_tree({FAST: 0.01, SLOW: 0.02, LEAN: 0.03}),
    small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01}),
    small_tree({FAST: 0.02, SLOW: 0.01, LEAN: 0.04}),
]
SWAPS = 6
WITHIN_S = 2.0
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A client that makes one of its own reads every certificate of the host."""


def expected(tree: TreeModel) -> dict[str, Any]:
    """What the tree answers to each layer by path, computed here."""
    advisor, limits = Advisor(tree), Limits(GPU.id, DEFAULT_WORKSPACE_LIMIT_BYTES, is_deterministic=False)
    nothing = Recall(Records(None, Shipped(Path("nowhere"))))
    found: dict[str, Any] = {"/v1/advice": {}, "/v1/pareto": {}}
    for layer in LAYERS:
        advice = advisor.advise(ConvProblem.parse(layer), max_workspace_bytes=limits.max_workspace_bytes)
        pareto = pareto_answer(*weighed(nothing, advisor, advice, limits, NO_BOUNDS))
        found["/v1/advice"][layer] = json.loads(advice_json(advice))
        found["/v1/pareto"][layer] = json.loads(json.dumps(pareto))
    return found


@dataclass
class Listener:
    """Asks a server without pause, in turns for one layer and for all of them, and compares every answer whole."""

    http: httpx.Client
    answers: dict[str, dict[str, Any]]
    seen: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopping.is_set():
            for layer in LAYERS:
                for path in ("/v1/advice", "/v1/pareto"):
                    answer = self.http.get(path, params={"layer": layer, "device": GPU.id}).json()
                    self._note(answer["model"], answer == self.answers[answer["model"]][path][layer], answer)
            body = {"layers": LAYERS, "device": GPU.id, "ranking": True}
            listed = self.http.post("/v1/advice", json=body).json()
            same = self.answers[listed["model"]]["/v1/advice"]
            pairs = zip(LAYERS, listed["advice"], strict=True)
            is_one = all(each | same[layer] == each for layer, each in pairs)
            self._note(listed["model"], is_one, listed)

    def _note(self, model_id: str, is_right: bool, answer: Any) -> None:
        self.seen.append((time.monotonic(), model_id))
        if not is_right:
            self.wrong.append(answer)

    def wait_for(self, model_id: str, since_s: float) -> float:
        """How long after that time the first answer of a tree came."""
        found: list[float] = []
        assert eventually(lambda: found.extend(self._first(model_id, since_s)) or found), model_id
        return found[0]

    def _first(self, model_id: str, since_s: float) -> list[float]:
        return [at_s - since_s for at_s, seen in self.seen[-1000:] if at_s >= since_s and seen == model_id][:1]


@contextmanager
def listening(http: httpx.Client, answers: dict[str, dict[str, Any]], n_threads: int = 3) -> Iterator[list[Listener]]:
    listeners = [Listener(http, answers) for _ in range(n_threads)]
    threads = [threading.Thread(target=each.run) for each in listeners]
    for thread in threads:
        thread.start()
    try:
        yield listeners
    finally:
        for each in listeners:
            each.stopping.set()
        for thread in threads:
            thread.join()


@pytest.fixture(params=["sqlite", "sqlite, one home", "postgresql"])
def two_servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of two servers on one database, in which all `TREES` are, the first of them in charge.

    The home of the second server has none of them, unless it is that of the first.
    """
    homes = [tmp_path / "one", tmp_path / ("one" if "one home" in request.param else "two")]
    homes[1].mkdir(exist_ok=True)
    for tree in TREES[::-1]:
        keep_tree(homes[0], tree)
    parquet.write(arrow.measurements_to_table(recording(SMALL)), tmp_path / "recording.parquet")
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/store.db"
        if request.param == "postgresql":
            url = stack.enter_context(new_postgresql())
        clients = []
        for place, home in enumerate(homes):
            starter = stack.enter_context(fork_server(tmp_path / f"server-{place}.log"))
            port = free_port()
            options = {"home": str(home), "url": url, "port": port, "recording": str(tmp_path / "recording.parquet")}
            stack.callback(Life(starter, **options).end)
            http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300, verify=NO_TLS))
            assert eventually(lambda http=http: is_ready(http)), f"server {place} does not start"
            clients.append(http)
        yield clients[0], clients[1]


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/v1/advice", params={"layer": LAYERS[0], "device": GPU.id}).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_servers_change_to_a_new_tree_together_and_never_mix_two(
    two_servers: tuple[httpx.Client, httpx.Client], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = two_servers
    answers = {tree.id: expected(tree) for tree in TREES}
    took_s, n_answers = [], 0
    slowest = 1.0
    for promoter, listened in ((one, other), (other, one)):
        with slowness_meanwhile() as slowed, listening(listened, answers) as listeners:
            assert eventually(lambda listeners=listeners: all(each.seen for each in listeners))
            for swap in range(SWAPS):
                tree = TREES[(swap + 1) % len(TREES)]
                put = promoter.put("/v1/models/active", json={"device": GPU.id, "model": tree.id})
                assert put.status_code == 200, put.text
                acknowledged = time.monotonic()
                took_s.append(max(each.wait_for(tree.id, acknowledged) for each in listeners))
        slowest = max(slowest, slowed.most)
        for each in listeners:
            assert each.wrong == [], "an answer that no tree gives"
            changes = [
                model for (_, before), (_, model) in zip(each.seen, each.seen[1:], strict=False) if before != model
            ]
            assert len(changes) == SWAPS, "changed once a swap, and not back"
            n_answers += len(each.seen)
    with capsys.disabled():
        sys.stdout.write(f"\n{n_answers} answers, {len(took_s)} swaps seen after {max(took_s):.2f} s at most\n")
    assert max(took_s) < WITHIN_S * slowest


@pytest.mark.slow
def test_a_job_of_one_server_is_cancelled_and_followed_by_way_of_the_other(
    two_servers: tuple[httpx.Client, httpx.Client],
) -> None:
    one, other = two_servers
    job = one.post("/v1/jobs", json={"kind": "measure", "layers": ["8-2-3-6-4"], "device": "nvidia-h200"}).json()
    with other.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: job"
        assert one.delete(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"
        assert next(line for line in lines if line.startswith("event:")) == "event: end"
        assert not [line for line in lines if line.startswith("event:")], "and the stream ended"
