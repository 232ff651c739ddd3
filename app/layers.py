"""The layers of a list as problems: those that are written plainly all at once, the others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from app.asked import AskedLayer
from app.schemas import SIZES, LayerParameters, named, problem_from
from data import table
from data.errors import InvalidInput
from data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout

Layer = str | AskedLayer | LayerParameters

_SIZES_OF: Final = attrgetter(*SIZES)
_MORE_OF: Final = attrgetter(
    *("stride_h", "stride_w", "stride", "pad_h", "pad_w", "pad", "dilation_h", "dilation_w", "dilation", "groups")
)
_KINDS: Final = {"dtype", "layout"}
_NONE: Final = (None,) * 10
_UNSOUND: Final[table.Row] = (0,) * len(table.SIZES)
_DTYPES: Final = {str(dtype): dtype for dtype in DType}
_LAYOUTS: Final = {str(layout): layout for layout in Layout}


def read_one(asked: Layer) -> ConvProblem:
    """What one layer means.

    Raises
    ------
    InvalidProblem, InvalidLayerName
    """
    if isinstance(asked, AskedLayer):
        kind = _PLAIN.kind(asked)
        row = _PLAIN.row(asked, *kind)
        if row is not None and (problem := table.problem_of(row, *kind, asked.layer)).is_sound():
            return problem
    return problem_from({"layer": asked} if isinstance(asked, str) else named(asked))


class Reader:
    """Reads layers.

    Parameters
    ----------
    common : dict
        Parameters that hold for every layer that does not name its own.
    """

    def __init__(self, common: dict[str, Any]) -> None:
        self._common = common
        self._dtype = _DTYPES.get(common.get("dtype", DType.FLOAT32))
        self._layout = _LAYOUTS.get(common.get("layout", Layout.NCHW))
        self._both = self._dtype, self._layout
        self._is_plain = common.keys() <= _KINDS

    def read(self, layers: Sequence[Layer]) -> tuple[list[ConvProblem | InvalidInput], np.ndarray]:
        """What each layer means, or why it means nothing.

        Returns
        -------
        problems : list of ConvProblem or InvalidInput
        sizes : int64 array of shape (P, 14)
            Of the problems among them, as in `data.table`.
        """
        kinds = [self.kind(layer) for layer in layers]
        rows = [self.row(layer, *kind) or _UNSOUND for layer, kind in zip(layers, kinds, strict=True)]
        sizes = table.table(rows)
        is_sound = table.is_sound(sizes)
        problems: list[ConvProblem | InvalidInput] = []
        for place, (layer, row, kind, is_plain) in enumerate(zip(layers, rows, kinds, is_sound.tolist(), strict=True)):
            if is_plain:
                short = layer if isinstance(layer, str) else layer.layer
                problems.append(table.problem_of(row, *kind, short))
                continue
            found = self._read_one(layer)
            if isinstance(found, ConvProblem):
                sizes[place], is_sound[place] = table.row_of(found), True
            problems.append(found)
        return problems, sizes[is_sound]

    def row(self, layer: Layer, dtype: DType | None, layout: Layout | None) -> table.Row | None:
        """The sizes of a layer that is written plainly; of others None."""
        if not self._is_plain or dtype is None or layout is None:
            return None
        if isinstance(layer, str):
            return table.row_of_short(layer)
        if not isinstance(layer, AskedLayer):
            return None
        sizes, more = _SIZES_OF(layer), _MORE_OF(layer)
        if layer.layer is not None:
            is_alone = more == _NONE and sizes == _NONE[: len(sizes)]
            return table.row_of_short(layer.layer) if is_alone else None
        if None in sizes:
            return None
        row = (*sizes, *_more(*more))
        return row if max(row) <= MAX_ELEMENTS and min(row) >= 0 else None

    def kind(self, layer: Layer) -> tuple[Any, Any]:
        """dtype and layout of a layer; None for what is none."""
        if isinstance(layer, str) or (layer.dtype is None and layer.layout is None):
            return self._both
        return (
            self._dtype if layer.dtype is None else _DTYPES.get(layer.dtype),
            self._layout if layer.layout is None else _LAYOUTS.get(layer.layout),
        )

    def _read_one(self, layer: Layer) -> ConvProblem | InvalidInput:
        try:
            own = {"layer": layer} if isinstance(layer, str) else named(layer)
            return problem_from(self._common | own)
        except InvalidInput as error:
            return error


def _more(
    stride_h: int | None,
    stride_w: int | None,
    stride: int | None,
    pad_h: int | None,
    pad_w: int | None,
    pad: int | None,
    dilation_h: int | None,
    dilation_w: int | None,
    dilation: int | None,
    groups: int | None,
) -> tuple[int, int, int, int, int, int, int]:
    """stride_h to groups, as in `data.table.SIZES`, with what `named` and `ConvProblem` make of those missing."""
    stride = 1 if stride is None else stride
    pad = 0 if pad is None else pad
    dilation = 1 if dilation is None else dilation
    return (
        stride if stride_h is None else stride_h,
        stride if stride_w is None else stride_w,
        pad if pad_h is None else pad_h,
        pad if pad_w is None else pad_w,
        dilation if dilation_h is None else dilation_h,
        dilation if dilation_w is None else dilation_w,
        1 if groups is None else groups,
    )


_PLAIN: Final = Reader({})
