"""What scales and shifts a convolution's channels by constants goes into its weight and bias."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.graph.refreshing import Folded  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, in_float64, kinds, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import FrozenBatchNorm, settle  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]
EPSILON = {torch.float32: 2**-20, torch.float16: 2**-9, torch.bfloat16: 2**-6}
"""How far from float64 a layer may be, relative to its largest output."""


class Followed(nn.Module):
    """A convolution, what a function makes of its output with constants, and an activation."""

    def __init__(self, follow: Callable[[Any, Any], Any], bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 8, 3, padding=1, bias=bias)
        self.factor, self.shift = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.randn(8))
        self.register_buffer("one", torch.rand(1) + 0.5)
        self.norm, self.frozen = nn.BatchNorm2d(8), FrozenBatchNorm(8)
        self.late = FrozenBatchNorm(8, is_reshaped_late=True)
        self.number, self.follow = 0.75, follow
        settle(self, ())

    @property
    def factors(self) -> Any:
        """One factor per channel, with the dimensions of an image."""
        return self.factor.reshape(1, -1, 1, 1)

    @property
    def shifts(self) -> Any:
        """One shift per channel, with the dimensions of an image."""
        return self.shift[None, :, None, None]

    def forward(self, x: Any) -> Any:
        return torch.relu(self.follow(self, self.conv(x)))


def write_and_go_on(net: Followed, y: Any) -> Any:
    y.mul_(net.factors)
    y.add_(net.shifts)
    y += 0.25
    return y


def write_into_sum(net: Followed, y: Any) -> Any:
    y *= net.factors
    y += net.shifts
    return y


FOLDED: dict[str, Callable[[Any, Any], Any]] = {
    "frozen batch norm": lambda net, y: net.frozen(y),
    "frozen batch norm, reshaped late": lambda net, y: net.late(y),
    "layer scale": lambda net, y: y * net.factors,
    "layer scale, the factor first": lambda net, y: torch.mul(net.factors, y),
    "shift alone": lambda net, y: net.shifts + y,
    "scale and shift": lambda net, y: torch.add(net.shifts, y.mul(net.factors)),
    "without the batch's dimension": lambda net, y: y * net.factor.view(8, 1, 1) - net.shift.view(-1, 1, 1),
    "one for all channels": lambda net, y: y * net.one + net.one.reshape(1, 1, 1, 1),
    "numbers": lambda net, y: (3 - y / 2) * 0.5 + net.number,
    "divided": lambda net, y: (net.shifts - y) / net.factors.exp(),
    "addcmul": lambda net, y: torch.addcmul(net.shifts, y, net.factors),
    "addcmul, the factor first": lambda net, y: torch.addcmul(net.shifts, net.factors, y),
    "addcmul of constants": lambda net, y: torch.addcmul(y, net.shifts, net.factors, value=1),
    "in place": lambda net, y: y.mul_(net.factors).add_(net.shifts),
    "in place, and the value left": write_and_go_on,
    "augmented": write_into_sum,
    "between batch norms": lambda net, y: net.norm(net.norm(y) * net.factors + 0.5),
    "in steps that are computed": lambda net, y: y * (torch.sigmoid(net.factors) * net.one).sqrt().clamp(min=0.1),
    "of a reduction": lambda net, y: y * (net.factors / net.factors.square().mean((0, 2, 3), keepdim=True).sqrt()),
}


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("name", FOLDED)
def test_they_are_folded(name: str, dtype: Any, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Followed(FOLDED[name]).to(dtype), random(2, 4, 6, 5).to(dtype)
    chooser.takes_endings = True
    seen, y = kinds(network, x.clone(), monkeypatch=monkeypatch)
    assert seen == ["conv2d_ending_v1"]
    exact = in_float64(network, x)
    assert y.dtype == dtype
    assert float((y - exact).abs().max() / exact.abs().max()) < EPSILON[dtype]


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
def test_a_folded_layer_is_no_further_off_than_pytorchs_own(
    dtype: Any, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = Followed(FOLDED["frozen batch norm"]).to(dtype), random(2, 4, 6, 5).to(dtype)
    _, y = kinds(network, x, monkeypatch=monkeypatch)
    exact = in_float64(network, x)
    with torch.no_grad():
        own = network(x)
    assert float((y - exact).abs().mean()) < 1.5 * float((own - exact).abs().mean())


def test_a_scale_alone_adds_no_bias(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Followed(FOLDED["layer scale"], bias=False), random(2, 4, 6, 5)
    chooser.takes_endings = True
    _, y = kinds(network, x, monkeypatch=monkeypatch)
    assert {str(problem.epilogue) for problem in chooser.layers} == {"relu"}
    with torch.no_grad():
        assert_near(y, network(x))


def test_a_graph_of_any_batch_folds_too(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Followed(FOLDED["frozen batch norm"])
    seen, _ = kinds(network, random(3, 4, 6, 5), monkeypatch=monkeypatch)
    call = compiled(network)
    with torch.no_grad():
        for batch in (2, 5, 7):
            x = random(batch, 4, 6, 5)
            assert_near(call(x), network(x))
    assert chooser.graphs == 2, "of the first batch, and then of any"
    assert not {"mul", "rsqrt", "sub"} & set(seen)


def test_a_number_that_changes_from_call_to_call_stays(chooser: EverythingAdvised, quick: Any) -> None:
    network, x = Followed(lambda net, y: y), random(2, 4, 6, 5)

    def scaled(x: Any, factor: float) -> Any:
        return network.conv(x) * factor

    call = compiled(scaled)
    with torch.no_grad():
        for factor in (0.5, 1.5, 2.5, 3.5, 4.5):
            assert_near(call(x, factor), scaled(x, factor))
    assert chooser.graphs == 2, "with the first number, and with any"


def twice(net: Followed, y: Any) -> Any:
    scaled = y * net.factors
    return scaled + y


def read_before(net: Followed, y: Any) -> Any:
    before = y.abs()
    y.mul_(net.factors)
    return before + y


def seen_through_a_view(net: Followed, y: Any) -> Any:
    flat = y.flatten(1)
    scaled = y.mul_(net.factors)
    return scaled + flat.sum()


def write_into_constant(net: Followed, y: Any) -> Any:
    y = y * net.factors
    net.factor.add_(1)
    return y


def write_into_view(net: Followed, y: Any) -> Any:
    net.factors[:, 2:4].mul_(2)
    return y * net.factors


def training_norm(net: Followed, y: Any) -> Any:
    inner = nn.functional.batch_norm(y, net.shift, net.factor, training=True)
    return inner + net.conv(y[:, :4]) * net.factors


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "read by another": twice,
    "read before it is written": read_before,
    "read through a view": seen_through_a_view,
    "a constant that is written": write_into_constant,
    "a constant that is written through a view": write_into_view,
    "statistics that are written": training_norm,
    "a factor per column": lambda net, y: y * net.factor,
    "a factor per pixel": lambda net, y: y + net.factor.view(1, 1, 8, 1),
    "two of them added": lambda net, y: torch.add(y, net.shifts, alpha=2),
    "a divisor": lambda net, y: net.factors / (1 + y.abs()),
    "by itself": lambda net, y: y * y,
    "of the input": lambda net, y: y * y.mean((0, 2, 3), keepdim=True),
    "another precision": lambda net, y: y * net.factors.double(),
    "more dimensions": lambda net, y: y * net.factor.view(1, 1, 8, 1, 1),
    "rounded on the way": lambda net, y: y * net.factors.half().float(),
    "addcmul with another value": lambda net, y: torch.addcmul(net.shifts, y, net.factors, value=2),
    "divided and rounded": lambda net, y: torch.div(y, net.factors, rounding_mode="floor"),
}


@pytest.mark.parametrize("name", LEFT)
def test_all_else_is_left_alone(name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Followed(LEFT[name]), random(2, 4, 8, 8)
    expected = copy.deepcopy(network)
    with torch.no_grad():
        targets: list[int] = []

        def count(gm: Any, _inputs: Any) -> Any:
            targets.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
            return gm.forward

        torch.compile(copy.deepcopy(network), backend=count)(x)
    torch.compiler.reset()
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    n_biases = seen.count("conv2d_v1") * 2  # reshaped, and added
    assert len(seen) - n_biases == targets[0]
    with torch.no_grad():
        assert_near(y, expected(x))
    assert torch.equal(network.factor, expected.factor)


def test_what_is_random_is_computed_by_each_call(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    drop = Followed(lambda net, y: y * nn.functional.dropout(net.factors, 0.5, training=True))
    seen, _ = kinds(drop, random(2, 4, 8, 8), monkeypatch=monkeypatch)
    assert {"dropout", "mul"} <= set(seen)


def test_a_constant_that_others_read_stays_for_them(
    chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = Followed(lambda net, y: torch.relu(y * (scale := net.factors.exp())) * scale), random(2, 4, 8, 8)
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert seen.count("exp") == seen.count("mul") == 1
    with torch.no_grad():
        assert_near(y, network(x))


def test_folding_can_be_left_out(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Followed(FOLDED["frozen batch norm"]), random(2, 4, 8, 8)
    seen, y = kinds(network, x, monkeypatch=monkeypatch, options={"fold": False})
    assert {"mul", "rsqrt"} <= set(seen)
    with torch.no_grad():
        assert_near(y, network(x))


@pytest.mark.parametrize("factor", [1e-7, 1e6])
def test_a_factor_that_float16_cannot_hold_in_a_weight_is_not_folded(
    factor: float, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Followed(lambda net, y: (y * net.factors) * (1 / factor)).half()
    with torch.no_grad():
        network.conv.weight.mul_(1 if factor < 1 else 0.05)
        network.factor.fill_(min(factor, 6e4))
    x = random(2, 4, 8, 8).half()
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    with torch.no_grad():
        assert_near(y, network(x), tolerance=2**-8)
    assert seen.count("mul") == (2 if factor < 1 else 0)


@pytest.mark.parametrize("change", ["load_state_dict", "in place", "another parameter", "data"])
def test_folded_weights_follow_their_sources(change: str, chooser: EverythingAdvised, quick: Any) -> None:
    network, x = Followed(FOLDED["between batch norms"]), random(2, 4, 8, 8)
    with torch.no_grad():
        call = compiled(network)
        assert_near(call(x), network(x))
        if change == "load_state_dict":
            network.load_state_dict({name: value + 0.5 for name, value in network.state_dict().items()})
        elif change == "in place":
            network.factor.mul_(3)
        elif change == "another parameter":
            network.factor = nn.Parameter(network.factor * 3)
        else:
            network.factor.data = network.factor.data * 3
        assert_near(call(x), network(x))
        assert chooser.graphs == 1


def test_blocks_that_share_a_graph_keep_scales_of_their_own(chooser: EverythingAdvised, quick: Any) -> None:
    network = nn.Sequential(nn.Conv2d(8, 4, 1), *(Followed(FOLDED["frozen batch norm"]) for _ in range(2))).eval()
    network.insert(2, nn.Conv2d(8, 4, 1))
    with torch.no_grad():
        network[3].frozen.weight.add_(1)
    expected, x = copy.deepcopy(network), random(2, 8, 6, 6)
    for place in (1, 3):
        network[place].compile(backend=conv_advisor.torch.backend)
    with torch.no_grad():
        for _ in range(3):
            assert_near(network(x), expected(x))
            for model in (network, expected):
                model[3].frozen.running_mean.add_(1)
    assert chooser.graphs == 1


def half_ulps(rounded: Any, exact: Any) -> float:
    """How far numbers are from exact ones, at most, in halves of the distance between their neighbours."""
    info = torch.finfo(rounded.dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.tiny))
    return float(((rounded.double() - exact).abs() / (info.eps / 4 * torch.exp2(exponent.double()))).max())


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
@pytest.mark.parametrize("name", ["norm", "divided"])
def test_weight_and_bias_are_rounded_once(
    name: str, dtype: Any, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Conv2d(16, 256, 3), nn.BatchNorm2d(256)).eval()
    conv, norm = network
    with torch.no_grad():
        for tensor in (norm.weight, norm.running_var):
            tensor.uniform_(0.5, 2)
        for tensor in (norm.bias, norm.running_mean):
            tensor.normal_()
    network.to(dtype)
    if dtype is torch.float16:
        norm.running_var.data = norm.running_var.data.float()
    made: list[Any] = []
    fold = Folded.fold
    monkeypatch.setattr(Folded, "fold", lambda self, inputs: (fold(self, inputs), made.append(self)))
    factor = norm.weight.detach().double()
    followed = network if name == "norm" else Divided(conv, norm.weight)
    kinds(followed, random(1, 16, 5, 5).to(dtype), monkeypatch=monkeypatch)
    (weight, _), (bias, _) = made[-1].made
    if name == "norm":
        factor /= (norm.running_var.double() + norm.eps).sqrt()
        exact_bias = (conv.bias.double() - norm.running_mean.double()) * factor + norm.bias.double()
    else:
        factor = 1 / factor
        exact_bias = conv.bias.double() * factor
    assert weight.dtype == bias.dtype == dtype
    with torch.no_grad():
        assert half_ulps(weight, conv.weight.double() * factor.reshape(-1, 1, 1, 1)) <= 1.001
        assert half_ulps(bias, exact_bias) <= 1.001


class Divided(nn.Module):
    """A convolution whose channels are divided by constants."""

    def __init__(self, conv: nn.Module, divisor: Any) -> None:
        super().__init__()
        self.conv, self.divisor = conv, divisor

    def forward(self, x: Any) -> Any:
        return self.conv(x) / self.divisor.reshape(1, -1, 1, 1)


def error_of(y: Any, exact: Any) -> float:
    """The largest error of a filter's output, relative to the largest of that filter."""
    return float(((y - exact).abs().amax((0, 2, 3)) / exact.abs().amax((0, 2, 3))).max())


@pytest.mark.parametrize("filters", [slice(None), slice(1)], ids=["all", "one"])
@pytest.mark.parametrize("variance", [1e2, 1e6, 1e8])
@pytest.mark.parametrize("by", ["norm under autocast", "norm", "scale"])
def test_weights_that_float16_cannot_hold_are_not_folded(
    by: str, variance: float, filters: slice, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(64, 32, 3), nn.BatchNorm2d(32)).eval()
    conv, norm = network
    with torch.no_grad():
        norm.running_var[filters] = variance
        norm.bias.zero_()
        conv.bias.zero_()
    is_autocast = by == "norm under autocast"
    if not is_autocast:
        conv.half()
    if by == "scale":
        network = Divided(conv, nn.Parameter(norm.running_var.sqrt().half()))
    x = random(2, 64, 6, 6).half() * variance**0.5
    x = x.clamp(-6e3, 6e3)
    autocast = torch.autocast("cpu", torch.float16, enabled=is_autocast)
    with autocast:
        seen, y = kinds(network, x, monkeypatch=monkeypatch)
        with torch.no_grad():
            own = network(x)
    exact = in_float64(network, x)
    assert error_of(y, exact) < 1.3 * error_of(own, exact)
    is_folded = not {"batch_norm", "truediv", "div"} & set(seen)
    assert is_folded == (variance == 1e2)


def test_a_filter_that_hardly_deviates_is_folded(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Conv2d(64, 32, 3), nn.BatchNorm2d(32)).eval().half()
    conv, norm = network
    with torch.no_grad():
        norm.weight[0], conv.weight[0], norm.running_var[0] = 1e-7, 1e-7, 0
        norm.weight[1], norm.bias[1] = 1e-4, 0.5
    x = random(2, 64, 6, 6).half()
    seen, y = kinds(network, x, monkeypatch=monkeypatch)
    assert "batch_norm" not in seen
    exact = in_float64(network, x)
    with torch.no_grad():
        own = network(x)
    for place in (0, 1):
        assert float((y - exact)[:, place].abs().max()) <= 2 * float((own - exact)[:, place].abs().max()) + 2**-25
