"""How Winograd with tiles of 2x2 outputs cuts a problem: its tiles, and the images of a chunk."""

from __future__ import annotations

from math import ceil
from typing import Final

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.chunks import BLAS_WORKSPACE_BYTES, ChunkPlan, plan_images
from conv_advisor.kernels.cuda.parts.source import BorneSpill, Source

_FUSED: Final = (
    "the bound of two blocks leaves 128 registers, of which Hopper's code needs every one; the tiles are sized for "
    "Hopper, where nothing spills; no such device has been measured"
)
SOURCE: Final = Source(
    "winograd",
    spills=(BorneSpill("winograd_fused", "sm_80", 40, _FUSED), BorneSpill("winograd_fused", "sm_100", 28, _FUSED)),
)


def winograd_tiles(problem: ConvProblem) -> int:
    """Output tiles of 2x2 in one image."""
    return ceil(problem.p / 2) * ceil(problem.q / 2)


def plan_winograd(problem: ConvProblem, limit_bytes: int) -> ChunkPlan:
    """Images whose transforms fit the limit together with those of the filters and cuBLAS's own workspace.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    fixed_bytes = BLAS_WORKSPACE_BYTES + 4 * 16 * problem.k * problem.c
    elements = 16 * winograd_tiles(problem) * (problem.c + problem.k)
    return plan_images(problem.n, fixed_bytes, 4 * elements, elements, limit_bytes)


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes of cuBLAS's workspace, of the filters' transforms, and of the transforms of a chunk of images."""
    return plan_winograd(problem, limit_bytes).workspace_bytes
