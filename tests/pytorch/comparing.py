"""One way to compile a network, and to compare what it returns with what eager PyTorch does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import conv_advisor.torch


def random(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def compiled(network: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(network, backend=conv_advisor.torch.backend, **options)


def assert_near(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def assert_compiled_is_eager(network: nn.Module, shape: tuple[int, ...], *, is_channels_last: bool) -> None:
    """Values and strides are those of eager PyTorch."""
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    network = copy.deepcopy(network).to(memory_format=memory_format)
    x = random(*shape).to(memory_format=memory_format)
    with torch.no_grad():
        expected = network(x.clone(memory_format=memory_format))
        got = compiled(network)(x.clone(memory_format=memory_format))
    assert_near(got, expected)
    assert got.stride() == expected.stride()
