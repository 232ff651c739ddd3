"""Weights and biases that a graph computes from parameters alone are computed once, and again after a change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch
from torch.nn import functional  # noqa: E402 - it needs PyTorch
from torch.nn.utils import parametrizations, prune  # noqa: E402 - it needs PyTorch

from conv_advisor.data.problem import Layout  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, in_float64, kinds, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


class Computed(nn.Conv2d):
    """A convolution whose weight a function computes from its parameters, and its bias if it likes."""

    def __init__(self, compute: Callable[[Computed], Any], **geometry: Any) -> None:
        super().__init__(4, 8, 3, padding=1, **geometry)
        self.gain = nn.Parameter(torch.rand(8, 1, 1, 1) + 0.5)
        self.register_buffer("mask", (torch.rand(8, 4 // self.groups, 3, 3) > 0.3).float())
        self.scale, self.compute = 1.7 * self.weight[0].numel() ** -0.5, compute

    def forward(self, x: Any) -> Any:
        computed = self.compute(self)
        weight, bias = computed if isinstance(computed, tuple) else (computed, self.bias)
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


def standardised(net: Computed) -> Any:
    """timm's StdConv2d."""
    flat = net.weight.reshape(1, net.out_channels, -1)
    return functional.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6).reshape_as(net.weight)


def scaled_and_standardised(net: Computed) -> Any:
    """timm's ScaledStdConv2d."""
    flat, gain = net.weight.reshape(1, net.out_channels, -1), (net.gain * net.scale).view(-1)
    norm = functional.batch_norm(flat, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
    return norm.reshape_as(net.weight)


def standardised_by_hand(net: Computed) -> Any:
    """Big Transfer's StdConv2d."""
    variance, mean = torch.var_mean(net.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
    return (net.weight - mean) / torch.sqrt(variance + 1e-10)


WEIGHTS: dict[str, Callable[[Computed], Any]] = {
    "standardised": standardised,
    "scaled and standardised": scaled_and_standardised,
    "standardised by hand": standardised_by_hand,
    "multiplied": lambda net: net.weight * net.gain * 0.5,
    "masked": lambda net: net.weight * net.mask,
    "flipped and averaged": lambda net: (net.weight + net.weight.flip(3)) / 2,
    "normalised": lambda net: functional.normalize(net.weight, dim=1) * net.gain,
    "bias too": lambda net: (net.weight * net.gain, net.bias * net.gain.flatten()),
    "bias alone": lambda net: (net.weight, net.bias * net.gain.flatten()),
}


def named(name: str, **geometry: Any) -> nn.Module:
    """A network with one such weight, a batch norm and an activation."""
    torch.manual_seed(0)
    return nn.Sequential(Computed(WEIGHTS[name], **geometry), nn.BatchNorm2d(8), nn.ReLU()).eval()


def parametrized(how: str) -> nn.Module:
    """A network with a weight as PyTorch parametrizes it."""
    torch.manual_seed(0)
    conv = getattr(parametrizations, how)(nn.Conv2d(4, 8, 3, padding=1))
    return nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU()).eval()


NETWORKS = {name: named(name) for name in WEIGHTS} | {
    "in groups": named("scaled and standardised", groups=2),
    **{how: parametrized(how) for how in ("weight_norm", "spectral_norm")},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", NETWORKS)
def test_they_are_computed_outside_the_graph(
    name: str, layout: Layout, dtype: Any, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = copy.deepcopy(NETWORKS[name]).to(dtype), random(2, 4, 6, 5).to(dtype)
    chooser.takes_endings, chooser.conversion = True, 0.0
    chooser.times_ms = {timed: 0.01 if timed is layout else 1.0 for timed in Layout}
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert [kind for kind in seen if kind not in ("item", "contiguous")] == ["conv2d_ending_v1"]
    assert {problem.layout for problem in chooser.layers} >= {layout}
    assert seen.count("contiguous") == (0 if layout is Layout.NCHW else 2), "x and y, and no weight"
    exact = in_float64(network, x)
    assert float((y - exact).abs().max() / exact.abs().max()) < (2**-20 if dtype is torch.float32 else 2**-9)


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "scaled and standardised"])
def test_a_convolution_alone_has_its_weight_computed_too(
    name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = copy.deepcopy(NETWORKS[name])[0], random(2, 4, 6, 5)
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert [kind for kind in seen if kind != "item"] == ["conv2d_v1", "reshape", "add"]
    with torch.no_grad():
        assert_near(y, network(x))


@pytest.mark.parametrize("change", ["load_state_dict", "in place", "data"])
@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm", "scaled and standardised", "bias too"])
def test_they_follow_their_sources(name: str, change: str, chooser: EverythingAdvised, quick: Any) -> None:
    network, x = copy.deepcopy(NETWORKS[name]), random(2, 4, 6, 5)
    with torch.no_grad():
        call = compiled(network)
        assert_near(call(x), network(x))
        if change == "load_state_dict":
            network.load_state_dict({key: value + 0.3 for key, value in network.state_dict().items()})
        else:
            for parameter in network[0].parameters():
                if change == "data":
                    parameter.data = parameter.data + 0.3
                else:
                    parameter.add_(0.3)
        assert_near(call(x), network(x), tolerance=1e-4)
    assert chooser.graphs == 1


def test_weights_that_are_not_watched_need_refresh(chooser: EverythingAdvised, quick: Any) -> None:
    from conv_advisor.torch import refresh

    network, x = copy.deepcopy(NETWORKS["weight_norm"]), random(2, 4, 6, 5)
    with torch.no_grad():
        call = compiled(network, options={"watch": False})
        before = call(x)
        network[0].parametrizations.weight.original0.mul_(2)
        assert torch.equal(call(x), before)
        refresh()
        assert_near(call(x), network(x))


def test_one_weight_in_two_convolutions_is_each_ones_own(chooser: EverythingAdvised, quick: Any) -> None:
    conv = Computed(WEIGHTS["multiplied"]).eval()
    norms = [nn.BatchNorm2d(8).eval() for _ in range(2)]
    norms[1].running_mean.add_(1)

    def network(x: Any) -> Any:
        weight = conv.compute(conv)
        return [norm(functional.conv2d(x + shift, weight)) for shift, norm in enumerate(norms)]

    x = random(2, 4, 6, 5)
    with torch.no_grad():
        for ours, expected in zip(compiled(network)(x), network(x), strict=True):
            assert_near(ours, expected)


def test_a_weight_that_its_module_keeps_is_computed_for_it_alone(
    chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = nn.Conv2d(4, 8, 3, padding=1)
    prune.random_unstructured(conv, "weight", 0.5)
    network, x = nn.Sequential(conv, nn.BatchNorm2d(8)).eval(), random(2, 4, 6, 5)
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert seen.count("mul") == 1, "it sets an attribute"
    assert "batch_norm" not in seen
    with torch.no_grad():
        assert_near(y, network(x))


def noisy(net: Computed) -> Any:
    return net.weight + 0.0 * torch.rand_like(net.weight)


def written(net: Computed) -> Any:
    weight = net.weight * net.gain
    net.gain.mul_(1.5)
    return weight


def written_itself(net: Computed) -> Any:
    return (net.weight * net.gain).mul_(2)


LEFT: dict[str, Callable[[Computed], Any]] = {
    "random": noisy,
    "dropped": lambda net: functional.dropout(net.weight, 0.5, training=True) * 0.0,
    "of a source that is written": written,
    "written in place": written_itself,
    "rounded to float8 and back": lambda net: net.weight.to(torch.float8_e4m3fn).float() * net.gain,
    "of integers": lambda net: net.weight * (net.mask.to(torch.int32) + 1),
}


@pytest.mark.parametrize("name", LEFT)
def test_all_else_is_computed_by_each_call(
    name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(Computed(LEFT[name]), nn.BatchNorm2d(8)).eval(), random(2, 4, 6, 5)
    expected = copy.deepcopy(network)
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert {"add", "mul"} & set(seen[: seen.index("conv2d_v1")])
    assert "batch_norm" in seen
    with torch.no_grad():
        assert_near(y, expected(x))
    assert torch.equal(network[0].gain, expected[0].gain)


class Shared(nn.Module):
    """A convolution whose weight, and the scale of whose batch norm, can be reached by other tensors too."""

    def __init__(self, reach: str, *, is_written: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        other = {
            "the weight": self.conv.weight.detach(),
            "a part of the weight": self.conv.weight.detach()[2:5],
            "the weight's data": self.conv.weight.data.view(-1),
            "the scale": self.norm.weight.detach()[:4],
        }[reach]
        self.register_buffer("other", other)
        self.is_written = is_written

    def forward(self, x: Any) -> Any:
        if self.is_written:
            self.other.mul_(1.5)
        return self.norm(self.conv(x)) + self.other.sum()


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("reach", ["the weight", "a part of the weight", "the weight's data", "the scale"])
def test_what_a_graph_writes_into_by_another_name_is_not_folded(
    reach: str, is_written: bool, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it only reads by another name is."""
    torch.manual_seed(0)
    x = random(2, 4, 6, 5)
    network, expected = (Shared(reach, is_written=is_written).eval() for _ in range(2))
    expected.conv.weight.data.copy_(network.conv.weight)
    expected.conv.bias.data.copy_(network.conv.bias)
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert ("batch_norm" in seen) is is_written
    with torch.no_grad():
        assert_near(y, expected(x))


def test_an_exported_model_has_its_weights_computed_too(
    chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = copy.deepcopy(NETWORKS["scaled and standardised"]), random(2, 4, 6, 5)
    program = torch.export.export(network, (x,)).module()
    seen, y = kinds(program, x, monkeypatch=monkeypatch)
    assert not {"mul", "batch_norm", "view", "reshape_as"} & set(seen)
    with torch.no_grad():
        assert_near(y, network(x))


def test_under_autocast_they_are_rounded_once(chooser: EverythingAdvised, quick: Any) -> None:
    network, x = copy.deepcopy(NETWORKS["scaled and standardised"]), random(2, 4, 6, 5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert_near(compiled(network)(x), network(x), tolerance=2**-6)
