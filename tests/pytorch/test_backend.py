"""The backend on a CPU: graphs are found, folded and replaced as on a GPU, and the operator runs PyTorch's own."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.data.errors import InvalidInput  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import (  # noqa: E402 - it needs PyTorch
    assert_compiled_is_eager,
    assert_near,
    compiled,
    random,
)
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind, resnet, settle  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_outputs_are_those_of_eager_pytorch(
    name: str, is_channels_last: bool, chooser: EverythingAdvised, quick: Any
) -> None:
    network, shape = NETWORKS[name]
    assert_compiled_is_eager(network, shape, is_channels_last=is_channels_last)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert 1 <= len(chooser.layers) <= len(convolutions)
    is_nhwc = {problem.layout == "nhwc" for problem in chooser.layers}
    assert is_nhwc == {is_channels_last}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "mutating"])
def test_inductor_takes_what_the_backend_leaves_it(name: str, chooser: EverythingAdvised) -> None:
    network, shape = NETWORKS[name]
    x = random(*shape)
    with torch.no_grad():
        expected = network(x.clone())
        assert_near(torch.compile(network, backend=conv_advisor.torch.backend)(x.clone()), expected)
    assert chooser.layers


@pytest.mark.parametrize("name", ["resnet", "mutating"])
def test_without_inductor_nothing_is_compiled(
    name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda *_, **__: pytest.fail("compiled"))
    network, shape = NETWORKS[name]
    network, x = copy.deepcopy(network), random(*shape)
    call = compiled(network, options={"inductor": False})
    with torch.no_grad():
        assert_near(call(x.clone()), network(x.clone()))
        network.load_state_dict({key: 2 * value for key, value in network.state_dict().items()})
        assert_near(call(x.clone()), network(x.clone()))
    assert chooser.layers


def test_without_inductor_gradients_are_pytorchs(chooser: EverythingAdvised) -> None:
    network, shape = NETWORKS["two readers"]
    network, original, x = copy.deepcopy(network), copy.deepcopy(network), random(*shape)
    compiled(network, options={"inductor": False})(x).square().mean().backward()
    original(x).square().mean().backward()
    assert chooser.layers == {}
    for parameter, own_parameter in zip(network.parameters(), original.parameters(), strict=True):
        assert_near(parameter.grad, own_parameter.grad)


def test_layers_are_told_by_the_names_of_their_modules(chooser: EverythingAdvised, quick: Any) -> None:
    with torch.no_grad():
        compiled(NETWORKS["resnet"][0])(random(2, 3, 33, 32))
    assert {"0.0", "2.conv1", "3.project.0"} <= set(chooser.layers.values())


class Activated(nn.Module):
    """A layer, and an activation behind it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return torch.relu(self.layer(x))


DECLINED = {
    "3-D": (nn.Conv3d(2, 2, 3), (1, 2, 5, 5, 5)),
    "1-D": (nn.Conv1d(2, 2, 3), (1, 2, 9)),
    "transposed": (nn.ConvTranspose2d(2, 2, 3), (1, 2, 5, 5)),
    "no batch": (nn.Conv2d(2, 2, 3), (2, 5, 5)),
    "float64": (nn.Conv2d(2, 2, 3).double(), (1, 2, 5, 5)),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_none_of_ours_stays_as_it_is(name: str, chooser: EverythingAdvised, quick: Any) -> None:
    layer, shape = DECLINED[name]
    network = Activated(layer).eval()
    x = random(*shape).to(next(layer.parameters()).dtype)
    with torch.no_grad():
        assert_near(compiled(network)(x), network(x))
    assert chooser.layers == {}


ADVISED = {
    "valid": (nn.Conv2d(2, 4, 3, padding="valid"), (1, 2, 5, 5), "5x5-1-3x3-4-2-stride1x1-pad0x0-dilation1x1-groups1"),
    "same": (nn.Conv2d(2, 4, (3, 5), padding="same"), (1, 2, 8, 8), "8x8-1-3x5-4-2-stride1x1-pad1x2-dilation1x1"),
    "same around an even filter": (
        nn.Conv2d(2, 4, (2, 4), padding="same"),
        (1, 2, 8, 8),
        "8x8-1-2x4-4-2-stride1x1-pad0x1-end1x2-dilation1x1",
    ),
    "reflected": (nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), (1, 2, 5, 5), "7x7-1-3x3-4-2-stride1x1"),
    "dilated": (nn.Conv2d(2, 4, 3, dilation=2), (1, 2, 9, 9), "9x9-1-3x3-4-2-stride1x1-pad0x0-dilation2x2-groups1"),
    "grouped": (nn.Conv2d(4, 8, 3, 2, 1, groups=2), (1, 4, 9, 9), "9x9-1-3x3-8-4-stride2x2-pad1x1-dilation1x1-groups2"),
}


@pytest.mark.parametrize("name", ADVISED)
def test_padding_stride_dilation_and_groups_become_the_problem(
    name: str, chooser: EverythingAdvised, quick: Any
) -> None:
    layer, shape, key = ADVISED[name]
    network = Activated(layer).eval()
    x = random(*shape)
    with torch.no_grad():
        assert_near(compiled(network)(x), network(x))
    (problem,) = chooser.layers
    assert problem.key.startswith(key)


def graph_of(network: nn.Module, x: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[str]:
    """The targets of the calls in the graph that goes on to Inductor."""
    targets: list[str] = []

    def compile_fx(gm: Any, _inputs: Any, config_patches: Any = None) -> Any:
        targets.extend(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    with torch.no_grad():
        compiled(network, **options)(x)
    return targets


def test_batch_norms_behind_convolutions_are_folded(
    chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = graph_of(NETWORKS["resnet"][0], random(2, 3, 33, 32), monkeypatch)
    assert not any("batch_norm" in target for target in targets)
    assert targets.count("conv_advisor.conv2d_v1.default") == 8


def test_folding_can_be_left_out(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = graph_of(NETWORKS["resnet"][0], random(2, 3, 33, 32), monkeypatch, options={"fold": False})
    assert sum("batch_norm" in target for target in targets) == 8


@pytest.mark.parametrize("name", ["densenet", "two readers"])
def test_other_batch_norms_are_not(name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = NETWORKS[name]
    targets = graph_of(network, random(*shape), monkeypatch)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert sum("batch_norm" in target for target in targets) == len(norms)


def test_batch_norms_in_training_are_not_folded(chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["resnet"][0]).train()
    expected, x = copy.deepcopy(network), random(2, 3, 33, 32)
    with torch.no_grad():
        assert_near(compiled(network)(x), expected(x))
    assert torch.equal(network[0][1].running_mean, expected[0][1].running_mean)


def test_weights_that_are_arguments_are_not_folded(chooser: EverythingAdvised, quick: Any) -> None:
    norm = NETWORKS["two readers"][0].norm

    def network(x: Any, weight: Any) -> Any:
        return norm(torch.conv2d(x, weight))

    call = torch.compile(network, backend=conv_advisor.torch.backend)
    x = random(1, 8, 4, 4)
    with torch.no_grad():
        for factor in (1.0, 2.0):
            weight = factor * torch.ones(8, 8, 1, 1)
            assert_near(call(x, weight), network(x, weight))
    assert chooser.layers


def test_where_gradients_are_needed_the_graph_is_left_alone(chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["squeezenet"][0]).train()
    expected, x = copy.deepcopy(network), random(2, 3, 17, 16)
    compiled(network)(x).square().mean().backward()
    expected(x).square().mean().backward()
    assert chooser.layers == {}
    for parameter, own_parameter in zip(network.parameters(), expected.parameters(), strict=True):
        assert_near(parameter.grad, own_parameter.grad)


def test_a_model_goes_from_inference_to_training_and_back(chooser: EverythingAdvised, quick: Any) -> None:
    network = copy.deepcopy(NETWORKS["squeezenet"][0])
    call, x = compiled(network), random(2, 3, 17, 16)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with torch.no_grad():
        call(x)
    call(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        assert_near(call(x), network(x))


@pytest.mark.parametrize("is_inside", [False, True])
def test_autocast_decides_the_precision(is_inside: bool, chooser: EverythingAdvised, quick: Any) -> None:
    network, shape = NETWORKS["resnet"]

    def inside(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return network(x)

    x = random(*shape)
    with torch.no_grad():
        expected = inside(x)
        if is_inside:
            ours = torch.compile(inside, backend=conv_advisor.torch.backend)(x)
        else:
            with torch.autocast("cpu", torch.bfloat16):
                ours = compiled(network)(x)
    assert_near(ours, expected, tolerance=0.05)
    assert {problem.dtype for problem in chooser.layers} == {"bfloat16"}


@pytest.mark.parametrize("is_allowed", [False, True])
def test_float32_is_tf32_where_pytorch_allows_it(
    is_allowed: bool, chooser: EverythingAdvised, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, shape = NETWORKS["two readers"]
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=is_allowed):
        compiled(network)(random(*shape))
    assert {problem.dtype for problem in chooser.layers} == {"tf32" if is_allowed else "float32"}


def test_batches_of_several_sizes(chooser: EverythingAdvised, quick: Any) -> None:
    network, (_, *shape) = NETWORKS["resnet"]
    call = compiled(network)
    with torch.no_grad():
        for batch in (4, 7, 1, 9):
            x = random(batch, *shape)
            assert_near(call(x), network(x))
    assert chooser.graphs <= 3


def test_an_exported_model_compiles(chooser: EverythingAdvised, quick: Any) -> None:
    network, shape = NETWORKS["resnet"]
    x = random(*shape)
    with torch.no_grad():
        exported = torch.export.export(network, (x,)).module()
        assert_near(compiled(exported)(x), network(x))
    assert len(chooser.layers) == 5


def test_copies_and_pickles_compile_too(chooser: EverythingAdvised, quick: Any) -> None:
    network, shape = NETWORKS["squeezenet"]
    x = random(*shape)
    with torch.no_grad():
        compiled(network)(x)
        for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):  # noqa: S301 - our own
            assert_near(compiled(other)(x), network(x))


def test_several_threads_use_one_model(chooser: EverythingAdvised, quick: Any) -> None:
    network, shape = NETWORKS["resnet"]
    call = compiled(network)
    inputs = [random(*shape) + index for index in range(6)]
    outputs: dict[int, Any] = {}

    def run(index: int) -> None:
        with torch.no_grad():
            outputs[index] = call(inputs[index])

    with torch.no_grad():
        call(inputs[0])
    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for index, x in enumerate(inputs):
            assert_near(outputs[index], network(x))


def test_inference_mode(chooser: EverythingAdvised, quick: Any) -> None:
    network, shape = NETWORKS["resnet"]
    x = random(*shape)
    with torch.inference_mode():
        assert_near(compiled(network)(x), network(x))


def test_a_model_made_in_inference_mode_is_not_folded(chooser: EverythingAdvised, quick: Any) -> None:
    with torch.inference_mode():
        network = settle(resnet(), ())
        x = random(2, 3, 33, 32)
        assert_near(compiled(network)(x), network(x))
        network[0][0].weight.mul_(2)
        assert_near(compiled(network)(x), network(x))


@pytest.mark.parametrize("is_graph_with_gradients", [False, True])
def test_autograd_is_asked_only_where_a_graph_turns_it_on(
    is_graph_with_gradients: bool, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def compile_fx(gm: Any, _inputs: Any, config_patches: Any = None) -> Any:
        def run(*inputs: Any) -> Any:
            seen.append(torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality))
            return gm.forward(*inputs)

        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    weight = torch.randn(8, 8, 3, 3)

    def function(x: Any) -> Any:
        with torch.set_grad_enabled(is_graph_with_gradients):
            return torch.conv2d(x, weight)

    with torch.no_grad():
        compiled(function)(random(1, 8, 6, 6))
    assert seen == [not is_graph_with_gradients]
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)


def test_options_reach_the_chooser(chooser: EverythingAdvised, quick: Any) -> None:
    options = {"measure": 0, "deterministic": True, "only_cudnn": True, "max-workspace-bytes": 1000}
    with torch.no_grad():
        compiled(NETWORKS["two readers"][0], options=options)(random(2, 8, 6, 6))
    assert (chooser.options.measure, chooser.options.limits) == (0, "deterministic-cudnn-workspace1000")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measur": 3}, "measur"),
        ({"measure": -1}, r"options\.measure is -1"),
        ({"measure": True}, r"options\.measure is True"),
        ({"fold": 1}, r"options\.fold is 1"),
        ({"inductor": False, "max_autotune": True}, r"options\.inductor is False.*max_autotune"),
        ({"plan_file": 3}, r"options\.plan_file is 3"),
    ],
)
def test_an_unknown_option_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        conv_advisor.torch.options.read_options(None, options)


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="mode is 'fastest'"):
        conv_advisor.torch.options.read_options("fastest", {})


def test_modes_and_other_options_are_inductors() -> None:
    ours, inductors = conv_advisor.torch.options.read_options("reduce-overhead", {"max_autotune": True, "measure": 1})
    assert ours.measure == 1
    assert inductors == {"triton.cudagraphs": True, "max_autotune": True}


def test_deterministic_algorithms_ask_for_deterministic_variants() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert conv_advisor.torch.options.read_options(None, None)[0].deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_on_a_cpu_the_graph_is_left_to_inductor(
    quick: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.compiler.reset()
    with caplog.at_level(logging.INFO, "conv_advisor.torch"):
        targets = graph_of(NETWORKS["resnet"][0], random(2, 3, 33, 32), monkeypatch)
    assert "conv_advisor.conv2d_v1.default" not in targets
    assert "the whole graph: PyTorch's own: it is not on one GPU that can be used" in caplog.messages
