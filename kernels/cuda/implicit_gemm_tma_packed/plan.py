"""The packed layer, the scratch memory of a chunk of images, and how its outputs are unpacked: pure arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.implicit_gemm_tma import limits
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.chunks import plan_images
from conv_advisor.kernels.cuda.parts.division import divider
from conv_advisor.kernels.cuda.parts.source import Defines, Source

UNPACK_THREADS: Final = 256
UNPACK_FILTERS: Final = 32
UNPACK_PIXELS: Final = 64
"""Filters and pixels of a tile of nhwc_unpack.cu."""
UNITS: Final = (4, 1)
"""Pixels that a thread of nhwc_unpack.cu stores together."""


def packed(problem: ConvProblem, images: int) -> ConvProblem:
    """``images`` images of the layer as they are multiplied: channels innermost, in whole runs of 16 bytes."""
    channels = packing.packed_channels(problem)
    return replace(problem, n=images, c=channels, layout=Layout.NHWC, epilogue=PLAIN)


def pitch_of(problem: ConvProblem) -> int:
    """Elements from pixel to pixel of the outputs before they are unpacked: filters, in whole runs of 16 bytes."""
    run = packing.run_elements(problem.dtype)
    return int(ceil_div(problem.k, run)) * run


def why_not(problem: ConvProblem) -> str | None:
    """Why one image cannot be packed, or the accelerator cannot read the packed x; None where both can be."""
    elements = least_workspace_bytes(problem) // problem.dtype.itemsize_bytes
    if elements > MAX_ELEMENTS:
        return f"the packed copies of one image have {elements} elements, above {MAX_ELEMENTS}"
    reason = limits.why_no_windows(problem)
    if reason is None or problem.groups > 1:
        return reason
    return limits.why_no_windows(limits.by_patches(packed(problem, 1)))


def scratch_bytes(problem: ConvProblem, images: int) -> tuple[int, int, int]:
    """Bytes of the packed filters, and of the packed x and the outputs with channels innermost of ``images`` images."""
    of_output = problem.p * problem.q * pitch_of(problem) * problem.dtype.itemsize_bytes
    return int(packing.weight_bytes(problem)), images * int(packing.image_bytes(problem)), images * of_output


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes of all scratch memory.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    return sum(scratch_bytes(problem, images_at_a_time(problem, limit_bytes)))


def least_workspace_bytes(problem: ConvProblem) -> int:
    """Bytes of the scratch memory of one image at a time."""
    return sum(scratch_bytes(problem, 1))


def images_at_a_time(problem: ConvProblem, limit_bytes: int) -> int:
    """Images whose scratch memory fits the limit, in chunks of equal size.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    # The kernels index the elements of scratch memory with 32-bit integers; `why_not` refuses what needs more.
    limit_bytes = min(limit_bytes, MAX_ELEMENTS * problem.dtype.itemsize_bytes)
    of_weight, *of_image = scratch_bytes(problem, 1)
    return plan_images(problem.n, of_weight, sum(of_image), 1, limit_bytes).images


def unpack_defines(problem: ConvProblem) -> Defines:
    """The definitions of nhwc_unpack.cu for a problem."""
    return {"UNIT": next(unit for unit in UNITS if problem.p * problem.q % unit == 0)}


def unpack_definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of nhwc_unpack.cu."""
    return tuple({"UNIT": unit} for unit in UNITS) if dtype.itemsize_bytes == 4 else ()


def unpack_arguments(problem: ConvProblem, images: int) -> tuple[int, tuple[int, ...]]:
    """Blocks that unpack ``images`` images, and the fields of the kernel's structure."""
    plane = problem.p * problem.q
    tiles_f, tiles_p = ceil_div(problem.k, UNPACK_FILTERS), ceil_div(images * plane, UNPACK_PIXELS)
    sizes = (problem.k, pitch_of(problem), images * plane, tiles_f, *divider(tiles_f), plane, *divider(plane))
    return tiles_f * tiles_p, sizes


UNPACK_SOURCE: Final = Source("nhwc_unpack", unpack_definitions)
