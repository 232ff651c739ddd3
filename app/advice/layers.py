"""The layers of a list as problems: those that are written plainly all at once, the others one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import numpy as np

from conv_advisor.app.advice.asked import AskedLayer
from conv_advisor.app.wire.schemas import SIZES, LayerParameters, named, problem_from
from conv_advisor.data import table
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout

Layer = str | AskedLayer | LayerParameters

_PAIRS: Final = ("stride", "pad", "dilation")
_NAMES: Final = (*table.SIZES, *_PAIRS)
_VALUES_OF: Final = attrgetter(*_NAMES)
_USUAL: Final = (1, 0)
"""What stands for a size that is not named, after the values of `_NAMES`."""
_KINDS: Final = {"dtype", "layout"}
_NONE: Final = (None,) * len(_NAMES)
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
        self._picks: dict[int, Callable[[tuple[int | None, ...]], table.Row]] = {}

    def read(self, layers: Sequence[Layer]) -> tuple[list[ConvProblem | InvalidInput], np.ndarray]:
        """What each layer means, or why it means nothing.

        Returns
        -------
        problems : list of ConvProblem or InvalidInput
        sizes : int64 array of shape (P, 14)
            The sizes of the problems among them, as in `data.table`.
        """
        named = self._named(layers)
        kinds = [self.kind(layer) for layer in layers] if named is None else [self._both] * len(layers)
        rows: Sequence[Sequence[int]]
        if named is None:
            rows = [self.row(layer, *kind) or _UNSOUND for layer, kind in zip(layers, kinds, strict=True)]
            sizes = table.table(rows)
        else:
            rows, sizes = named.tolist(), named
        is_sound, make = table.is_sound(sizes), table.problem_of
        if named is not None and is_sound.all():
            return [make(row, *self._both, name) for row, name in zip(rows, layers, strict=True)], sizes  # type: ignore[arg-type]  # names
        problems: list[ConvProblem | InvalidInput] = []
        for place, (layer, row, kind, is_plain) in enumerate(zip(layers, rows, kinds, is_sound.tolist(), strict=True)):
            if is_plain:
                short = layer if isinstance(layer, str) else layer.layer
                problems.append(make(row, *kind, short))
                continue
            found = self._read_one(layer)
            if isinstance(found, ConvProblem):
                sizes[place], is_sound[place] = table.row_of(found), True
            problems.append(found)
        return problems, sizes[is_sound]

    def _named(self, layers: Sequence[Layer]) -> np.ndarray | None:
        """The sizes of layers that are all named as problems are, in a third of the time; else None."""
        if not self._is_plain or None in self._both or {*map(type, layers)} != {str}:
            return None
        names: Sequence[Any] = layers
        return table.table_of_names(names)

    def row(self, layer: Layer, dtype: DType | None, layout: Layout | None) -> table.Row | None:
        """The sizes of a layer that is written plainly; of others None."""
        if not self._is_plain or dtype is None or layout is None:
            return None
        if isinstance(layer, str):
            return table.row_of_short(layer)
        if not isinstance(layer, AskedLayer):
            return None
        values = _VALUES_OF(layer)
        if layer.layer is not None:
            return table.row_of_short(layer.layer) if values == _NONE else None
        pick = self._picks.get(values.count(None))
        row = pick(values + _USUAL) if pick else None
        if row is None or None in row:
            row = self._learn(values)
        return row if row is not None and max(row) <= MAX_ELEMENTS and min(row) >= 0 else None

    def _learn(self, values: tuple[int | None, ...]) -> table.Row | None:
        """The sizes among these values of `_NAMES`; None where one is missing that has to be named.

        Notes
        -----
        Where every value that was named is one of the sizes, what was picked here is right for all layers that name as
        many values and have none missing among those picked: they name the same ones.
        """
        places = [_place(name, values) for name in table.SIZES]
        if None in places:
            return None
        pick = itemgetter(*places)
        absent = values.count(None)
        if len({place for place in places if place is not None and place < len(values)}) == len(values) - absent:
            self._picks[absent] = pick
        row: table.Row = pick(values + _USUAL)
        return row

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


def _place(name: str, values: tuple[int | None, ...]) -> int | None:
    """Where among the values of `_NAMES`, and `_USUAL` after them, the size of this name is."""
    own, pair = _NAMES.index(name), name.partition("_")[0]
    if values[own] is not None:
        return own
    if pair in _PAIRS and values[_NAMES.index(pair)] is not None:
        return _NAMES.index(pair)
    return None if name in SIZES else len(values) + (pair == "pad")


_PLAIN: Final = Reader({})
