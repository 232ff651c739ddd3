"""The windows of many problems, computed once for all problems that agree in the sizes a window depends on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tensor.cut import find_window
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes

_DEPENDS_ON: Final = (
    *("h", "w", "r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w"),
    *("pad_h", "pad_w", "pad_h_end", "pad_w_end"),
)
_MOST_KEPT: Final = 2**14
"""Windows that are cached: the layers of a network share most of theirs."""


@dataclass(frozen=True)
class Windows:
    """The windows of tiles of given numbers of pixels, arrays of shape (n_tiles, 1, n_problems).

    Parameters
    ----------
    positions : int64 array
        Copies of a channel.
    pitch : int64 array
        Elements from one channel to the next.
    tiles : int64 array
        Tiles of an image.
    is_found : bool array
        Whether there is a window; true where none is needed.
    """

    positions: Array
    pitch: Array
    tiles: Array
    is_found: Array

    def take(self, rows: Array) -> Windows:
        """The windows of some of the problems."""
        return Windows(*(values[..., rows] for values in (self.positions, self.pitch, self.tiles, self.is_found)))


def windows_of(problems: Shapes, bn: Any, is_windowed: Array) -> Windows:
    """The windows of tiles of ``bn`` pixels, for those problems whose x is loaded in windows.

    Parameters
    ----------
    problems : Shapes
    bn : int array of shape (n_tiles, 1, 1)
    is_windowed : bool array of shape (n_problems,)
        Whether a problem's x is loaded in windows.
    """
    rows = np.flatnonzero(is_windowed)
    sizes = np.array([getattr(problems, name)[rows] for name in _DEPENDS_ON])
    kinds, place = np.unique(sizes, axis=1, return_inverse=True) if len(rows) > 1 else (sizes, np.zeros(1, np.int64))
    values = np.zeros((4, len(bn), 1, len(problems)), np.int64)
    values[3] = ~is_windowed
    for number, kind in enumerate(kinds.T.tolist() if len(rows) else ()):
        of_tiles = [_measured(problems.dtype, tuple(kind), pixels) for pixels in bn.ravel().tolist()]
        values[:, :, 0, rows[place == number]] = np.array(of_tiles).T[:, :, None]
    return Windows(values[0], values[1], values[2], values[3] > 0)


@lru_cache(_MOST_KEPT)
def _measured(dtype: DType, sizes: tuple[int, ...], bn: int) -> tuple[int, int, int, int]:
    """Positions, pitch and tiles of a window, and 1 if there is one; zeros if there is none."""
    changes: dict[str, Any] = dict(zip(_DEPENDS_ON, sizes, strict=True))
    shape = ConvProblem(n=1, c=1, k=1, dtype=dtype, **changes)
    window = find_window(shape, bn)
    if window is None:
        return 0, 0, 0, 0
    return window.positions, window.channel_pitch, window.tiles * ceil_div(shape.q, window.strip), 1
