"""The operator of a convolution behind a batch norm and a ReLU: ``torch.ops.conv_advisor.conv2d_prologue_v1``.

It is y = activation(conv(max(x * scale + shift, 0), weight) + bias + residual), where x is what several tensors make
when they are concatenated along the channels, or one tensor. It has a version as `conv_advisor.torch.operators.conv2d`
has. How Inductor spares the concatenation is in `conv_advisor.torch.operators.lowering`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from conv_advisor.torch.calls.own import own_prologue
from conv_advisor.torch.operators.conv2d import fake
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending

NAME: Final = "conv2d_prologue_v1"


def behind_steps(parts: Sequence[Any], prologue: Any, *rest: Any) -> Any:
    """The same by a concatenation, PyTorch's own operators, and the convolution with what ends in it."""
    x = parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)
    return conv2d_ending(own_prologue(x, prologue), *rest)


def _fake(parts: Sequence[Any], _prologue: Any, weight: Any, _bias: Any, _residual: Any, *rest: Any) -> Any:
    stride, padding, dilation, groups, _, plan = rest
    return fake(parts[0], weight, stride, padding, dilation, groups, plan)


_library: Final = torch.library.Library("conv_advisor", "FRAGMENT")
_library.define(
    f"{NAME}(Tensor[] parts, Tensor prologue, Tensor weight, Tensor? bias, Tensor? residual, int[] stride,"
    " int[] padding, int[] dilation, int groups, str activation, str plan) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl(NAME, behind_steps, "CompositeExplicitAutograd")
torch.library.register_fake(f"conv_advisor::{NAME}", _fake, lib=_library)
conv2d_prologue: Final = torch.ops.conv_advisor.conv2d_prologue_v1.default
