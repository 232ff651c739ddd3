"""One way to compile a network, and to compare what it returns with what eager PyTorch does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

import conv_advisor.torch
from conv_advisor.torch.nodes import kind_of


def random(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def compiled(network: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(network, backend=conv_advisor.torch.backend, **options)


def watch(monkeypatch: Any) -> list[str]:
    """The names of the convolutions in what our backend hands on from now on, in the order of the graphs."""
    module = import_module("conv_advisor.torch.backend")
    compile_, seen = module._compile, []

    def watched(gm: Any, *rest: Any) -> Any:
        names = [getattr(node.target, "__name__", "").partition(".")[0] for node in gm.graph.nodes]
        seen.extend(name for name in names if name.startswith("conv2d"))
        return compile_(gm, *rest)

    monkeypatch.setattr(module, "_compile", watched)
    return seen


def kinds(network: nn.Module, *inputs: Any, monkeypatch: Any, **options: Any) -> tuple[list[str], Any]:
    """The kinds of the operators in what our backend hands on to Inductor, and what that returns."""
    seen: list[str] = []

    def compile_fx(gm: Any, _inputs: Any, config_patches: Any = None) -> Any:
        seen.extend(kind_of(node) for node in gm.graph.nodes if node.op.startswith("call"))
        return gm.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    with torch.no_grad():
        y = compiled(network, **options)(*inputs)
    return seen, y


def in_float64(network: nn.Module, *inputs: Any) -> Any:
    """What eager PyTorch returns for the network and its inputs in float64."""
    with torch.no_grad():
        return copy.deepcopy(network).double()(*(x.double() for x in inputs))


def assert_near(y: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert y.dtype == expected.dtype
    assert y.shape == expected.shape
    assert torch.allclose(y, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def assert_compiled_is_eager(network: nn.Module, shape: tuple[int, ...], *, is_channels_last: bool) -> None:
    """Values and strides are those of eager PyTorch."""
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    network = copy.deepcopy(network).to(memory_format=memory_format)
    x = random(*shape).to(memory_format=memory_format)
    with torch.no_grad():
        expected = network(x.clone(memory_format=memory_format))
        y = compiled(network)(x.clone(memory_format=memory_format))
    assert_near(y, expected)
    assert y.stride() == expected.stride()
