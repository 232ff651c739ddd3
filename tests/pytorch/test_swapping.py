"""Modules swapped in place on a CPU: which are, what they answer, and everything that leaves them PyTorch's own."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.data.errors import InvalidInput  # noqa: E402 - it needs PyTorch
from conv_advisor.torch import log, modules  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.loaded import plan_name  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.modules import AdvisedConv2d  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The plans that the operator is called with."""
    plans: list[str] = []

    def record(*arguments: Any) -> Any:
        plans.append(arguments[-1])
        return torch.ops.conv_advisor.conv2d_v1.default(*arguments)

    monkeypatch.setattr(modules, "conv2d", record)
    return plans


def network_of(name: str) -> tuple[nn.Module, Any]:
    network, shape = NETWORKS[name]
    return copy.deepcopy(network), random(*shape)


def swapped(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if type(module) is AdvisedConv2d]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_outputs_are_those_of_eager_pytorch(
    name: str, is_channels_last: bool, chooser: EverythingAdvised, called: list[str]
) -> None:
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    network, x = network_of(name)
    network, x = network.to(memory_format=memory_format), x.to(memory_format=memory_format)
    with torch.no_grad():
        expected = network(x.clone(memory_format=memory_format))
        report = conv_advisor.torch.optimize(network, x.clone(memory_format=memory_format))
        ours = network(x.clone(memory_format=memory_format))
    assert_near(ours, expected)
    assert ours.stride() == expected.stride()
    assert len(called) == sum(layer.count for layer in report.layers) > 0
    assert all(("nhwc" in plan) is is_channels_last for plan in called)
    assert {layer.name for layer in report.layers} == set(swapped(network))


def test_the_original_is_one_call_away(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = network_of("resnet")
    before = {name: type(module) for name, module in network.named_modules()}
    state = pickle.dumps(network)
    conv_advisor.torch.optimize(network, x)
    assert swapped(network)
    assert conv_advisor.torch.restore(network) is network
    assert {name: type(module) for name, module in network.named_modules()} == before
    assert pickle.dumps(network) == state
    network(x)
    assert called == []


def test_only_layers_that_gain_are_swapped(chooser: EverythingAdvised) -> None:
    network, x = network_of("resnet")
    seen = conv_advisor.torch.optimize(network, x, min_gain=100)
    assert (seen.n_swapped, swapped(network)) == (0, [])
    (stem, *_) = seen.layers
    assert stem.reason == "cuda.implicit_gemm gains 2.00, not 100"
    chooser.gains[stem.problem] = 1.01
    report = conv_advisor.torch.optimize(network, x)
    assert report.layers[0].reason == "cuda.implicit_gemm gains 1.01, not 1.05"
    assert report.n_swapped == len(report.layers) - 1
    assert "0.0" not in swapped(network)


def test_optimizing_again_counts_for_the_shapes_that_it_shows(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x, y = nn.Sequential(nn.Conv2d(8, 8, 3)).eval(), random(2, 8, 6, 6), random(3, 8, 6, 6)
    for shown in (x, y):
        conv_advisor.torch.optimize(network, shown)
    assert conv_advisor.torch.optimize(network, x, min_gain=100).n_swapped == 0
    called.clear()
    with torch.no_grad():
        network(x)
        assert called == []
        network(y)
        assert len(called) == 1
    conv_advisor.torch.optimize(network, y, min_gain=100)
    assert swapped(network) == []


def test_a_report_says_times_and_reasons(chooser: EverythingAdvised) -> None:
    network, x = network_of("shared weight")
    report = conv_advisor.torch.optimize(network, x, check=True)
    (layer,) = report.layers
    assert (layer.name, layer.count) == ("conv", 2)
    assert (layer.torch_ms, layer.time_ms) == (pytest.approx(0.04), pytest.approx(0.02))
    assert report.gain == pytest.approx(2)
    head, row, *last = str(report).splitlines()
    assert head.split() == ["layer", "problem", "times", "µs", "before", "µs", "now", "runs", "by"]
    assert row.split() == ["conv", "6-2-3-8-8", "2", "40.0", "20.0", "cuda.implicit_gemm"]
    assert last[0] == "1 of 1 swapped, together 2.00 times as fast"
    assert last[1].startswith("error against float64: ")


class Twice(nn.Module):
    """One convolution on two shapes, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle = nn.Conv2d(8, 4, 3, padding="same"), nn.Conv2d(8, 4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(x).mean() + self.head(x[:, :, ::2, ::2].contiguous()).mean()


def test_a_layer_on_two_shapes_has_a_choice_for_each(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = Twice().eval(), random(2, 8, 8, 8)
    report = conv_advisor.torch.optimize(network, x)
    assert [(layer.name, layer.count, layer.reason) for layer in report.layers] == [
        ("head", 1, ""),
        ("head", 1, ""),
        ("idle", 0, "it was not called"),
    ]
    with torch.no_grad():
        network(x)
    assert len(set(called)) == 2


def test_other_shapes_are_pytorchs_own_until_they_are_shown(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = network_of("resnet")
    conv_advisor.torch.optimize(network, x)
    with torch.no_grad():
        network(random(5, 3, 33, 32))
        assert called == []
        conv_advisor.torch.optimize(network, random(5, 3, 33, 32))
        called.clear()
        network(random(5, 3, 33, 32))
        n_then = len(called)
        network(x)
    assert 0 < n_then == len(called) / 2


def in_tf32(network: nn.Module, x: Any) -> Any:
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=True):
        return network(x)


OWN: dict[str, Callable[[nn.Module, Any], Any]] = {
    "gradients": lambda network, x: network(x).sum().backward(),
    "gradients of x alone": lambda network, x: network.requires_grad_(False)(x.requires_grad_()).sum().backward(),
    "autocast": lambda network, x: torch.no_grad()(torch.autocast("cpu", torch.bfloat16)(network))(x),
    "another precision": lambda network, x: torch.no_grad()(network.double())(x.double()),
    "another layout": lambda network, x: torch.no_grad()(network)(x.to(memory_format=torch.channels_last)),
    "another layout of weights": lambda network, x: torch.no_grad()(network.to(memory_format=torch.channels_last))(x),
    "tf32": in_tf32,
}


@pytest.mark.parametrize("name", OWN)
def test_where_a_choice_does_not_fit_it_is_pytorchs_own(
    name: str, chooser: EverythingAdvised, called: list[str]
) -> None:
    network, x = nn.Sequential(nn.Conv2d(8, 8, 3)).eval(), random(2, 8, 6, 6)
    with torch.backends.cudnn.flags(allow_tf32=False):
        conv_advisor.torch.optimize(network, x)
        with torch.no_grad():
            network(x)
        assert len(called) == 1
        OWN[name](network, x)
    assert len(called) == 1


def test_its_gradients_are_pytorchs(chooser: EverythingAdvised) -> None:
    network, x = network_of("resnet")
    original = copy.deepcopy(network)
    conv_advisor.torch.optimize(network, x)
    for model in (network, original):
        model(x).square().mean().backward()
    for parameter, own_parameter in zip(network.parameters(), original.parameters(), strict=True):
        assert torch.equal(parameter.grad, own_parameter.grad)


def test_new_weights_count_at_once(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = network_of("resnet")
    conv_advisor.torch.optimize(network, x)
    state = {name: 2 * tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    with torch.no_grad():
        for is_assigned in (False, True):
            network.load_state_dict(state, strict=False, assign=is_assigned)
            called.clear()
            ours = network(x)
            assert called
            assert torch.equal(ours, conv_advisor.torch.restore(copy.deepcopy(network))(x))


def test_copies_and_pickles_stay_swapped(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = network_of("squeezenet")
    conv_advisor.torch.optimize(network, x)
    with torch.no_grad():
        expected = network(x)
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):  # noqa: S301 - our own
            called.clear()
            assert torch.equal(other(x), expected)
            assert len(called) == 4


def test_an_exported_or_compiled_program_needs_nothing_of_ours(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = network_of("resnet")
    conv_advisor.torch.optimize(network, x)
    with torch.no_grad():
        expected = network(x)
        called.clear()
        exported = torch.export.export(network, (x,)).module()
        traced = torch.fx.symbolic_trace(network)
        compiled = torch.compile(network, backend="eager")
        for program in (exported, traced, compiled):
            assert torch.allclose(program(x), expected, rtol=1e-5, atol=1e-5)
    assert called == []


def test_traced_or_scripted_programs_need_nothing_of_ours_either(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval(), random(2, 8, 6, 6)
    conv_advisor.torch.optimize(network, x)
    with torch.no_grad():
        expected = network(x)
        called.clear()
        assert_near(torch.jit.trace(network, x, check_trace=False)(x), expected)
        assert called == []
        with pytest.raises(InvalidInput, match=r"model is 'swapped by optimize'; allowed: what restore makes of it"):
            torch.jit.script(network)
        assert swapped(network)
        assert_near(torch.jit.script(conv_advisor.torch.restore(network))(x), expected)


def test_what_torch_compile_compiled_is_left_alone_and_told(chooser: EverythingAdvised) -> None:
    network, x = network_of("squeezenet")
    network[1].compile(backend="eager")
    report = conv_advisor.torch.optimize(network, x)
    reasons = {layer.name: layer.reason for layer in report.layers}
    compiled = "torch.compile compiled what it is in, which leaves it PyTorch's own"
    assert reasons == {"0": "", "1.squeeze": compiled, "1.left": compiled, "1.right": compiled}
    assert swapped(network) == ["0"]
    whole = torch.compile(network_of("squeezenet")[0], backend="eager")
    assert {layer.reason for layer in conv_advisor.torch.optimize(whole, x).layers} == {compiled}


class Wider(nn.Conv2d):
    """A convolution of somebody's own."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def with_forward_replaced() -> nn.Module:
    """A layer as made by libraries that bring weights to a device when the layer is called."""
    layer = nn.Conv2d(2, 2, 3)
    before = layer.forward
    layer.forward = lambda x: before(x) + 1
    return layer


DECLINED = {
    "forward replaced": (with_forward_replaced(), (1, 2, 5, 5), "its forward was replaced"),
    "1-D": (nn.Conv1d(2, 2, 3), (1, 2, 9), "Conv1d is no convolution in two dimensions"),
    "3-D": (nn.Conv3d(2, 2, 3), (1, 2, 5, 5, 5), "Conv3d is no convolution in two dimensions"),
    "transposed": (nn.ConvTranspose2d(2, 2, 3), (1, 2, 5, 5), "ConvTranspose2d is no convolution in two dimensions"),
    "somebody's": (Wider(2, 2, 3), (1, 2, 5, 5), "its class is Wider"),
    "parametrized": (
        torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 3)),
        (1, 2, 5, 5),
        "its class is ParametrizedConv2d",
    ),
    "reflected": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (1, 2, 5, 5), "padding_mode is 'reflect'"),
    "no batch": (nn.Conv2d(2, 2, 3), (2, 5, 5), "x has 3 dimensions"),
    "float64": (nn.Conv2d(2, 2, 3).double(), (1, 2, 5, 5), "x is torch.float64"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_none_of_ours_is_said_by_name(name: str, chooser: EverythingAdvised) -> None:
    layer, shape, reason = DECLINED[name]
    network = nn.Sequential(layer).eval()
    (row,) = conv_advisor.torch.optimize(network, random(*shape).to(next(layer.parameters()).dtype)).layers
    assert reason in row.reason
    assert (row.name, row.is_swapped, swapped(network)) == ("0", False, [])
    assert reason in str(conv_advisor.torch.optimize(network, random(*shape).to(next(layer.parameters()).dtype)))


def test_a_lazy_layer_is_swapped_the_second_time(chooser: EverythingAdvised) -> None:
    network, x = nn.Sequential(nn.LazyConv2d(8, 3)).eval(), random(2, 8, 6, 6)
    (row,) = conv_advisor.torch.optimize(network, x).layers
    assert row.reason == "its sizes were not known before it was called: optimize again"
    assert conv_advisor.torch.optimize(network, x).n_swapped == 1


def test_under_autocast_layers_are_left_alone_and_told(chooser: EverythingAdvised) -> None:
    network, x = network_of("two readers")
    with torch.autocast("cpu", torch.bfloat16):
        report = conv_advisor.torch.optimize(network, x)
    assert "under autocast" in report.layers[0].reason


def test_a_model_that_is_on_no_gpu_stays_as_it_is() -> None:
    network, x = network_of("resnet")
    report = conv_advisor.torch.optimize(network, x)
    assert {layer.reason for layer in report.layers} == {"the model and its inputs are not on one GPU"}
    assert swapped(network) == []


@pytest.mark.parametrize("inputs", ["tensor", "tuple", "list", "mapping"])
def test_a_model_is_called_as_its_user_calls_it(inputs: str, chooser: EverythingAdvised) -> None:
    layer, x = nn.Conv2d(8, 8, 3).eval(), random(2, 8, 6, 6)
    example_inputs = {"tensor": x, "tuple": (x,), "list": [x], "mapping": {"x": x}}[inputs]
    report = conv_advisor.torch.optimize(Named(layer), example_inputs)
    assert report.n_swapped == 1


class Named(nn.Module):
    """Takes its input by name."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.eval()

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Naming(nn.Module):
    """Names what it gives to its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)

    def forward(self, x: Any) -> Any:
        return self.conv(input=x)


def test_a_convolution_may_be_called_by_the_name_of_its_input(chooser: EverythingAdvised, called: list[str]) -> None:
    network, x = Naming().eval(), random(2, 8, 6, 6)
    assert conv_advisor.torch.optimize(network, x).n_swapped == 1
    with torch.no_grad():
        network(x)
    assert len(called) == 1


def test_a_device_that_never_casts_is_one_like_others(chooser: EverythingAdvised) -> None:
    network, x = nn.Sequential(nn.Conv2d(8, 8, 3)).to("meta").eval(), random(2, 8, 6, 6).to("meta")
    assert conv_advisor.torch.optimize(network, x).n_swapped == 1
    with torch.no_grad():
        assert network(x).shape == (2, 8, 4, 4)


def test_options_reach_the_chooser(chooser: EverythingAdvised) -> None:
    network, x = network_of("two readers")
    conv_advisor.torch.optimize(network, x, only_cudnn=True, deterministic=True, measure=0, max_error_ratio=2)
    assert (chooser.options.measure, chooser.options.limits) == (0, "deterministic-cudnn-error2")


def test_deterministic_algorithms_ask_for_deterministic_variants(chooser: EverythingAdvised) -> None:
    network, x = network_of("two readers")
    torch.use_deterministic_algorithms(True)
    try:
        conv_advisor.torch.optimize(network, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert chooser.options.deterministic


def test_a_failure_is_told_by_the_first_of_its_layers(
    chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log, "_layers", {})
    monkeypatch.setattr(log, "_warned", set())
    network, x = network_of("resnet")
    report = conv_advisor.torch.optimize(network, x)
    problem = next(layer.problem for layer in report.layers if layer.name == "4.conv2")
    assert [layer.name for layer in report.layers if layer.problem == problem] == ["3.conv2", "4.conv1", "4.conv2"]
    with caplog.at_level(logging.WARNING, "conv_advisor.torch"):
        log.warn_of_failure(plan_name(problem.key), ValueError("broken"))
    assert "3.conv2 (" in caplog.text


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gain": ({"min_gain": 0.5}, "min_gain is 0.5"),
    "gain of text": ({"min_gain": "2"}, "min_gain is '2'"),
    "measure": ({"measure": -1}, r"options\.measure is -1"),
    "inputs": ({"example_inputs": 3}, "example_inputs is 'int'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_allowed_is_refused_by_name(name: str, chooser: EverythingAdvised) -> None:
    arguments, message = REFUSED[name]
    network, x = network_of("two readers")
    with pytest.raises(InvalidInput, match=message):
        conv_advisor.torch.optimize(network, **({"example_inputs": x} | arguments))
    assert swapped(network) == []


def test_a_model_in_training_is_refused(chooser: EverythingAdvised) -> None:
    network, x = network_of("resnet")
    means = network[0][1].running_mean.clone()
    with pytest.raises(InvalidInput, match=r"model\.training is True"):
        conv_advisor.torch.optimize(network.train(), x)
    assert torch.equal(network[0][1].running_mean, means)


def test_a_model_that_fails_is_left_as_it_was(chooser: EverythingAdvised) -> None:
    network, _ = network_of("resnet")
    with pytest.raises(RuntimeError):
        conv_advisor.torch.optimize(network, random(2, 4, 9, 9))
    assert swapped(network) == []
    assert not any(module._forward_pre_hooks for module in network.modules())
