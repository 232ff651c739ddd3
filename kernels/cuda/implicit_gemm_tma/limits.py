"""What the maps of the tensor memory accelerator can tell: the rule, which advice asks without tiles or launchers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts import shapes

ROW_UNIT_BYTES: Final = 16
"""What the bytes of a pixel's channels and filters are multiples of."""
STAGE_BYTES: Final = 128
"""Most bytes of a tap's channels that are multiplied at a time."""
MOST_OFFSET: Final = 255
"""How far a tap may lie from the first one, in rows or columns."""
CORNERS: Final = range(-128, 128)
"""Where the corners of a box of pixels may lie, from those of x."""
MOST_STEP: Final = 8
"""The largest stride of a convolution."""


def upper_corner(problem: ConvProblem) -> tuple[int, int]:
    """Column and row of the last output's first tap, from the last of x."""
    return (
        (problem.q - 1) * problem.stride_w - problem.pad_w - (problem.w - 1),
        (problem.p - 1) * problem.stride_h - problem.pad_h - (problem.h - 1),
    )


def by_patches(problem: ConvProblem) -> ConvProblem:
    """The same layer by its patches, where those fill more of a stage than single pixels do, or any.

    Where patches are too high for a step, several rows of x are one, and the filter's rows in it are as many columns, a
    row of patches apart: memory is still the same.
    """
    viewed = shapes.by_patches(problem)
    item = problem.dtype.itemsize_bytes
    if viewed == problem or viewed.s * _stages(viewed.c * item) >= problem.s * _stages(problem.c * item):
        return problem
    (r, h, w), is_stacked = (viewed.r, viewed.h, viewed.w), viewed.stride_h == viewed.r and viewed.dilation_h == 1
    if r <= MOST_STEP or not is_stacked or viewed.pad_h or viewed.pad_h_end:
        return viewed
    rows = next((rows for rows in range(2, r + 1) if r % rows == h % rows == 0 and r // rows <= MOST_STEP), 1)
    return replace(viewed, h=h // rows, w=w * rows, r=r // rows, s=rows, stride_h=r // rows, dilation_w=w)


def _stages(channel_bytes: int) -> int:
    """Stages of the channels of a tap."""
    return -(-channel_bytes // STAGE_BYTES)


def why_not(problem: ConvProblem) -> str | None:
    """Why no map can be made, as far as the maps' own limits say."""
    problem, unit = by_patches(problem), ROW_UNIT_BYTES // problem.dtype.itemsize_bytes
    if problem.c % unit or problem.k % unit:
        return f"c and k are {problem.c} and {problem.k}, not multiples of {unit}"
    if shapes.is_dense(problem):
        return None
    offset = max((problem.r - 1) * problem.dilation_h, (problem.s - 1) * problem.dilation_w)
    if offset > MOST_OFFSET:
        return f"the last tap lies {offset} rows or columns behind the first, above {MOST_OFFSET}"
    if max(problem.stride_h, problem.stride_w) > MOST_STEP:
        return f"stride is {problem.stride_h}x{problem.stride_w}, above {MOST_STEP}"
    corners = (-problem.pad_w, -problem.pad_h, *upper_corner(problem))
    if any(corner not in CORNERS for corner in corners):
        return f"the first tap lies {max(corners, key=abs)} rows or columns from x's border, outside -128 to 127"
    return None
