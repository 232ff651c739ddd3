"""Layouts of a graph's convolutions: whatever is chosen, values and strides are those of eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

from conv_advisor.data.problem import Layout  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import (  # noqa: E402 - it needs PyTorch
    assert_compiled_is_eager,
    assert_near,
    compiled,
    random,
)
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
OTHER = {Layout.NCHW: Layout.NHWC, Layout.NHWC: Layout.NCHW}
pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tensors that graphs lay out anew, and of their readers."""
    from conv_advisor.torch.graph import layouts

    seen: list[str] = []
    insert = layouts._insert_copy

    def watched(gm: Any, read: Any, layout: Layout, *, before: Any) -> Any:
        seen.append(f"{read.name} {layout} {before.name}")
        return insert(gm, read, layout, before=before)

    monkeypatch.setattr(layouts, "_insert_copy", watched)
    return seen


def favour(chooser: EverythingAdvised, layout: Layout) -> None:
    chooser.times_ms = {layout: 0.1, OTHER[layout]: 1.0}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize("takes_endings", [False, True])
def test_all_convolutions_go_where_they_are_fastest(
    name: str, is_channels_last: bool, takes_endings: bool, chooser: EverythingAdvised, quick: Any
) -> None:
    network, shape = NETWORKS[name]
    own_layout = Layout.NHWC if is_channels_last else Layout.NCHW
    favour(chooser, OTHER[own_layout])
    chooser.takes_endings = takes_endings
    assert_compiled_is_eager(network, shape, is_channels_last=is_channels_last)
    stays = {own_layout} if name == "mutating" else set()  # one convolution writes into what another node reads
    assert {problem.layout for problem in chooser.layers} == {OTHER[own_layout]} | stays


class Mixed(EverythingAdvised):
    """A chooser with times by chance, for each problem in each layout."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.takes_endings = seed, bool(seed % 2)

    def predicted_ms(self, problem: Any, options: Any) -> float:
        return Random(f"{self.seed} {problem.key}").choice((0.001, 0.002, 0.01))  # noqa: S311 - repeatable chance

    def choose(self, layers: Any, options: Any) -> Any:
        choices = super().choose(layers, options)
        for problem, choice in choices.items():
            if choice.variant:
                object.__setattr__(choice, "time_ms", self.predicted_ms(problem, options))
        return choices


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(6))
def test_layouts_that_alternate_change_nothing(
    name: str, seed: int, quick: Any, monkeypatch: pytest.MonkeyPatch, copies: list[str]
) -> None:
    chooser = Mixed(seed)
    monkeypatch.setattr(import_module("conv_advisor.torch.backend"), "chooser_for", lambda _inputs: chooser)
    torch.compiler.reset()
    network, shape = NETWORKS[name]
    assert_compiled_is_eager(network, shape, is_channels_last=seed % 3 == 0)
    assert set(chooser.layouts) <= set(Layout)


def test_a_tensor_is_laid_out_anew_where_the_layouts_meet_and_nowhere_else(
    chooser: EverythingAdvised, quick: Any, copies: list[str]
) -> None:
    favour(chooser, Layout.NHWC)
    chooser.takes_endings = True
    network, shape = NETWORKS["resnet"]
    assert_compiled_is_eager(network, shape, is_channels_last=False)
    (first, last) = copies
    assert first.startswith("l_args_0_ nhwc") or " nhwc conv2d" in first
    assert last.endswith(" nchw output")


def test_a_convolution_stays_where_conversions_cost_more(
    chooser: EverythingAdvised, quick: Any, copies: list[str]
) -> None:
    favour(chooser, Layout.NHWC)
    chooser.conversion = 100.0
    network, shape = NETWORKS["squeezenet"]
    assert_compiled_is_eager(network, shape, is_channels_last=False)
    assert copies == []
    assert {problem.layout for problem in chooser.layers} == {Layout.NCHW}


def test_with_layouts_off_the_model_keeps_its_own(chooser: EverythingAdvised, quick: Any) -> None:
    favour(chooser, Layout.NHWC)
    network, shape = NETWORKS["resnet"]
    with torch.no_grad():
        compiled(network, options={"layouts": False})(random(*shape))
    assert {problem.layout for problem in chooser.layers} == {Layout.NCHW}


def _through_a_view(conv: Any, x: Any) -> Any:
    y = conv(x)
    y.view(y.shape[0], -1).mul_(2)
    return torch.relu(y) + 1


def _a_part_of_it(conv: Any, x: Any) -> Any:
    y = conv(x)
    y[:, 2:].add_(1)
    return conv(torch.relu(y))


def _strided(conv: Any, x: Any) -> Any:
    y = conv(x)
    return torch.as_strided(y, (4, 4), (4, 1)) + 1


def _in_place_ahead(conv: Any, x: Any) -> Any:
    y = conv(x)
    z = torch.relu_(y)
    return conv(y) + z


def _input_that_changes(conv: Any, x: Any) -> Any:
    first = conv(x)
    x.mul_(2)
    return conv(x) + first


def _halves(conv: Any, x: Any) -> Any:
    left, right = conv(x).chunk(2, 1)
    return conv(torch.cat([right, left], 1))


def _rows(conv: Any, x: Any) -> Any:
    return conv(conv(x))[:, :, 1]


def _given_out_twice(conv: Any, x: Any) -> Any:
    y = conv(x)
    return torch.cat([y.flatten(1), conv(torch.sigmoid(y)).flatten(1)], 1)


def _a_part_with_no_layout(conv: Any, x: Any) -> Any:
    y = conv(x)
    return y * torch.sigmoid(y.mean((2, 3), keepdim=True)) + y.mean((2, 3)).reshape(y.shape[0], -1, 1, 1)


def _over_channels(conv: Any, x: Any) -> Any:
    y = conv(x)
    return nn.functional.layer_norm(y.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2) + conv(y)


TRAPS: dict[str, Callable[..., Any]] = {
    function.__name__.strip("_"): function
    for function in (
        *(_through_a_view, _a_part_of_it, _strided, _in_place_ahead, _input_that_changes, _halves, _rows),
        *(_given_out_twice, _a_part_with_no_layout, _over_channels),
    )
}


class Trap(nn.Module):
    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.run = nn.Conv2d(8, 8, 3, padding=1), run

    def forward(self, x: Any) -> Any:
        return self.run(self.conv, x)


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_memory_that_is_shared_or_looked_at_is_as_in_eager_pytorch(
    name: str, is_channels_last: bool, chooser: EverythingAdvised, quick: Any
) -> None:
    if is_channels_last and name == "through_a_view":
        pytest.skip("eager PyTorch has no such view")
    favour(chooser, Layout.NCHW if is_channels_last else Layout.NHWC)
    torch.manual_seed(0)
    assert_compiled_is_eager(Trap(TRAPS[name]).eval(), (2, 8, 6, 6), is_channels_last=is_channels_last)
    assert chooser.layers


def test_weights_that_are_laid_out_anew_follow_their_sources(chooser: EverythingAdvised, quick: Any) -> None:
    favour(chooser, Layout.NHWC)
    network, shape = copy.deepcopy(NETWORKS["squeezenet"][0]), NETWORKS["squeezenet"][1]
    x, call = random(*shape), compiled(network)
    with torch.no_grad():
        assert_near(call(x), network(x))
        network.load_state_dict({name: 2 * value for name, value in network.state_dict().items()})
        assert_near(call(x), network(x))
        network[0].weight.mul_(0.5)
        assert_near(call(x), network(x))


def test_weights_that_the_graph_computes_of_its_input_stay_in_their_layout(
    chooser: EverythingAdvised, quick: Any
) -> None:
    favour(chooser, Layout.NHWC)
    conv = nn.Conv2d(8, 8, 3).eval()

    def network(x: Any) -> Any:
        return torch.conv2d(x, conv.weight * x.mean(), conv.bias)

    x = random(2, 8, 6, 6)
    with torch.no_grad():
        assert_near(compiled(network)(x), network(x))
    assert {problem.layout for problem in chooser.layers} == {Layout.NCHW}


def test_a_graph_of_any_batch_is_right_for_each(chooser: EverythingAdvised, quick: Any) -> None:
    favour(chooser, Layout.NHWC)
    network, shape = NETWORKS["resnet"]
    call = compiled(network, dynamic=True)
    with torch.no_grad():
        for batch in (3, 5, 2):
            x = random(batch, *shape[1:])
            assert_near(call(x), network(x))
    assert Layout.NHWC in {problem.layout for problem in chooser.layers}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "squeezenet", "mobilenet"])
def test_inductor_keeps_the_layouts(name: str, chooser: EverythingAdvised) -> None:
    favour(chooser, Layout.NHWC)
    chooser.takes_endings = True
    assert_compiled_is_eager(*NETWORKS[name], is_channels_last=False)
    assert {problem.layout for problem in chooser.layers} == {Layout.NHWC}
