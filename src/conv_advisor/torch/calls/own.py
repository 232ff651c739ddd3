"""PyTorch's own convolution and epilogue, in a plan's layout: the fallback where no variant runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation
from conv_advisor.torch.calls.loaded import memory_format_of_plan

_functional: Final = torch.nn.functional
ACTIVATE: Final[dict[Activation, Callable[[Any], Any]]] = {
    Activation.NONE: lambda y: y,
    Activation.RELU: torch.relu,
    Activation.RELU6: _functional.relu6,
    Activation.LEAKY_RELU: lambda y: _functional.leaky_relu(y, LEAKY_SLOPE),
    Activation.SILU: _functional.silu,
    Activation.GELU: _functional.gelu,
    Activation.GELU_TANH: lambda y: _functional.gelu(y, approximate="tanh"),
    Activation.HARDSWISH: _functional.hardswish,
    Activation.SIGMOID: torch.sigmoid,
}


def pad(x: Any, padding: Sequence[int]) -> tuple[Any, Sequence[int]]:
    """x and the padding with which PyTorch's own convolution takes it, which has no more than two numbers."""
    if len(padding) <= 2:
        return x, padding
    top, left, bottom, right = padding
    return _functional.pad(x, (left, right, top, bottom)), (0, 0)


def own_convolution(
    x: Any, weight: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, plan: str
) -> Any:
    """PyTorch's own convolution, in the plan's layout."""
    x, padding = pad(x, padding)
    y = torch.ops.aten.convolution.default(x, weight, None, stride, padding, dilation, False, [0, 0], groups)
    return y.contiguous(memory_format=memory_format_of_plan(plan))


def own_steps(
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    plan: str,
) -> Any:
    """PyTorch's own convolution, and its own operators behind it, in the plan's layout."""
    y = own_convolution(x, weight, stride, padding, dilation, groups, plan)
    if bias is not None:
        y = y + bias.reshape(1, -1, 1, 1)
    if residual is not None:
        y = y + residual
    return ACTIVATE[Activation(activation)](y).contiguous(memory_format=memory_format_of_plan(plan))


def own_prologue(x: Any, prologue: Any) -> Any:
    """max(x * scale + shift, 0) by channel, in x's precision; ``prologue`` has both in float32, of shape (2,C)."""
    scale, shift = prologue.reshape(2, 1, -1, 1, 1)
    return torch.relu(x * scale + shift).to(x.dtype)
