"""A swapped module calls its variant as it is, past PyTorch's dispatcher, unless a mode or transform sees operators."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402 - it needs PyTorch
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
