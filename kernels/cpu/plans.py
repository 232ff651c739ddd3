"""How each CPU algorithm cuts a problem into blocks, and the scratch memory that takes; pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from conv_advisor.data.problem import ConvProblem, DType, Layout

BLOCK_BYTES: Final = 2**25
"""Scratch that one block of images (or filters, rows, tiles) aims at: about a last-level cache."""
BAND_BYTES: Final = 2**21
"""Scratch for the operands and the result of one matrix product, about two L2 caches; or as much as the weights take,
if that is more, since each band reads all weights again."""
LANES: Final = 32
"""Vector loops run over multiples of this many floats, so that none has a scalar remainder."""

_MOST_SLOTS: Final = 16
_ITEMSIZE_BYTES: Final = {"float32": 4, "complex64": 8, "int64": 8}


@dataclass(frozen=True)
class Buffer:
    """One scratch array."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * _ITEMSIZE_BYTES[self.dtype]


@dataclass(frozen=True)
class Plan:
    """The blocks of one algorithm on one problem.

    Parameters
    ----------
    images : int
        Images in a block.
    buffers : dict of str to Buffer
        The scratch arrays that `prepare` allocates.
    rows : int
        Rows of outputs (GEMM) or of tiles (Winograd) in a block; other algorithms take all rows.
    filters : int
        Filters in a block (FFT); other algorithms take all filters.
    library_bytes : int
        Memory that SciPy allocates in addition to the buffers while it transforms.
    """

    images: int
    buffers: dict[str, Buffer]
    rows: int = 0
    filters: int = 0
    library_bytes: int = 0

    @property
    def workspace_bytes(self) -> int:
        """All scratch memory together."""
        return sum(buffer.bytes for buffer in self.buffers.values()) + self.library_bytes


def is_narrow(problem: ConvProblem) -> bool:
    """Whether operands have 16 bits; they are then widened to float32, and results rounded, block by block."""
    return problem.dtype.itemsize_bytes == 2


def is_plain(problem: ConvProblem) -> bool:
    """Whether operands are float32 in NCHW already."""
    return problem.dtype in (DType.FLOAT32, DType.TF32) and problem.layout is Layout.NCHW


def is_pointwise(problem: ConvProblem) -> bool:
    """Whether x itself is the matrix that im2col would make."""
    is_whole = (problem.padded_h, problem.padded_w) == (problem.h, problem.w)
    is_dense = problem.r == problem.s == problem.stride_h == problem.stride_w == 1
    return is_whole and is_dense and is_plain(problem)


def split_planes(problem: ConvProblem) -> tuple[int, int]:
    """Height and width of the planes into which the direct kernel splits the padded input, one per phase of the
    stride."""
    return (
        problem.p + (problem.r - 1) * problem.dilation_h // problem.stride_h,
        problem.q + (problem.s - 1) * problem.dilation_w // problem.stride_w,
    )


def winograd_tiles(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of 2×2 output tiles; each row has one extra column, which is computed and dropped."""
    return -(-problem.p // 2), -(-problem.q // 2) + 1


def fft_size(problem: ConvProblem) -> tuple[int, int]:
    """Height and width of the transforms: the least fast sizes at which no wrapped product reaches an output."""
    height = max(
        problem.h + max(problem.pad_h, problem.pad_h_end),
        problem.dilation_h * (problem.r - 1) + 1,
        problem.padded_h - problem.dilation_h * (problem.r - 1),
    )
    width = max(
        problem.w + max(problem.pad_w, problem.pad_w_end),
        problem.dilation_w * (problem.s - 1) + 1,
        problem.padded_w - problem.dilation_w * (problem.s - 1),
    )
    return _next_smooth(height), _next_smooth(width)


def direct(problem: ConvProblem) -> Plan:
    """Padded planes of a block of images, an offset into them for each product, and widened weights and outputs."""
    height, width = split_planes(problem)
    image = problem.c * problem.stride_h * problem.stride_w * height * width
    images = _fit(problem.n, BLOCK_BYTES, 4 * image)
    buffers = {"planes": Buffer((images * image + LANES,)), "offsets": Buffer((problem.gemm_k,), "int64")}
    if not is_plain(problem):
        buffers["weight"] = Buffer((problem.k, problem.gemm_k))
    if is_narrow(problem):
        buffers["y"] = Buffer((images, problem.k, problem.p, problem.q))
    return Plan(images, buffers)


def gemm(problem: ConvProblem) -> Plan:
    """Columns of a band of output rows of one image, and their products where BLAS cannot write them to y directly.

    Both are held for as many bands as threads may work on at a time.
    """
    if is_pointwise(problem):
        return Plan(1, {}, rows=problem.p)
    row = (problem.c * problem.r * problem.s + problem.k) * problem.q
    rows = _fit(problem.p, max(BAND_BYTES, 4 * problem.k * problem.gemm_k), 4 * row)
    slots = _fit(min(_MOST_SLOTS, -(-problem.p // rows)), BLOCK_BYTES, 4 * row * rows)
    buffers = {
        "padded": Buffer((problem.c, problem.padded_h, problem.padded_w)),
        "columns": Buffer((slots, problem.c * problem.r * problem.s * rows * problem.q)),
    }
    if not is_plain(problem):
        buffers["weight"] = Buffer((problem.groups, problem.gemm_n, problem.gemm_k))
        buffers["product"] = Buffer((slots, problem.k * rows * problem.q))
    return Plan(1, buffers, rows=rows)


def fft(problem: ConvProblem) -> Plan:
    """Padded planes and spectra of a block of images and of a block of filters, and the spectra of their outputs."""
    height, width = fft_size(problem)
    real, spectrum = 4 * height * width, 8 * height * (width // 2 + 1)
    images = _fit(problem.n, BLOCK_BYTES, problem.c * (real + spectrum))
    # SciPy copies the spectra before the inverse transform.
    output = images * (2 * spectrum + real)
    filters = _fit(problem.k, BLOCK_BYTES, problem.c * (real + spectrum) + output)
    buffers = {
        "x": Buffer((images, problem.c, height, width)),
        "weight": Buffer((filters, problem.c, height, width)),
        "y": Buffer((images, filters, height, width // 2 + 1), "complex64"),
    }
    library_bytes = (images + filters) * problem.c * spectrum + images * filters * (spectrum + real)
    return Plan(images, buffers, filters=filters, library_bytes=library_bytes)


def winograd(problem: ConvProblem) -> Plan:
    """Transformed weights, and the transformed tiles and products of a band of tile rows or of several images."""
    rows, columns = winograd_tiles(problem)
    row = 4 * 16 * (problem.c + problem.k) * columns
    budget = max(BAND_BYTES, 4 * 16 * problem.k * problem.c)
    band = _fit(rows, budget, row)
    images = _fit(problem.n, budget, row * rows) if band == rows else 1
    tiles = images * band * columns
    image = problem.c * 4 * (rows + 1) * columns
    buffers = {
        "planes": Buffer((images * image + LANES,)),
        "weight": Buffer((16, problem.k, problem.c)),
        "tiles": Buffer((16, problem.c, tiles)),
        "products": Buffer((16, problem.k, tiles)),
    }
    if is_narrow(problem):
        buffers["taps"] = Buffer((problem.k, problem.c, 3, 3))
        buffers["y"] = Buffer((images, problem.k, problem.p, problem.q))
    return Plan(images, buffers, rows=band)


def _fit(count: int, budget_bytes: int, item_bytes: int) -> int:
    """How many of `count` items of equal size fit the budget; at least one."""
    return max(1, min(count, budget_bytes // item_bytes))


def _next_smooth(least: int) -> int:
    size = least
    while not _is_smooth(size):
        size += 1
    return size


def _is_smooth(size: int) -> bool:
    for factor in (2, 3, 5):
        while size % factor == 0:
            size //= factor
    return size == 1
