"""What the parameters of a layer mean: read in one way, whether it stands alone or in a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import numpy as np

from conv_advisor.data import table
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import FIELDS, MAX_ELEMENTS, ConvProblem, DType, Layout

LAYER: Final = "14-1-3-256-128"
"""The layer of every example."""

SIZES: Final = ("n", "c", "h", "w", "k", "r", "s")
"""What a layer without a short form has to name."""

_USUAL: Final = (*(None for _ in SIZES), 1, 1, 0, 0, 1, 1, 1, str(DType.FLOAT32), str(Layout.NCHW))
"""What stands for a field that is not named."""
_UNSOUND: Final[table.Row] = (0,) * len(table.SIZES)
_KINDS: Final = {(str(dtype), str(layout)): (dtype, layout) for dtype in DType for layout in Layout}
_MEANINGS_KEPT: Final = 4096


Named = tuple[tuple[str, ...], tuple[Any, ...]]
"""Parameters of a layer: their names, and the value of each, which is not None."""

Layer = str | Named
"""A layer of a list: its short form, or parameters by name."""

_Plain = tuple[table.Row, DType, Layout, str | None]
"""Sizes of a layer, which no problem may have, its kind, and its short form where that is known."""

_NOTHING: Final[Named] = ((), ())
_SHORT: Final = ("layer",)
_KIND: Final = {"dtype", "layout"}


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What parameters of some names mean, by their places among the values.

    Parameters
    ----------
    layer : int or None
        Place of the short form.
    fields : dict of str to int
        Place of every field of a problem that is named, by itself or with its pair.
    kind : callable (values, followed by the usual ones) -> (dtype, layout)
    sizes : callable (values, followed by the usual ones or the sizes of the short form) -> Row
    is_complete : bool
        Whether all of `SIZES` are named; beside a short form, none of them.
    says_sizes : bool
        Whether more is named than dtype and layout.
    """

    layer: int | None
    fields: dict[str, int]
    kind: Callable[[tuple[Any, ...]], tuple[str, str]]
    sizes: Callable[[tuple[Any, ...]], table.Row]
    is_complete: bool
    says_sizes: bool


def named(given: Mapping[str, Any]) -> Named:
    """Parameters that a mapping has."""
    return tuple(given), tuple(given.values())


def problem_from(given: Mapping[str, Any]) -> ConvProblem:
    """The problem that parameters describe.

    Parameters
    ----------
    given : mapping of str to value
        Fields of `ConvProblem`; a pair (stride, pad, dilation) for both of its members that are not named; layer, the
        short form, in place of sizes.

    Raises
    ------
    InvalidProblem, InvalidLayerName
    """
    layer = named(given)
    plain = _plainly(layer, _NOTHING)
    if plain and (problem := table.problem_of(*plain)).is_sound():
        return problem
    return _carefully(layer, _NOTHING)


def problems_from(
    layers: Sequence[Layer],
    common: Named = _NOTHING,
) -> tuple[list[ConvProblem | InvalidInput], np.ndarray]:
    """What `problem_from` gives for every layer of a list, or why it gives nothing; checked together.

    Parameters
    ----------
    layers : sequence of str or Named
        Their values have the types that `app.wire.schemas` asks for.
    common : Named
        What holds for every layer that does not name its own.

    Returns
    -------
    problems : list of ConvProblem or InvalidInput
    sizes : int64 array of shape (P, 14)
        Sizes of the problems among them, as in `data.table`.
    """
    if (alike := _alike(layers, common)) is not None:
        return alike
    plain = [_plainly(_named(layer), common) for layer in layers]
    sizes = table.table([each[0] if each and _fits(each[0]) else _UNSOUND for each in plain])
    is_sound = table.is_sound(sizes)
    problems: list[ConvProblem | InvalidInput] = []
    for place, (layer, each, is_right) in enumerate(zip(layers, plain, is_sound.tolist(), strict=True)):
        if each and is_right:
            problems.append(table.problem_of(*each))
            continue
        try:
            problem = _carefully(_named(layer), common)
        except InvalidInput as error:
            problems.append(error)
        else:
            sizes[place], is_sound[place] = table.row_of(problem), True
            problems.append(problem)
    return problems, sizes[is_sound]


def _alike(layers: Sequence[Layer], common: Named) -> tuple[list[ConvProblem | InvalidInput], np.ndarray] | None:
    """Layers that are all problems by their short forms alone, in a third of the time; else None."""
    if {*map(type, layers)} != {str} or not {*common[0]} <= _KIND:
        return None
    names: Sequence[Any] = layers
    kind, sizes = _KINDS.get(_meaning((), common[0]).kind(common[1] + _USUAL)), table.table_of_names(names)
    if kind is None or sizes is None or not table.is_sound(sizes).all():
        return None
    make = table.problem_of
    return [make(row, *kind, name) for row, name in zip(sizes.tolist(), names, strict=True)], sizes


def _plainly(layer: Named, common: Named) -> _Plain | None:
    """A layer that is written as most are; None for others, of which `_carefully` says what they are."""
    meaning, values = _meaning(layer[0], common[0]), layer[1] + common[1]
    kind = _KINDS.get(meaning.kind(values + _USUAL))
    if kind is None or not meaning.is_complete:
        return None
    if meaning.layer is None:
        return meaning.sizes(values + _USUAL), *kind, None
    short = values[meaning.layer]
    row = table.row_of_short(short)
    if row is None or not meaning.says_sizes:
        return (row, *kind, short) if row else None
    return meaning.sizes(values + row), *kind, None


def _carefully(layer: Named, common: Named) -> ConvProblem:
    """The problem of a layer, however it is written.

    Raises
    ------
    InvalidProblem, InvalidLayerName
    """
    meaning, values = _meaning(layer[0], common[0]), layer[1] + common[1]
    fields = {name: values[place] for name, place in meaning.fields.items()}
    for name in SIZES:
        if meaning.layer is None and name not in fields:
            raise InvalidProblem(name, None, f"an integer; or layer, such as {LAYER}")
        if meaning.layer is not None and name in fields:
            raise InvalidProblem(name, fields[name], "nothing beside layer, which says it")
    if meaning.layer is None:
        return ConvProblem(**fields)
    return ConvProblem.parse(values[meaning.layer], **fields)


@lru_cache(_MEANINGS_KEPT)
def _meaning(own: tuple[str, ...], common: tuple[str, ...]) -> _Meaning:
    """What these names mean, those of a layer before those that hold for all; of each a field before its pair."""
    parts = ((0, own), (len(own), common))

    def place(*names: str) -> int | None:
        return next((start + part.index(name) for start, part in parts for name in names if name in part), None)

    found = {field: place(field, field.partition("_")[0]) for field in FIELDS}
    fields = {field: where for field, where in found.items() if where is not None}
    places = [fields.get(name, len(own) + len(common) + index) for index, name in enumerate(FIELDS)]
    kind, sizes = itemgetter(*places[len(table.SIZES) :]), itemgetter(*places[: len(table.SIZES)])
    layer = place("layer")
    is_complete = sum(name in fields for name in SIZES) == (0 if layer is not None else len(SIZES))
    return _Meaning(layer, fields, kind, sizes, is_complete, not fields.keys() <= _KIND)


def _named(layer: Layer) -> Named:
    return (_SHORT, (layer,)) if isinstance(layer, str) else layer


def _fits(row: table.Row) -> bool:
    """Whether an array of integers can hold it."""
    return min(row) >= 0 and max(row) <= MAX_ELEMENTS
