"""Answers that are kept: right for as long as they are given, and bounded."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conv_advisor.app.service import recall as recall_module
from conv_advisor.app.service.kept import Answer, Answers, Parts
from conv_advisor.app.service.recall import ASK_AGAIN_S, Recall
from conv_advisor.app.service.service import PROMOTED_S
from conv_advisor.data.measurement import Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from tests.app.serving import FAST, GPU, LEAN, SLOW, Client, keep_tree, serving, small_tree

PROBLEM = ConvProblem.parse("21-2-3-6-4")
OTHER_TREE = small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01})


def timed(problem: ConvProblem, variant: str = SLOW, ms: float = 0.001) -> Measurement:
    return Measurement(problem, variant, GPU, Outcome.MEASURED, "", (ms, ms, ms), 0, 1e-7)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path) as client:
        yield client


def ask(client: Client, problem: ConvProblem = PROBLEM) -> tuple[str, str]:
    """The best variant and where its time comes from, asked singly and in a list."""
    answer = client.get(f"/v1/advice?layer={problem.short}&device=fake-gpu").json()
    listed = client.post("/v1/advice", json={"layers": [problem.short], "device": "fake-gpu"}).json()
    (best,) = listed["advice"]
    assert (best["variant"], best["source"], best["time_ms"]) == (
        answer["variant"],
        answer["source"],
        answer["time_ms"],
    )
    assert listed["model"] == answer["model"]
    return answer["variant"], answer["source"]


def test_an_answer_is_kept_until_what_it_was_made_from_changes() -> None:
    answers = Answers(1000)
    assert answers.get(b"layer", lambda _: 1) is None
    answers.put(b"layer", "gpu", 1, Answer.of(b"one"))
    asked_for: list[str | None] = []
    assert answers.get(b"layer", lambda device_id: asked_for.append(device_id) or 1) == Answer.of(b"one")
    assert asked_for == ["gpu"]
    assert answers.get(b"layer", lambda _: 2) is None
    answers.put(b"layer", "gpu", 2, Answer.of(b"two"))
    assert answers.get(b"layer", lambda _: 2) == Answer.of(b"two")
    assert (answers.hits, answers.misses) == (2, 2)


def test_answers_are_bounded_by_their_bytes_and_the_oldest_go_first() -> None:
    answers = Answers(3 * 1800)
    for name in (b"a", b"b", b"c"):
        answers.put(name, None, 0, Answer.of(bytes(1000)))
    assert answers.get(b"a", lambda _: 0)
    answers.put(b"d", None, 0, Answer.of(bytes(1000)))
    assert [name for name in (b"a", b"b", b"c", b"d") if answers.get(name, lambda _: 0)] == [b"a", b"c", b"d"]
    answers.put(b"d", None, 0, Answer.of(bytes(2000)))
    assert [name for name in (b"a", b"b", b"c", b"d") if answers.get(name, lambda _: 0)] == [b"c", b"d"]
    answers.put(b"e", None, 0, Answer.of(bytes(3 * 1800)))
    kept = [name for name in (b"a", b"b", b"c", b"d", b"e") if answers.get(name, lambda _: 0)]
    assert kept == [b"c", b"d"], "what is more than may be kept drives nothing else out"


def test_kept_answers_take_no_more_than_they_are_counted_as() -> None:
    most_bytes, basis = 4 * 2**20, object()
    tracemalloc.start()
    try:
        answers = Answers(most_bytes)
        for number in range(20_000):
            answers.put(b"layer=%d-1-3-256-128&device=gpu" % number, "gpu", basis, Answer.of(bytes(100)))
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes / 2 < taken_bytes < most_bytes


def test_long_questions_count_as_much_as_long_answers() -> None:
    answers, questions = Answers(100_000), [b"%05d" % number + bytes(995) for number in range(1000)]
    for question in questions:
        answers.put(question, None, 0, Answer.of(b"short"))
    kept = sum(answers.get(question, lambda _: 0) is not None for question in questions)
    assert 50 < kept < 100


def test_parts_belong_to_what_was_asked_and_are_bounded() -> None:
    parts = Parts(3)
    parts.of("x", 1)["layer"] = b"1"
    assert parts.of("x", 1) == {"layer": b"1"}
    assert parts.of("x", 2) == {}
    assert parts.of("y", 2) == {}
    kept = parts.of("x", 3)
    kept |= dict.fromkeys("abc", b"")
    assert parts.of("x", 3) == {}


def test_a_measurement_counts_in_the_next_answer_whoever_adds_it(client: Client) -> None:
    assert ask(client) == ask(client) == (FAST, "predicted")
    client.app.state.service.store.append([timed(PROBLEM), timed(PROBLEM, FAST, 0.09)])
    assert ask(client) == ask(client) == (SLOW, "measured")
    with Store(client.app.state.service.settings.store_url) as elsewhere:
        elsewhere.append([timed(PROBLEM, LEAN, 0.0001)])
    time.sleep(1.1 * ASK_AGAIN_S)
    assert ask(client) == (LEAN, "measured")


def test_a_tree_counts_in_the_next_answer_whoever_puts_it_in_charge(client: Client, tmp_path: Path) -> None:
    registry = client.app.state.service.registry
    first, second = registry.active("fake-gpu").id, registry.add(OTHER_TREE)
    for _ in range(3):
        assert ask(client) == (FAST, "predicted")
        registry.activate("fake-gpu", second)
        assert ask(client) == (LEAN, "predicted")
        registry.activate("fake-gpu", first)
    assert ask(client) == (FAST, "predicted")
    keep_tree(tmp_path, OTHER_TREE)
    time.sleep(2 * PROMOTED_S)
    assert ask(client) == (LEAN, "predicted")
    Registry(tmp_path).activate("fake-gpu", first)
    time.sleep(2 * PROMOTED_S)
    assert ask(client) == (FAST, "predicted")


def test_equal_questions_are_answered_from_what_is_kept_and_others_are_not(client: Client) -> None:
    kept = client.app.state.service.answers
    url = "/v1/advice?layer=22-2-3-6-4&device=fake-gpu"
    first = client.get(url)
    misses = kept.misses
    assert client.get(url).content == first.content
    assert (kept.hits, kept.misses) == (1, misses)
    narrow = client.get(url + "&max_workspace_bytes=0")
    assert kept.misses == misses + 1
    assert len(narrow.json()["ranking"]) < len(first.json()["ranking"])


def test_lists_are_kept_by_everything_that_they_ask_for(client: Client) -> None:
    layer = "22-2-3-6-4"
    asked = {"layers": [layer, {"layer": layer, "dtype": "float16"}, layer], "device": "fake-gpu"}
    first = client.post("/v1/advice", json=asked).json()
    assert client.post("/v1/advice", json=asked).json() == first
    assert client.app.state.service.parts.hits >= 3
    assert [each["index"] for each in first["advice"]] == [0, 1, 2]
    narrow = client.post("/v1/advice", json=asked | {"max_workspace_bytes": 0}).json()
    best = {
        choice["variant"]: choice
        for choice in client.get(f"/v1/advice?layer={layer}&device=fake-gpu").json()["ranking"]
    }
    assert best[narrow["advice"][0]["variant"]]["workspace_bytes"] in (0, None)


def test_layers_that_were_never_measured_are_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.append([timed(PROBLEM)])
        recall, asked = Recall(Records(store)), []
        attempts = store.attempts
        monkeypatch.setattr(store, "attempts", lambda keys, device: asked.extend(keys) or attempts(keys, device))
        other = replace(PROBLEM, n=3)
        assert set(recall.summaries([PROBLEM, other], "fake-gpu")) == {PROBLEM.key}
        assert recall.summaries([other], "fake-gpu") == {}
        assert asked == [PROBLEM.key]
        store.append([timed(other)])
        assert set(recall.summaries([PROBLEM, other], "fake-gpu")) == {PROBLEM.key, other.key}
        monkeypatch.setattr(recall_module, "monotonic", lambda: 1e9)
        assert set(recall.summaries([other], "fake-gpu")) == {other.key}


def test_what_was_picked_is_known_at_once(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        recall = Recall(Records(store))
        assert recall.picked(PROBLEM, "fake-gpu") == {}
        store.append([], [Pick(PROBLEM, GPU, "cudnn.heuristic_v7", "cudnn.gemm", {})])
        assert recall.version("fake-gpu") == 1
        assert recall.picked(PROBLEM, "fake-gpu") == {"cudnn.heuristic_v7": "cudnn.gemm"}


def test_the_version_of_a_device_grows_with_its_rows_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with Store(url) as store, Store(url) as elsewhere:
        assert store.version("fake-gpu") == 0
        store.append([timed(PROBLEM)])
        first = store.version("fake-gpu")
        elsewhere.append([timed(PROBLEM), timed(replace(PROBLEM, n=5))])
        second = store.version("fake-gpu")
        assert 0 < first < second
        other = replace(timed(PROBLEM), device=replace(GPU, id="other-gpu"))
        store.append([other])
        assert store.version("fake-gpu") == second == elsewhere.version("fake-gpu")
        assert store.version("other-gpu") == 1
        assert (store.writes, elsewhere.writes) == (2, 1)
