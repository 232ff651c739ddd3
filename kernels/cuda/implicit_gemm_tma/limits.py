"""Limits of the maps of the tensor memory accelerator: the rule, which advice uses without tiles or launchers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts import shapes

ROW_UNIT_BYTES: Final = 16
"""The bytes of a pixel's channels and of its filters are multiples of this."""
STAGE_BYTES: Final = 128
"""Most bytes of a tap's channels that are multiplied at a time."""
MOST_OFFSET: Final = 255
"""Largest distance of a tap from the first tap, in rows or columns."""
CORNERS: Final = range(-128, 128)
"""Offsets that the corners of a box of pixels may have from those of x."""
MOST_STEP: Final = 8
"""The largest stride of a convolution."""


def upper_corner(problem: ConvProblem) -> tuple[int, int]:
    """Column and row of the last output's first tap, relative to the last pixel of x."""
    return (
        (problem.q - 1) * problem.stride_w - problem.pad_w - (problem.w - 1),
        (problem.p - 1) * problem.stride_h - problem.pad_h - (problem.h - 1),
    )


def by_patches(problem: ConvProblem) -> ConvProblem:
    """The same layer by its patches, where it has any and they fill more of a stage than single pixels do.

    Where patches are too high for a stride, several rows of x are viewed as one row, and the filter's rows in it as
    columns that are a row of patches apart: the memory is still the same.
    """
    viewed = shapes.by_patches(problem)
    itemsize = problem.dtype.itemsize_bytes
    if viewed == problem or viewed.s * _stages(viewed.c * itemsize) >= problem.s * _stages(problem.c * itemsize):
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
    """Why no map can be made by the maps' own limits, or None."""
    problem, unit = by_patches(problem), ROW_UNIT_BYTES // problem.dtype.itemsize_bytes
    if problem.c % unit or problem.k % unit:
        return f"c and k are {problem.c} and {problem.k}, not multiples of {unit}"
    return why_no_windows(problem)


def why_no_windows(problem: ConvProblem) -> str | None:
    """Why no map reads the windows of x with channels innermost, whatever the channels; None where one does."""
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
