"""The operator of a convolution with what ends in it: ``torch.ops.conv_advisor.conv2d_ending_v1``.

It is y = activation(conv(x, weight) + bias + residual), and has a version as `conv_advisor.torch.operators.conv2d` has.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from conv_advisor.torch.calls.own import own_steps
from conv_advisor.torch.operators.conv2d import fake, run_advised

NAME: Final = "conv2d_ending_v1"


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
