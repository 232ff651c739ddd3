"""What the tensor memory accelerator is told of x, weight and y: pure arithmetic, the innermost dimension first."""

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
        Of all dimensions but the innermost.
    box : tuple of int
    row_bytes : int
        The swizzle's span.
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
        As of `TiledMap`.
    lower, upper : tuple of int
        Columns and rows by which the first taps of all outputs lie before the first pixel, and behind the last; a
        negative number lies inside.
    steps : tuple of int
        Columns and rows between the taps of neighbouring outputs.
    channels, pixels : int
        That a box has.
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
    """A matrix where every pixel is one of y; else the pixels that the first tap meets: boxes of so many."""
    row_bytes = row_bytes_of(problem)
    channels, item = row_bytes // problem.dtype.itemsize_bytes, problem.dtype.itemsize_bytes
    row = problem.c * item
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
    """Channels, taps and so many filters, in eights no more than there are.

    A box that ends behind the last channel is not filled with the next tap's.
    """
    row_bytes, row = row_bytes_of(problem), problem.c * problem.dtype.itemsize_bytes
    taps = problem.r * problem.s
    box = (row_bytes // problem.dtype.itemsize_bytes, 1, min(filters, -(-problem.k // 8) * 8))
    return TiledMap((problem.c, taps, problem.k), (row, row * taps), box, row_bytes)


def y_map(problem: ConvProblem, row_bytes: int = BOX_ROW_BYTES, *, is_split: bool) -> TiledMap:
    """A matrix of pixels and filters; that of the residual too."""
    item = problem.dtype.itemsize_bytes
    box = (row_bytes // item, SPLIT_BOX if is_split else BOX)
    return TiledMap((problem.k, pixels_of(problem)), (problem.k * item,), box, row_bytes)


def pixels_of(problem: ConvProblem) -> int:
    """Pixels of all images of y."""
    return problem.n * problem.p * problem.q
