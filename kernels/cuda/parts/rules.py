"""Where our CUDA variants apply: the rules that several families share, and workspaces under the default limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.variant import (
    DEFAULT_WORKSPACE_LIMIT_BYTES,
    Workspace,
    all_of,
    at_least_capability,
    dilation_1,
    groups_1,
    layout_is,
    of_device,
    stride_1,
)

MOST_PADDED: Final = 2**30
"""Rows and columns of a padded input: the kernels compute positions in it with 32-bit integers."""


def _fits_indices(problem: ConvProblem, _device: Device) -> str | None:
    # Without the problem's own properties, which take twice as long: nearly every prediction calls this rule.
    rows, columns = problem.h + problem.pad_h + problem.pad_h_end, problem.w + problem.pad_w + problem.pad_w_end
    if rows <= MOST_PADDED and columns <= MOST_PADDED:
        return None
    return f"padded input has {max(rows, columns)} rows or columns, above {MOST_PADDED}"


@of_device
def has_wgmma(_problem: ConvProblem, device: Device) -> str | None:
    """Applies to Hopper, where four warps multiply together."""
    if device.capability == "9.0":
        return None
    return f"compute capability is {device.capability or 'unknown'}, and only 9.0 has wgmma"


ANY: Final = all_of(at_least_capability("8.0"), _fits_indices)
"""Applies wherever our kernels run."""
NCHW: Final = all_of(ANY, layout_is(Layout.NCHW))
PLAIN: Final = all_of(NCHW, stride_1, dilation_1, groups_1)


def under_the_default_limit(workspace_bytes: Callable[[ConvProblem, Device, int], int]) -> Workspace:
    """Bind a workspace that depends on a limit to the default limit; where that is exceeded, give the least."""

    def needed_bytes(problem: ConvProblem, device: Device) -> int:
        try:
            return workspace_bytes(problem, device, DEFAULT_WORKSPACE_LIMIT_BYTES)
        except WorkspaceExceeded as error:
            return error.needed_bytes

    return needed_bytes


def on_any_device(workspace_bytes: Callable[[ConvProblem, int], int]) -> Callable[[ConvProblem, Device, int], int]:
    """Adapt a workspace that is the same on every device to the signature with a device."""
    return lambda problem, _device, limit_bytes: workspace_bytes(problem, limit_bytes)
