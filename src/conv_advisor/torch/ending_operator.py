"""The operator of a convolution with what ends in it: ``torch.ops.conv_advisor.conv2d_ending_v1``.

It is y = activation(conv(x, weight) + bias + residual), and has a version as `conv_advisor.torch.operator` has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation
from conv_advisor.torch.operator import fake, memory_format_of_plan, own_convolution, run_advised

NAME: Final = "conv2d_ending_v1"

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


def _on_cuda(x: Any, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
    """The variant that is loaded for the plan, which ends with all of it; else PyTorch's own steps."""
    *geometry, activation, plan = rest
    ends = () if bias is None and residual is None else (bias, residual)
    y = run_advised(plan, x, weight, ends, tuple(geometry), activation)
    return own_steps(x, weight, bias, residual, *rest) if y is None else y


def _with_gradients(*arguments: Any) -> Any:
    """Where gradients are recorded, its steps record theirs; else it stays one operator."""
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return own_steps(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return conv2d_ending(*arguments)


def _fake(
    x: Any, weight: Any, bias: Any, residual: Any, stride: Any, padding: Any, dilation: Any, groups: int, *names: str
) -> Any:
    return fake(x, weight, stride, padding, dilation, groups, names[-1])


_library: Final = torch.library.Library("conv_advisor", "FRAGMENT")
_library.define(
    f"{NAME}(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, int[] stride, int[] padding, int[] dilation,"
    " int groups, str activation, str plan) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_library.impl(NAME, own_steps, "CPU")
_library.impl(NAME, _on_cuda, "CUDA")
_library.impl(NAME, _with_gradients, "Autograd")
torch.library.register_fake(f"conv_advisor::{NAME}", _fake, lib=_library)
conv2d_ending: Final = torch.ops.conv_advisor.conv2d_ending_v1.default
