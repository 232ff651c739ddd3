"""Weights that batch norms went into: they follow their sources, in a call that may run its graph twice."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.graph.refreshing import Folded, _all_foldings  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.nodes import writes_into_inputs  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import Residual, every_kind, resnet, settle  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


def change_weights(network: nn.Module, change: str) -> None:
    stem, other = network[0], settle(resnet(), ())
    if change in ("load_state_dict", "assign"):
        network.load_state_dict(other.state_dict(), assign=change == "assign")
    elif change == "in place":
        stem[0].weight.mul_(2)
    elif change == "another parameter":
        stem[0].weight = nn.Parameter(stem[0].weight * 2)
    elif change == "data":
        stem[0].weight.data = stem[0].weight.data * 2
    else:
        stem[1].running_mean.add_(1)


class Doubling(nn.Module):
    """Its graph writes into its input, and must not run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = copy.deepcopy(NETWORKS["resnet"][0])

    def __getitem__(self, index: int) -> nn.Module:
        return self.inner[index]

    def forward(self, x: Any) -> Any:
        x.mul_(2)
        return self.inner(x)


@pytest.mark.parametrize("kind", ["reading", "writing"])
@pytest.mark.parametrize("change", ["load_state_dict", "in place", "assign", "another parameter", "data", "running"])
def test_folded_weights_follow_their_sources(change: str, kind: str, chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["resnet"][0]) if kind == "reading" else Doubling()
    x = random(2, 3, 33, 32)
    with torch.no_grad():
        call = compiled(network)
        call(x.clone())
        graphs = chooser.graphs
        change_weights(network if kind == "reading" else network.inner, change)
        first, second = x.clone(), x.clone()
        assert_near(call(first), network(second))
        assert torch.equal(first, second)
        assert graphs == 1


def test_weights_that_are_not_watched_need_refresh(chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["resnet"][0])
    x = random(2, 3, 33, 32)
    with torch.no_grad():
        call = compiled(network, options={"watch": False})
        before = call(x)
        change_weights(network, "in place")
        assert torch.equal(call(x), before)
        conv_advisor.torch.refresh()
        assert_near(call(x), network(x))
        change_weights(network, "data")  # that they lie elsewhere is seen even so
        assert_near(call(x), network(x))


def train(network: nn.Module, call: Any, x: Any) -> None:
    """Let a network see images in training, and return to evaluation."""
    network.train()
    for _ in range(5):
        call(x * 3 + 1)
    network.eval()


@pytest.mark.parametrize("by", ["eager", "compiled"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_of_training_are_noticed(
    by: str, mode: Any, momentum: float | None, chooser: EverythingAdvised, quick: Any
) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU()).eval()
    x = random(2, 3, 8, 8)
    call = compiled(network)
    with mode():
        assert_near(call(x), network(x))
        for _ in range(2):
            train(network, network if by == "eager" else call, x)
            assert_near(call(x), network(x))


def test_blocks_that_share_a_graph_notice_training_of_their_own(chooser: EverythingAdvised, quick: Any) -> None:
    network = nn.Sequential(*(settle(Residual(8, 8), ()) for _ in range(3)))
    expected, x = copy.deepcopy(network), random(2, 8, 6, 6)
    for block in network:
        block.compile(backend=conv_advisor.torch.backend)
    with torch.no_grad():
        for place in (0, 1, 2, 1):
            for model in (network, expected):
                train(model[place], model[place].forward, x)
            for _ in range(2):
                assert_near(network(x), expected(x))
    assert chooser.graphs == 1


def test_norms_of_a_replaced_module_are_noticed(chooser: EverythingAdvised, quick: Any) -> None:
    network, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval(), random(2, 3, 8, 8)
    call = compiled(network)
    with torch.no_grad():
        assert_near(call(x), network(x))
        network.load_state_dict(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).state_dict(), assign=True)
        assert_near(call(x), network(x))
        train(network, network, x)
        assert_near(call(x), network(x))
    assert chooser.graphs == 1


def test_norms_that_do_not_count_batches_need_refresh(chooser: EverythingAdvised, quick: Any) -> None:
    network, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval(), random(2, 3, 8, 8)
    network[1].num_batches_tracked = None
    call = compiled(network)
    with torch.no_grad():
        before = call(x)
        train(network, network, x)
        assert torch.equal(call(x), before)
        conv_advisor.torch.refresh()
        assert_near(call(x), network(x))


class Writing(nn.Module):
    """Its graph writes into what it is given, and must not run twice."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Any) -> Any:
        return self.block(x.mul_(1))


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("is_writing", [True, False])
def test_blocks_that_share_a_graph_keep_weights_of_their_own(
    is_watched: bool, is_writing: bool, chooser: EverythingAdvised, quick: Any
) -> None:
    network = nn.Sequential(*(settle(Residual(8, 8), ()) for _ in range(3)))
    if is_writing:
        network = nn.Sequential(*map(Writing, network)).eval()
    expected, x = copy.deepcopy(network), random(2, 8, 6, 6)
    for block in network:
        block.compile(backend=conv_advisor.torch.backend, options={"watch": is_watched})
    with torch.no_grad():
        for factor in (1, 1, 2, 1):
            for model in (network, expected):
                model[1].load_state_dict({key: factor * value for key, value in model[1].state_dict().items()})
            if not is_watched:
                conv_advisor.torch.refresh()
            for _ in range(2):
                assert_near(network(x.clone()), expected(x.clone()))
    assert chooser.graphs == 1


def test_a_block_in_its_turn_is_not_folded_anew(
    chooser: EverythingAdvised, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = nn.Sequential(*(settle(Residual(8, 8), ()) for _ in range(3))), random(2, 8, 6, 6)
    before = set(_all_foldings)
    fold, folds = Folded.fold, list[Folded]()
    monkeypatch.setattr(Folded, "fold", lambda self, inputs: (folds.append(self), fold(self, inputs)))
    for block in network:
        block.compile(backend=conv_advisor.torch.backend)
    with torch.no_grad():
        network(x)
        assert len(folds) == 3 * 2
        (foldings,) = set(_all_foldings) - before
        assert len(foldings._instances) == 3
        network(x)
        network[1].bn1.running_mean.add_(1)
        network(x)
        assert len(folds) == 4 * 2


def test_weights_that_were_replaced_are_not_kept(chooser: EverythingAdvised, quick: Any) -> None:
    network, x = copy.deepcopy(NETWORKS["resnet"][0]), random(2, 3, 33, 32)
    before = set(_all_foldings)
    with torch.no_grad():
        call = compiled(network)
        for change in ("another parameter", "assign", "data", "in place"):
            call(x)
            change_weights(network, change)
        assert_near(call(x), network(x))
    (foldings,) = set(_all_foldings) - before
    assert foldings._instances == {}


def test_two_threads_that_meet_changed_weights_both_have_the_new_ones(chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["resnet"][0])
    x = random(2, 3, 33, 32)

    def call_without_gradients(_: int) -> Any:
        with torch.no_grad():
            return call(x)

    call = compiled(network)
    call_without_gradients(0)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            with torch.no_grad():
                network[0][0].weight.mul_(1.5)
                expected = network(x)
            for y in pool.map(call_without_gradients, range(8)):
                assert_near(y, expected)


def test_a_change_that_pytorch_does_not_count_needs_refresh(chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["resnet"][0])
    x = random(2, 3, 33, 32)
    with torch.no_grad():
        call = compiled(network)
        call(x)
        network[0][0].weight.data.mul_(2)
        conv_advisor.torch.refresh()
        assert_near(call(x), network(x))


@pytest.mark.parametrize(
    ("write", "writes"),
    [
        (torch.relu, False),
        (lambda x: torch.relu(x).mul_(2).view(-1).add_(1), False),
        (lambda x: torch.cat([x, x], 1).transpose(2, 3)[0].relu_(), False),
        (lambda x: torch.split(x + 1, 1, 1)[1].add_(1), False),
        (lambda x: x.mul_(2), True),
        (lambda x: x.view(-1)[3:].mul_(2), True),
        (lambda x: torch.nn.functional.relu(x.permute(3, 2, 1, 0), inplace=True), True),
        (lambda x: torch.split(x, 1, 1)[1].add_(1), True),
        (lambda x: torch.add(x + 1, 1, out=x), True),
    ],
)
def test_what_a_graph_writes_into_is_told_by_its_memory(write: Any, writes: bool) -> None:
    graphs: list[Any] = []

    def keep(gm: Any, _inputs: Any) -> Any:
        graphs.append(gm.graph)
        return gm.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(write, backend=keep)(random(1, 2, 3, 4))
    assert [writes_into_inputs(graph) for graph in graphs] == [writes]
