"""The operator of a concatenation that convolutions write into: ``torch.ops.conv_advisor.cat_channels_v1``.

It is ``torch.cat`` along the channels, in channels last, and has a version as `conv_advisor.torch.operators.conv2d`
has. What it spares, copies, is a matter of how Inductor calls it (`conv_advisor.torch.operators.lowering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.fx import Node

from conv_advisor.data.problem import Layout
from conv_advisor.torch.calls.loaded import layout_of_plan, run_of
from conv_advisor.torch.nodes import value_of
from conv_advisor.torch.operators.conv2d import conv2d
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending

OURS: Final = (conv2d, conv2d_ending)
"""The operators of convolutions, whose last argument is the plan."""
ALIGNMENT_BYTES: Final = 16
"""Of which a pixel, and what lies in it ahead of a part that is written in place, take a multiple."""
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


def is_written_in_place(part: Node, at_bytes: int) -> bool:
    """Whether a part of a concatenation, so many bytes behind a pixel's first channel, is by a variant that can do so.

    That concatenation alone reads the part then.
    """
    if part.target not in OURS or len(part.users) != 1 or at_bytes % ALIGNMENT_BYTES:
        return False
    plan = str(part.args[-1])
    run = run_of(plan, value_of(part).device)
    return layout_of_plan(plan) is Layout.NHWC and run is not None and run.writes_within
