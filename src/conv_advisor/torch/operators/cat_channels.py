"""The operator of a concatenation that convolutions write into: ``torch.ops.conv_advisor.cat_channels_v1``.

It is ``torch.cat`` along the channels, in channels last, and has a version as `conv_advisor.torch.operators.conv2d`
has. It says which of the tensors are outputs of convolutions that are to be written to their places in it, and not
copied: how Inductor does that is in `conv_advisor.torch.operators.lowering`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

NAME: Final = "cat_channels_v1"


def _concatenated(tensors: Sequence[Any], in_place: Sequence[bool]) -> Any:
    return torch.cat(tensors, 1).contiguous(memory_format=torch.channels_last)


def _fake(tensors: Sequence[Any], in_place: Sequence[bool]) -> Any:
    n, _, *plane = tensors[0].shape
    shape = (n, sum(tensor.shape[1] for tensor in tensors), *plane)
    first = tensors[0]
    return torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=torch.channels_last)


_library: Final = torch.library.Library("conv_advisor", "FRAGMENT")
_library.define(f"{NAME}(Tensor[] tensors, bool[] in_place) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_library.impl(NAME, _concatenated, "CompositeExplicitAutograd")
torch.library.register_fake(f"conv_advisor::{NAME}", _fake, lib=_library)
cat_channels: Final = torch.ops.conv_advisor.cat_channels_v1.default
