"""Descriptions of x, weight and y for the tensor memory accelerator: pure arithmetic, innermost dimension first."""

from __future__ import annotations

from dataclasses import dataclass

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.implicit_gemm_tma.limits import upper_corner
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import BOX, BOX_ROW_BYTES, SPLIT_BOX, row_bytes_of
from conv_advisor.kernels.cuda.parts.shapes import is_dense


@dataclass(frozen=True)
class TiledMap:
    """A tensor that is read or written in boxes.

    Parameters
    ----------
    sizes : tuple of int
    strides_bytes : tuple of int
        Strides of all dimensions but the innermost.
    box : tuple of int
    row_bytes : int
        Span of the swizzle.
    """

    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    row_bytes: int


@dataclass(frozen=True)
class Im2colMap:
    """An image tensor (C, W, H, N) that is read along the pixels of a convolution's output.

    Parameters
    ----------
    sizes, strides_bytes : tuple of int
        As in `TiledMap`.
    lower, upper : tuple of int
        Corners of the box of the first taps of all outputs, as columns and rows: `lower` from the first pixel of x,
        `upper` from the last; negative offsets point to earlier columns and rows.
    steps : tuple of int
        Columns and rows between the taps of neighbouring outputs.
    channels, pixels : int
        Channels and pixels of a box.
    row_bytes : int
    """

    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    lower: tuple[int, int]
    upper: tuple[int, int]
    steps: tuple[int, int]
    channels: int
    pixels: int
    row_bytes: int


Map = TiledMap | Im2colMap


def x_map(problem: ConvProblem, pixels: int) -> Map:
    """The map of x in boxes of ``pixels``: a matrix where every pixel is one of y, else the pixels of the first tap."""
    row_bytes = row_bytes_of(problem)
    channels, itemsize = row_bytes // problem.dtype.itemsize_bytes, problem.dtype.itemsize_bytes
    row = problem.c * itemsize
    if is_dense(problem):
        return TiledMap((problem.c, pixels_of(problem)), (row,), (channels, pixels), row_bytes)
    return Im2colMap(
        sizes=(problem.c, problem.w, problem.h, problem.n),
        strides_bytes=(row, row * problem.w, row * problem.w * problem.h),
        lower=(-problem.pad_w, -problem.pad_h),
        upper=upper_corner(problem),
        steps=(problem.stride_w, problem.stride_h),
        channels=channels,
        pixels=pixels,
        row_bytes=row_bytes,
    )


def weight_map(problem: ConvProblem, filters: int) -> TiledMap:
    """The map of weight: channels, taps and ``filters`` filters, at most the problem's filters rounded up to eights.

    A box that reaches beyond the last channel is not filled with channels of the next tap.
    """
    row_bytes, row = row_bytes_of(problem), problem.c * problem.dtype.itemsize_bytes
    taps = problem.r * problem.s
    box = (row_bytes // problem.dtype.itemsize_bytes, 1, min(filters, -(-problem.k // 8) * 8))
    return TiledMap((problem.c, taps, problem.k), (row, row * taps), box, row_bytes)


def y_map(
    problem: ConvProblem, row_bytes: int = BOX_ROW_BYTES, channels: int | None = None, *, is_split: bool
) -> TiledMap:
    """The map of y, a matrix of pixels and filters, which also serves the residual; y may be some of more channels."""
    itemsize = problem.dtype.itemsize_bytes
    box = (row_bytes // itemsize, SPLIT_BOX if is_split else BOX)
    return TiledMap((problem.k, pixels_of(problem)), ((channels or problem.k) * itemsize,), box, row_bytes)


def pixels_of(problem: ConvProblem) -> int:
    """Pixels of all images of y."""
    return problem.n * problem.p * problem.q
