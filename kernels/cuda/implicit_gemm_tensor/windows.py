"""Windows of many problems at once: each of those that differ in what a window depends on is looked for once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.implicit_gemm_tensor.cut import find_window
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes

_DEPENDS_ON: Final = ("h", "w", "r", "s", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w")


@dataclass(frozen=True)
class Windows:
    """Of tiles of so many pixels, an array of each.

    Parameters
    ----------
    positions : int64 array
        Copies of a channel.
    pitch : int64 array
        Elements from a channel to the next.
    tiles : int64 array
        Of an image.
    is_found : bool array
        Whether there is a window; true where none is needed.
    """

    positions: Array
    pitch: Array
    tiles: Array
    is_found: Array

    def take(self, rows: Array) -> Windows:
        """Those of some of the problems."""
        return Windows(self.positions[rows], self.pitch[rows], self.tiles[rows], self.is_found[rows])


def windows_of(problems: Shapes, bn: int, wanted: Array) -> Windows:
    """The windows of tiles of so many pixels, of those problems whose x comes in them."""
    found = np.zeros((3, len(problems)), np.int64)
    is_found = ~wanted
    rows = np.flatnonzero(wanted)
    some = problems.take(rows)
    kinds, place = np.unique(np.array([getattr(some, name) for name in _DEPENDS_ON]), axis=1, return_inverse=True)
    for number, values in enumerate(kinds.T.tolist()):
        shape = ConvProblem(n=1, c=1, k=1, dtype=problems.dtype, **dict(zip(_DEPENDS_ON, values, strict=True)))
        window = find_window(shape, bn)
        if window:
            mine = rows[place == number]
            tiles = window.tiles * ceil_div(shape.q, window.strip)
            found[:, mine] = [[window.positions], [window.channel_pitch], [tiles]]
            is_found[mine] = True
    positions, pitch, tiles = found
    return Windows(positions, pitch, tiles, is_found)
