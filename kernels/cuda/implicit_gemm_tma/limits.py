"""What the maps of the tensor memory accelerator can tell: the rule, which advice asks without tiles or launchers."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.shapes import is_dense

ROW_UNIT_BYTES: Final = 16
"""What the bytes of a pixel's channels and filters are multiples of."""
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


def why_not(problem: ConvProblem) -> str | None:
    """Why no map can be made, as far as the maps' own limits say."""
    unit = ROW_UNIT_BYTES // problem.dtype.itemsize_bytes
    if problem.c % unit or problem.k % unit:
        return f"c and k are {problem.c} and {problem.k}, not multiples of {unit}"
    if is_dense(problem):
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
