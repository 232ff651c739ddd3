"""A swapped module calls its variant as it is, past PyTorch's dispatcher, unless a mode or transform sees operators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402 - it needs PyTorch
from torch.nn.utils import prune  # noqa: E402 - it needs PyTorch
from torch.overrides import TorchFunctionMode  # noqa: E402 - it needs PyTorch
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.torch import modules  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls import loaded  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import FakeGpu  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts


@pytest.fixture
def by_operator(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that the operator is called with, where modules on a CPU may do without it."""
    plans: list[str] = []

    def record(*arguments: Any) -> Any:
        plans.append(arguments[-1])
        return torch.ops.conv_advisor.conv2d_v1.default(*arguments)

    monkeypatch.setattr(modules, "conv2d", record)
    monkeypatch.setattr(modules, "LEAST_DEVICE", -1)
    return plans


def optimized(x: Any, fake_gpu: FakeGpu) -> tuple[nn.Module, Any]:
    """A swapped convolution, and what it returned before."""
    network = nn.Conv2d(8, 8, 3, padding=1).eval()
    with torch.no_grad():
        expected = network(x)
        assert conv_advisor.torch.optimize(network, x).n_swapped == 1
    fake_gpu.runner.launches.clear()
    return network, expected


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_call_is_the_variants_alone(name: str, memory_format: Any, fake_gpu: FakeGpu, by_operator: list[str]) -> None:
    network, shape = NETWORKS[name]
    network, x = copy.deepcopy(network).to(memory_format=memory_format), random(*shape).to(memory_format=memory_format)
    with torch.no_grad():
        expected = network(x.clone())
        report = conv_advisor.torch.optimize(network, x.clone())
        fake_gpu.runner.launches.clear()
        ours = network(x.clone())
    assert_near(ours, expected)
    assert ours.stride() == expected.stride()
    assert len(fake_gpu.runner.launches) == sum(layer.count for layer in report.layers) > 0
    assert by_operator == []


class Told(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not followed
    """Hears of operators."""

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class ToldOfFunctions(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not followed
    """Hears of functions."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("mode", "is_told"), [(nullcontext, False), (torch.inference_mode, False), (Told, True), (ToldOfFunctions, True)]
)
def test_who_is_told_of_operators_is_told_of_this_one(
    mode: type[AbstractContextManager[Any]], is_told: bool, fake_gpu: FakeGpu, by_operator: list[str]
) -> None:
    x = random(2, 8, 6, 6)
    network, expected = optimized(x, fake_gpu)
    with torch.no_grad(), mode():
        assert_near(network(x), expected)
    assert len(by_operator) == is_told
    assert len(fake_gpu.runner.launches) == 1


def test_what_traces_sees_pytorchs_operators(fake_gpu: FakeGpu, by_operator: list[str]) -> None:
    x = random(2, 8, 6, 6)
    network, expected = optimized(x, fake_gpu)
    with torch.no_grad():
        traced = make_fx(network)(x)
        assert_near(torch.func.vmap(network)(x.expand(3, *x.shape))[2], expected)
    assert any("conv" in str(node.target) for node in traced.graph.nodes)


def test_a_subclass_of_tensors_is_asked_by_the_operator(fake_gpu: FakeGpu, by_operator: list[str]) -> None:
    class Own(torch.Tensor):  # type: ignore[misc]  # PyTorch is not followed
        pass

    x = random(2, 8, 6, 6)
    network, expected = optimized(x, fake_gpu)
    with torch.no_grad():
        assert_near(network(x.as_subclass(Own)).as_subclass(torch.Tensor), expected)
    assert len(by_operator) == 1


def test_what_fails_or_is_not_aligned_is_pytorchs_own(
    fake_gpu: FakeGpu, by_operator: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random(2, 8, 6, 6)
    network, expected = optimized(x, fake_gpu)
    moved = torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape)
    with torch.no_grad():
        assert_near(network(moved), expected)
        assert fake_gpu.runner.launches == []
        (run,) = loaded.LOADED.values()
        monkeypatch.setattr(run, "_run", lambda *_: 1 / 0)
        for _ in range(2):
            assert_near(network(x), expected)
    assert list(loaded.LOADED.values()) == [None]
    assert by_operator == []


def keep_half(layer: nn.Conv2d) -> None:
    layer.weight, layer.bias = nn.Parameter(layer.weight[:4].detach()), nn.Parameter(layer.bias[:4].detach())


def in_place(layer: nn.Conv2d) -> None:
    layer.weight.data, layer.bias.data = layer.weight.data[:4], layer.bias.data[:4]


def quarter(layer: nn.Conv2d) -> None:
    layer.weight, layer.groups = nn.Parameter(layer.weight[:, :2].detach().contiguous()), 4


def shorten(name: str) -> Callable[[nn.Conv2d], None]:
    def write(layer: nn.Conv2d) -> None:
        setattr(layer, name, nn.Parameter(getattr(layer, name)[:1].detach()))

    return write


def circle(layer: nn.Conv2d) -> None:
    layer.padding_mode, layer._reversed_padding_repeated_twice = "circular", [1] * 4


def double_bias(layer: nn.Conv2d) -> None:
    layer.bias.data = layer.bias.data.double()


CHANGES: dict[str, Callable[[nn.Conv2d], Any]] = {
    "pruned": keep_half,
    "pruned in place": in_place,
    "smaller taps": lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight[..., :1, :1].detach())),
    "fewer channels": quarter,
    "half": lambda layer: layer.half(),
    "double": lambda layer: layer.double(),
    "elsewhere": lambda layer: layer.to("meta"),
    "padding": lambda layer: setattr(layer, "padding", 0),
    "padding by name": lambda layer: setattr(layer, "padding", "valid"),
    "stride": lambda layer: setattr(layer, "stride", (2, 2)),
    "dilation": lambda layer: setattr(layer, "dilation", (2, 2)),
    "groups": lambda layer: setattr(layer, "groups", 2),
    "padding mode": circle,
    "weight of one filter": shorten("weight"),
    "bias of one number": shorten("bias"),
    "bias of two dimensions": lambda layer: setattr(layer, "bias", nn.Parameter(torch.ones(2, 4))),
    "another bias's precision": double_bias,
    "no weight": lambda layer: setattr(layer, "weight", None),
}


def answer(layer: nn.Module, x: Any) -> Any:
    """What a layer returns, or the class of its error."""
    with torch.no_grad():
        try:
            return layer(x)
        except Exception as error:  # PyTorch's own are of many classes
            return type(error)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_layer_that_was_changed_is_pytorchs_own(
    name: str, is_direct: bool, fake_gpu: FakeGpu, by_operator: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "LEAST_DEVICE", -1 if is_direct else 0)
    x = random(2, 8, 6, 6)
    network, _ = optimized(x, fake_gpu)
    CHANGES[name](network)
    expected = answer(conv_advisor.torch.restore(copy.deepcopy(network)), x)
    y = answer(network, x)
    if isinstance(expected, type):
        assert y is expected
    else:
        assert y.device == expected.device
        if name != "elsewhere":  # PyTorch itself reads nothing there that could be compared
            assert torch.equal(y, expected)
    assert fake_gpu.runner.launches == []
    assert by_operator == []


def test_a_way_that_is_a_list_is_watched_too(fake_gpu: FakeGpu, by_operator: list[str]) -> None:
    x, network = random(2, 8, 6, 6), nn.Conv2d(8, 8, 3).eval()
    network.stride = [1, 1]
    assert conv_advisor.torch.optimize(network, x).n_swapped == 1
    fake_gpu.runner.launches.clear()
    with torch.no_grad():
        assert network(x).shape[2:] == (4, 4)
        assert len(fake_gpu.runner.launches) == 1
        network.stride[0] = 2
        assert network(x).shape[2:] == (2, 4)
        network.stride[0] = 1
        assert network(x).shape[2:] == (4, 4)
    assert len(fake_gpu.runner.launches) == 2


def test_new_weights_of_the_same_kind_and_masks_run_by_the_plan(fake_gpu: FakeGpu, by_operator: list[str]) -> None:
    x = random(2, 8, 6, 6)
    network, _ = optimized(x, fake_gpu)
    with torch.no_grad():
        network.weight = nn.Parameter(network.weight * 2)
        network.bias = None
        assert_near(network(x), conv_advisor.torch.restore(copy.deepcopy(network))(x))
        prune.random_unstructured(network, "weight", 0.5)
        assert_near(network(x), conv_advisor.torch.restore(copy.deepcopy(network))(x))
    assert len(fake_gpu.runner.launches) == 2
    assert by_operator == []
