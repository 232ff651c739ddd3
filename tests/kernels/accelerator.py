"""The tensor memory accelerator in NumPy: what a tensor map reads, who encodes it, and the shapes whose edges count."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_tma.maps import Im2colMap, TiledMap

Array = np.ndarray[Any, Any]

GPU: Final = Device(id="gpu", name="GPU", kind="cuda", capability="9.0", processors=132)
"""What plans are asked about."""

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "dense": {"n": 2, "c": 64, "h": 16, "w": 16, "k": 128, "r": 1, "s": 1},
    "dense_small": {"n": 1, "c": 8, "h": 3, "w": 3, "k": 8, "r": 1, "s": 1},
    "dense_deep": {"n": 1, "c": 832, "h": 7, "w": 7, "k": 40, "r": 1, "s": 1},
    "dense_tails": {"n": 3, "c": 72, "h": 13, "w": 11, "k": 200, "r": 1, "s": 1},
    "dense_wide": {"n": 8, "c": 256, "h": 28, "w": 28, "k": 512, "r": 1, "s": 1},
    "dense_waves": {"n": 32, "c": 64, "h": 56, "w": 56, "k": 256, "r": 1, "s": 1},
    "pointwise_stride_2": {"n": 2, "c": 64, "h": 14, "w": 14, "k": 64, "r": 1, "s": 1, "stride_h": 2, "stride_w": 2},
    "pointwise_stride_2_odd": {"n": 3, "c": 16, "h": 15, "w": 13, "k": 8, "r": 1, "s": 1, "stride_h": 2, "stride_w": 2},
    "pointwise_padded": {"n": 2, "c": 24, "h": 9, "w": 7, "k": 16, "r": 1, "s": 1, "pad_h": 1, "pad_w": 2},
    "same_3x3": {"n": 2, "c": 64, "h": 16, "w": 16, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_few": {"n": 2, "c": 8, "h": 13, "w": 13, "k": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_c32": {"n": 2, "c": 32, "h": 28, "w": 28, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_c96": {"n": 6, "c": 96, "h": 28, "w": 28, "k": 72, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_tails": {"n": 5, "c": 136, "h": 14, "w": 14, "k": 72, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_wide": {"n": 16, "c": 128, "h": 28, "w": 28, "k": 256, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_waves": {"n": 32, "c": 64, "h": 56, "w": 56, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "valid_3x3": {"n": 3, "c": 16, "h": 9, "w": 9, "k": 24, "r": 3, "s": 3},
    "same_5x5": {"n": 1, "c": 16, "h": 28, "w": 28, "k": 32, "r": 5, "s": 5, "pad_h": 2, "pad_w": 2},
    "same_7x7": {"n": 1, "c": 64, "h": 20, "w": 20, "k": 8, "r": 7, "s": 7, "pad_h": 3, "pad_w": 3},
    "filter_is_input": {"n": 9, "c": 16, "h": 4, "w": 4, "k": 40, "r": 4, "s": 4},
    "even_filter": {"n": 1, "c": 8, "h": 10, "w": 10, "k": 16, "r": 2, "s": 2, "pad_h": 1, "pad_w": 1},
    "wide_pad": {"n": 1, "c": 8, "h": 6, "w": 6, "k": 8, "r": 3, "s": 3, "pad_h": 3, "pad_w": 3},
    "uneven_pad": {"n": 2, "c": 64, "h": 14, "w": 15, "k": 64, "r": 3, "s": 3, "stride_h": 2, "stride_w": 2}
    | {"pad_h_end": 1, "pad_w_end": 1},
    "uneven_pad_start": {"n": 2, "c": 16, "h": 9, "w": 7, "k": 16, "r": 3, "s": 5, "pad_h": 2, "pad_w": 1}
    | {"pad_h_end": 0, "pad_w_end": 4},
    "rectangle": {"n": 2, "c": 64, "h": 11, "w": 17, "k": 64, "r": 3, "s": 5, "pad_h": 1, "pad_w": 2},
    "row": {"n": 1, "c": 64, "h": 1, "w": 333, "k": 64, "r": 1, "s": 3, "pad_w": 1},
    "column": {"n": 2, "c": 64, "h": 33, "w": 1, "k": 64, "r": 7, "s": 1, "pad_h": 3},
    "one_pixel_3x3": {"n": 300, "c": 8, "h": 1, "w": 1, "k": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "batch_wraps": {"n": 37, "c": 64, "h": 6, "w": 6, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "stride_2": {"n": 2, "c": 64, "h": 15, "w": 15, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    | {"stride_h": 2, "stride_w": 2},
    "stride_2_even": {"n": 3, "c": 64, "h": 14, "w": 16, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    | {"stride_h": 2, "stride_w": 2},
    "stride_3_2": {
        "n": 2,
        "c": 16,
        "h": 17,
        "w": 19,
        "k": 16,
        "r": 5,
        "s": 3,
        "pad_h": 2,
        "stride_h": 3,
        "stride_w": 2,
    },
    "stride_7": {"n": 2, "c": 8, "h": 30, "w": 29, "k": 16, "r": 7, "s": 7, "stride_h": 7, "stride_w": 7},
    "stem": {"n": 2, "c": 8, "h": 37, "w": 37, "k": 64, "r": 7, "s": 7, "pad_h": 3, "pad_w": 3}
    | {"stride_h": 2, "stride_w": 2},
    "dilation_2": {"n": 1, "c": 64, "h": 17, "w": 17, "k": 64, "r": 3, "s": 3, "pad_h": 2, "pad_w": 2}
    | {"dilation_h": 2, "dilation_w": 2},
    "dilation_18": {"n": 1, "c": 64, "h": 33, "w": 33, "k": 64, "r": 3, "s": 3, "pad_h": 18, "pad_w": 18}
    | {"dilation_h": 18, "dilation_w": 18},
    "dilation_36_valid": {"n": 2, "c": 8, "h": 80, "w": 76, "k": 8, "r": 3, "s": 3, "dilation_h": 36, "dilation_w": 36},
    "taps_128": {"n": 1, "c": 8, "h": 1, "w": 400, "k": 8, "r": 1, "s": 128, "pad_w": 64},
}
"""Channels and filters in eights, no groups."""

FOURS: Final[dict[str, dict[str, Any]]] = {
    "dense_fours": {"n": 3, "c": 60, "h": 13, "w": 11, "k": 132, "r": 1, "s": 1},
    "same_3x3_c48": {"n": 6, "c": 48, "h": 28, "w": 28, "k": 72, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "dense_least": {"n": 1, "c": 4, "h": 3, "w": 3, "k": 4, "r": 1, "s": 1},
    "same_3x3_fours": {"n": 5, "c": 36, "h": 14, "w": 14, "k": 68, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_least": {"n": 2, "c": 4, "h": 13, "w": 13, "k": 4, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "stem_4": {"n": 2, "c": 4, "h": 37, "w": 37, "k": 64, "r": 7, "s": 7, "pad_h": 3, "pad_w": 3}
    | {"stride_h": 2, "stride_w": 2},
    "dilation_fours": {"n": 1, "c": 20, "h": 17, "w": 17, "k": 28, "r": 3, "s": 3, "pad_h": 2, "pad_w": 2}
    | {"dilation_h": 2, "dilation_w": 2},
}
"""Channels and filters in fours, which only float32 may have."""


def problem_of(sizes: dict[str, Any], dtype: DType = DType.FLOAT16) -> ConvProblem:
    """A layer of these sizes with channels last."""
    return ConvProblem(**sizes, dtype=dtype, layout=Layout.NHWC)


def shapes_of(dtype: DType) -> dict[str, dict[str, Any]]:
    """What is to be right with this precision."""
    return SHAPES | FOURS if dtype.itemsize_bytes == 4 else SHAPES


def box_of(described: TiledMap, tensor: Array, *first: int) -> Array:
    """The box that begins at these coordinates, the innermost first: zeros outside the tensor.

    Parameters
    ----------
    described : TiledMap
    tensor : array
        In memory order, the innermost dimension last.
    *first : int
    """
    laid_out = tensor.reshape(described.sizes[::-1])
    box = np.zeros(described.box[::-1], tensor.dtype)
    if any(at >= size for at, size in zip(first, described.sizes, strict=True)):
        return box
    inside = laid_out[tuple(slice(at, at + size) for at, size in zip(first[::-1], described.box[::-1], strict=True))]
    box[tuple(slice(size) for size in inside.shape)] = inside
    return box


def pixels_of(described: Im2colMap, tensor: Array, first: tuple[int, int, int, int], tap: tuple[int, int]) -> Array:
    """So many pixels from (c, w, h, n) on, each moved by the tap (columns, rows): zeros outside the tensor."""
    _, width, height, images = described.sizes
    c, *at, n = first
    columns, rows = (
        (size - 1 + upper - lower) // step + 1
        for size, lower, upper, step in zip(
            (width, height), described.lower, described.upper, described.steps, strict=True
        )
    )
    begun = [(place - lower) // step for place, lower, step in zip(at, described.lower, described.steps, strict=True)]
    column = begun[0] + np.arange(described.pixels)
    row = begun[1] + column // columns
    at_n = n + row // rows
    at_w = described.lower[0] + column % columns * described.steps[0] + tap[0]
    at_h = described.lower[1] + row % rows * described.steps[1] + tap[1]
    is_inside = (at_w >= 0) & (at_w < width) & (at_h >= 0) & (at_h < height) & (at_n < images)
    pixels = np.zeros((described.pixels, described.channels), tensor.dtype)
    channels = tensor[at_n[is_inside], at_h[is_inside], at_w[is_inside], c : c + described.channels]
    pixels[is_inside, : channels.shape[1]] = channels
    return pixels


class FakeDriver:
    """Keeps what it is asked to encode, and writes ones."""

    def __init__(self, version: int = 13000) -> None:
        self.version = version
        self.asked: list[tuple[Any, ...]] = []

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802 - the driver's name
        version._obj.value = self.version
        return 0

    def cuTensorMapEncodeTiled(self, target: Any, *arguments: Any) -> int:  # noqa: N802 - the driver's name
        return self._encode("tiled", target, arguments)

    def cuTensorMapEncodeIm2col(self, target: Any, *arguments: Any) -> int:  # noqa: N802 - the driver's name
        return self._encode("im2col", target, arguments)

    def _encode(self, kind: str, target: Any, arguments: tuple[Any, ...]) -> int:
        assert ctypes.addressof(target._obj) % 64 == 0
        target._obj[:] = [2**64 - 1] * 16
        self.asked.append((kind, *(list(each) if isinstance(each, ctypes.Array) else each for each in arguments)))
        return 0
