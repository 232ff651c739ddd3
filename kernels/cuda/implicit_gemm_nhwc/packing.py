"""The packed copies of x and weight: channels innermost, in whole runs of 16 bytes, for some images at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.parts import shapes
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.division import divider, magic
from conv_advisor.kernels.cuda.parts.shapes import Array, Problems, Shapes
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

RUN_BYTES: Final = 16
"""Bytes that one copy moves: channels are padded to whole runs."""
PACK_RUNS: Final = (1, 2, 4, 8)
"""Runs of channels in a tile of nhwc_pack.cu."""
PACK_PIXELS: Final = (8, 4)
"""Pixels of a channel that a thread of nhwc_pack.cu reads at once, at most 16 bytes, where planes are multiples."""
PACK_PIECES: Final = 512
"""Pieces of 16 bytes that the threads of nhwc_pack.cu read for a tile that goes through shared memory, at most."""
PACK_THREADS: Final = 256
_MAGIC_BITS: Final = 22
"""Of the quotients of small numbers in nhwc_pack.cu."""
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


def pack_pixels(problem: ConvProblem) -> int:
    """Pixels of x that a thread transposes in registers; 0: x goes through shared memory.

    It does where planes are no whole vectors, and where a pixel is one run, whose stores would fill half a sector.
    """
    if problem.layout is Layout.NHWC or pack_runs(problem) == 1:
        return 0
    plane, most = problem.h * problem.w, run_elements(problem.dtype)
    return next((pixels for pixels in PACK_PIXELS if pixels <= most and plane % pixels == 0), 0)


def pack_defines(problem: ConvProblem) -> dict[str, int]:
    """The definitions of nhwc_pack.cu for a problem."""
    rounds = problem.layout is Layout.NCHW and problem.dtype is DType.TF32
    return {"RUNS": pack_runs(problem), "PIXELS": pack_pixels(problem), "ROUNDS": int(rounds)}


def pack_definitions(dtype: DType) -> tuple[Defines, ...]:
    """The sets of definitions of nhwc_pack.cu."""
    return tuple(
        {"RUNS": runs, "PIXELS": pixels, "ROUNDS": rounds}
        for runs in PACK_RUNS
        for pixels in (0, *PACK_PIXELS)
        if pixels <= run_elements(dtype) and (runs > 1 or pixels == 0)
        for rounds in ((0, 1) if dtype is DType.TF32 else (0,))
        if rounds or pixels == 0 or dtype is not DType.TF32
    )


@dataclass(frozen=True)
class PackCut:
    """How a tensor is cut into tiles that go through the shared memory of nhwc_pack.cu.

    Parameters
    ----------
    images, plane : int
        Images, or filters, and the elements of a channel of one of them.
    parts : int
        Tiles that a plane is cut into.
    planes : int
        Planes of a channel in a tile; one where they are cut.
    pixels : int
        Elements of a plane in a tile.
    is_whole : bool
        Whether a tile has all channels of its images, so that they lie together.
    stride, pitch : int
        Elements from segment to segment, in memory and in shared memory.
    pieces : int
        Aligned 16 bytes that a segment lies in, at most.
    row, image_pitch : int
        Elements from channel to channel, and from image to image, in shared memory.
    """

    images: int
    plane: int
    parts: int
    planes: int
    pixels: int
    is_whole: bool
    stride: int
    pitch: int
    pieces: int
    row: int
    image_pitch: int

    @property
    def tiles(self) -> int:
        """Tiles of the same channels."""
        return ceil(self.images / self.planes) * self.parts

    def arguments(self) -> tuple[int, ...]:
        """The fields of nhwc_pack.cu's structure."""
        pairs = ceil(self.pixels / 2)
        return (
            *(self.images, self.plane, self.parts, *divider(self.parts), self.planes),
            *(self.pixels, pairs, magic(pairs, _MAGIC_BITS), int(self.is_whole), self.stride, self.pitch),
            *(self.pieces, magic(self.pieces, _MAGIC_BITS), self.row, self.image_pitch),
        )


def pack_cut(problem: ConvProblem, images: int, plane: int) -> PackCut:
    """The cut of ``images`` images of x, or of filters; where channels lie innermost, every pixel is an image."""
    if problem.layout is Layout.NHWC:
        images, plane = images * plane, 1
    run, runs = run_elements(problem.dtype), pack_runs(problem)
    channels, pairs = runs * run, PACK_THREADS // runs
    planes = min(pairs * 2 if plane == 1 else pairs // ceil(plane / 2), PACK_PIECES // (runs * plane + 1))
    parts = 1 if planes else ceil(plane / (PACK_PIECES // channels * run - run + 1))
    planes, pixels = max(planes, 1), ceil(plane / parts)
    is_whole = parts == 1 and problem.c <= channels
    stride = plane if parts > 1 else problem.c * plane
    length = pixels if parts > 1 else (planes * problem.c if is_whole else channels) * plane
    pitch = ceil(length / run) * run + run + stride % run
    return PackCut(
        *(images, plane, parts, planes, pixels, is_whole, stride, pitch, ceil((length + run - 1) / run)),
        row=pitch if parts > 1 else plane,
        image_pitch=stride if is_whole else pitch,
    )


def pack_tiles(problem: ConvProblem) -> int:
    """Tiles of channels."""
    runs: int = packed_channels(problem) // run_elements(problem.dtype)
    return ceil(runs / pack_runs(problem))


def pack_arguments(problem: ConvProblem, images: int, *, has_weight: bool) -> tuple[int, tuple[int, ...]]:
    """Blocks that pack ``images`` images, and weight, and the fields of the kernel's structure."""
    plane, tiles_c, pixels = problem.h * problem.w, pack_tiles(problem), pack_pixels(problem)
    x, weight = pack_cut(problem, images, plane), pack_cut(problem, problem.k, problem.r * problem.s)
    tiles = ceil(images * plane * pack_runs(problem) / (PACK_THREADS * pixels)) if pixels else x.tiles
    x_tiles = tiles * tiles_c
    blocks = x_tiles + (weight.tiles * tiles_c if has_weight else 0)
    sizes = (x_tiles, problem.c, packed_channels(problem), tiles_c, *divider(tiles_c), plane, *divider(plane))
    return blocks, (*sizes, *x.arguments(), *weight.arguments())


PACK_SOURCE: Final = Source("nhwc_pack", pack_definitions)
