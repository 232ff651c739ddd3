"""An answer is of one tree: another may take over at any moment, here at every single look at which is in charge."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from conv_advisor.models.tree.file import TreeModel
from tests.app.serving import FAST, GPU, LEAN, SLOW, TIMES_MS, Client, serving, small_tree
from tests.processes import eventually

TREES = (small_tree(TIMES_MS), small_tree({FAST: 0.03, SLOW: 0.02, LEAN: 0.01}))
PATHS = (
    "/v1/advice",
    "/v1/explanations",
    "/v1/landscapes",
    "/v1/pareto",
    "/v1/neighbours",
    "/v1/snippets",
    "/",
    "/map",
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home")) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200), "or a page says that the worker starts"
        yield client


def put_in_charge(client: Client, patch: pytest.MonkeyPatch, *trees: TreeModel) -> None:
    """These by turns, a look each."""
    turns = itertools.cycle(trees)
    patch.setattr(client.app.state.service.registry, "active", lambda device_id: next(turns))


@pytest.mark.parametrize("path", PATHS)
def test_trees_that_take_turns_are_never_mixed(client: Client, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    asked = f"{path}?layer=28-8-3-64-32&device={GPU.id}"
    whole = []
    for tree in TREES:
        put_in_charge(client, monkeypatch, tree)
        whole.append(client.get(asked).text)
    assert whole[0] != whole[1]
    for first in (0, 1):  # an answer may take an odd number of looks, or an even one
        put_in_charge(client, monkeypatch, *TREES[first:], *TREES[:first])
        for _ in range(3):
            assert client.get(asked).text in whole


def test_a_list_of_layers_is_of_one_tree(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"layers": ["28-8-3-64-32", "14-1-3-256-128"], "device": GPU.id, "ranking": True}
    whole = []
    for tree in TREES:
        put_in_charge(client, monkeypatch, tree)
        whole.append(client.post("/v1/advice", json=asked).json())
    put_in_charge(client, monkeypatch, *TREES)
    for _ in range(3):
        assert client.post("/v1/advice", json=asked).json() in whole
