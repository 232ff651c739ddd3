"""The operator of a concatenation that convolutions write into: ``torch.ops.conv_advisor.cat_channels_v1``.

It is ``torch.cat`` along the channels, in channels last, and has a version as `conv_advisor.torch.operators.conv2d`
has. What it spares, copies, is a matter of how Inductor calls it (`conv_advisor.torch.operators.lowering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

NAME: Final = "cat_channels_v1"


def _concatenated(tensors: Sequence[Any]) -> Any:
    return torch.cat(tensors, 1).contiguous(memory_format=torch.channels_last)


def _fake(tensors: Sequence[Any]) -> Any:
    n, _, *plane = tensors[0].shape
    shape = (n, sum(tensor.shape[1] for tensor in tensors), *plane)
    first = tensors[0]
    return torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=torch.channels_last)


_library: Final = torch.library.Library("conv_advisor", "FRAGMENT")
_library.define(f"{NAME}(Tensor[] tensors) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.impl(NAME, _concatenated, "CompositeExplicitAutograd")
torch.library.register_fake(f"conv_advisor::{NAME}", _fake, lib=_library)
cat_channels: Final = torch.ops.conv_advisor.cat_channels_v1.default
