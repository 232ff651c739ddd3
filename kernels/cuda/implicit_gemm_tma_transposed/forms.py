"""How x is read, as it lies or packed, and the workspace of the packed copies: what advice needs, without tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeVar

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.implicit_gemm_tma import limits
from conv_advisor.kernels.cuda.parts.shapes import Problems, is_dense

BOX_PIXELS: Final = 64
"""Pixels of an image that a box of planes has: 128 bytes."""
LEAST_PLANE: Final = 48
"""Pixels of a plane from which on it is read as it lies: with fewer, most of its last box is empty."""

P = TypeVar("P", bound=Problems)


def is_planar(problems: Problems) -> Any:
    """Whether x is read as it lies: 1x1 filters of every pixel, planes and filters whose rows begin at 16 bytes."""
    plane, unit = problems.h * problems.w, packing.run_elements(problems.dtype)
    return is_dense(problems) & (plane % unit == 0) & (problems.c % unit == 0) & (plane >= LEAST_PLANE)


def packs_weight(problems: Problems) -> Any:
    """Whether weight is packed with x; that of one tap lies as it has to where no channels are added."""
    return (problems.r * problems.s > 1) | (problems.c % packing.run_elements(problems.dtype) > 0)


def packed(problems: P) -> P:
    """The layers as they are multiplied where x is packed: channels innermost, in whole runs of 16 bytes."""
    return replace(problems, c=packing.packed_channels(problems), layout=Layout.NHWC)


def why_not(problem: ConvProblem) -> str | None:
    """Why the accelerator cannot read x, or None."""
    return limits.why_no_windows(problem)


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes of the packed copies.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    return 0 if is_planar(problem) else packing.workspace_bytes(problem, limit_bytes)


def least_workspace_bytes(problem: ConvProblem) -> int:
    """Bytes of the packed copies of one image at a time."""
    return 0 if is_planar(problem) else packing.least_workspace_bytes(problem)


def images_at_a_time(problem: ConvProblem, limit_bytes: int) -> int:
    """Images whose packed copies fit the limit; all where x is read as it lies.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    return problem.n if is_planar(problem) else packing.images_at_a_time(problem, limit_bytes)
