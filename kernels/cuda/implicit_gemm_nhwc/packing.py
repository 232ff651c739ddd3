"""The packed copies of x and weight: channels innermost, in whole runs of 16 bytes, for some images at a time."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts import shapes
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

RUN_BYTES: Final = 16
"""Bytes that one copy moves: channels are padded to whole runs."""
PACK_RUNS: Final = (1, 2, 4, 8)
"""Runs of channels in a tile of nhwc_pack.cu."""
PACKED_AT_A_TIME: Final = 512
"""Runs in a tile of nhwc_pack.cu, over all its positions."""
PACK_THREADS: Final = 256
PACKED_ALIGNMENT: Final = 256


def run_elements(dtype: DType) -> int:
    """Elements of 16 bytes."""
    return RUN_BYTES // dtype.itemsize_bytes


def packed_channels(problems: Problems) -> Any:
    """Channels of the packed copies, rounded up to whole runs."""
    run = run_elements(problems.dtype)
    return ceil_div(problems.c, run) * run


def is_packed(problems: Problems) -> Any:
    """Whether x and weight are packed before they are multiplied: always in nchw, else where channels need padding."""
    return (problems.c % run_elements(problems.dtype) > 0) | (problems.layout is Layout.NCHW)


def by_patches(problem: ConvProblem) -> ConvProblem:
    """The same layer by its patches where channels need padding: patches need less padding, or none.

    For example, three channels of 16 pixels are six whole runs.
    """
    return shapes.by_patches(problem) if is_packed(problem) else problem


def weight_bytes(problems: Problems) -> Any:
    """Bytes of the packed filters, padded so that x after them is aligned."""
    elements = problems.k * problems.r * problems.s * packed_channels(problems)
    return ceil_div(elements * problems.dtype.itemsize_bytes, PACKED_ALIGNMENT) * PACKED_ALIGNMENT


def image_bytes(problems: Problems) -> Any:
    """Bytes of a packed image."""
    return problems.h * problems.w * packed_channels(problems) * problems.dtype.itemsize_bytes


def least_workspace_bytes(problem: ConvProblem) -> int:
    """Bytes of the packed copies of one image at a time."""
    return _least_bytes(by_patches(problem))


def _least_bytes(problem: ConvProblem) -> int:
    return int(weight_bytes(problem) + image_bytes(problem)) if is_packed(problem) else 0


def images_at_a_time(problem: ConvProblem, limit_bytes: int) -> int:
    """Images whose packed copies fit the limit together with the packed filters; all where nothing is packed.

    Raises
    ------
    WorkspaceExceeded
        Not even one image fits.
    """
    if not is_packed(problem):
        return problem.n
    limit_bytes = _packed_limit(problem, limit_bytes)
    if (least_bytes := _least_bytes(problem)) > limit_bytes:
        raise WorkspaceExceeded(least_bytes, limit_bytes)
    return int(_equal_chunks(problem, (limit_bytes - weight_bytes(problem)) // image_bytes(problem)))


def _packed_limit(problems: Problems, limit_bytes: int) -> int:
    """Most bytes of the packed copies, since the kernels index their elements with 32-bit integers."""
    return min(limit_bytes, MAX_ELEMENTS * problems.dtype.itemsize_bytes)


def _equal_chunks(problems: Problems, fitting: Any) -> Any:
    """Images of equal chunks: fewer at a time than would fit, but no small last chunk."""
    return ceil_div(problems.n, ceil_div(problems.n, fitting))


def images_of(problems: Shapes) -> Array:
    """`images_at_a_time` for many problems under the default limit; 0 where not even one image fits."""
    limit_bytes = _packed_limit(problems, DEFAULT_WORKSPACE_LIMIT_BYTES)
    fitting = (limit_bytes - weight_bytes(problems)) // image_bytes(problems)
    chunks = np.where(fitting > 0, _equal_chunks(problems, np.maximum(fitting, 1)), 0)
    return np.where(is_packed(problems), chunks, problems.n)


def workspace_bytes(problem: ConvProblem, limit_bytes: int) -> int:
    """Bytes of the packed copies."""
    problem = by_patches(problem)
    if not is_packed(problem):
        return 0
    return int(weight_bytes(problem) + images_at_a_time(problem, limit_bytes) * image_bytes(problem))


def pack_runs(problem: ConvProblem) -> int:
    """Runs of channels in a tile: the least of `PACK_RUNS` that holds all runs, so that no thread is idle."""
    runs = packed_channels(problem) // run_elements(problem.dtype)
    return next((count for count in PACK_RUNS if count >= runs), PACK_RUNS[-1])


def pack_tiles(problem: ConvProblem, positions: int) -> int:
    """Blocks that pack all channels of ``positions`` positions."""
    runs: int = packed_channels(problem) // run_elements(problem.dtype)
    return ceil(positions * pack_runs(problem) / PACKED_AT_A_TIME) * ceil(runs / pack_runs(problem))


def pack_defines(problem: ConvProblem) -> dict[str, int]:
    """The definitions of nhwc_pack.cu for a problem."""
    return {"RUNS": pack_runs(problem), "IS_NHWC": int(problem.layout is Layout.NHWC)}


def pack_definitions(_dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of nhwc_pack.cu."""
    return tuple({"RUNS": runs, "IS_NHWC": is_nhwc} for runs in PACK_RUNS for is_nhwc in (0, 1))


PACK_SOURCE: Final = Source("nhwc_pack", pack_definitions)
