"""Reads the parameters of a layer, in one way whether it stands alone or in a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

import numpy as np

from conv_advisor.app.wire.pasted import called, is_call
from conv_advisor.app.wire.spellings import automatic_pads, in_our_words
from conv_advisor.data import layer_names, table
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout

LAYER: Final = "14-1-3-256-128"
"""The layer of every example."""

EPILOGUE: Final = ("bias", "residual", "activation")
"""Parameters of the epilogue, part by part."""

SIZES: Final = ("n", "c", "h", "w", "k", "r", "s")
"""Sizes that a layer without a short form has to name."""

_USUAL: Final = (*(None for _ in SIZES), 1, 1, 0, 0, 1, 1, 1, 0, 0, str(DType.FLOAT32), str(Layout.NCHW))
"""Default values of the fields of `_PLAIN`."""
_PLAIN: Final = (*table.SIZES, "dtype", "layout")
"""Fields of a problem that is read in one step: all but the epilogue."""
_UNSOUND: Final[table.Row] = (0,) * len(table.SIZES)
_READ: Final = frozenset((*_PLAIN, "stride", "pad", "dilation", "layer"))
_KINDS: Final = {(str(dtype), str(layout)): (dtype, layout) for dtype in DType for layout in Layout}
_MEANINGS_KEPT: Final = 4096


Named = tuple[tuple[str, ...], tuple[Any, ...]]
"""Parameters of a layer: their names, and the value of each, which is not None."""

Layer = str | Named
"""A layer of a list: its short form, or parameters by name."""

_Plain = tuple[table.Row, DType, Layout, str | None]
"""Sizes of a layer, not yet checked; its dtype and layout; and its short form where that is known."""

_NOTHING: Final[Named] = ((), ())
_SHORT: Final = ("layer",)
_KIND: Final = {"dtype", "layout"}


@dataclass(frozen=True, slots=True)
class _Meaning:
    """How to read parameters of given names, by their places among the values.

    Parameters
    ----------
    layer : int or None
        Place of the short form.
    kind : callable (values, followed by the usual ones) -> (dtype, layout)
    sizes : callable (values, followed by the usual ones or the sizes of the short form) -> Row
    is_complete : bool
        Whether all of `SIZES` are named, or none beside a short form; and no name that is not read in one step.
    says_sizes : bool
        Whether more is named than dtype and layout.
    """

    layer: int | None
    kind: Callable[[tuple[Any, ...]], tuple[str, str]]
    sizes: Callable[[tuple[Any, ...]], table.Row]
    is_complete: bool
    says_sizes: bool


def named(parameters: Mapping[str, Any]) -> Named:
    """The parameters of a mapping, as `Named`."""
    return tuple(parameters), tuple(parameters.values())


def problem_from(parameters: Mapping[str, Any], common: Mapping[str, Any] | None = None) -> ConvProblem:
    """The problem that parameters describe.

    Parameters
    ----------
    parameters : mapping of str to value
        Fields of `ConvProblem`; stride, pad or dilation for both of their fields, unless those are named; layer, the
        short form, in place of sizes; bias, residual and activation; and what `app.wire.spellings` reads.
    common : mapping of str to value, optional
        Parameters that hold where the layer does not set its own.

    Raises
    ------
    InvalidProblem, InvalidLayerName
    """
    layer, held = named(parameters), named(common or {})
    plain = _plainly(layer, held)
    if plain and (problem := table.problem_of(*plain)).is_sound():
        return problem
    return _carefully(layer, held)


def problems_from(
    layers: Sequence[Layer],
    common: Named = _NOTHING,
) -> tuple[list[ConvProblem | InvalidInput], np.ndarray]:
    """`problem_from` for every layer of a list, checked together; the error where a layer is none.

    Parameters
    ----------
    layers : sequence of str or Named
        Their values have the types that `app.wire.schemas` asks for.
    common : Named
        Parameters that hold for every layer that does not set its own.

    Returns
    -------
    problems : list of ConvProblem or InvalidInput
    sizes : int64 array of shape (P, 16)
        Sizes of the problems among them, as in `data.table`.
    """
    if (alike := _alike(layers, common)) is not None:
        return alike
    plain_layers = [_plainly(_named(layer), common) for layer in layers]
    sizes = table.table(
        [plain_layer[0] if plain_layer and _fits(plain_layer[0]) else _UNSOUND for plain_layer in plain_layers]
    )
    is_sound = table.is_sound(sizes)
    problems: list[ConvProblem | InvalidInput] = []
    for place, (layer, plain_layer, is_right) in enumerate(zip(layers, plain_layers, is_sound.tolist(), strict=True)):
        if plain_layer and is_right:
            problems.append(table.problem_of(*plain_layer))
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
    """A fast path, three times as fast: the problems where every layer is a valid short form alone; else None."""
    if {*map(type, layers)} != {str} or not {*common[0]} <= _KIND:
        return None
    names: Sequence[Any] = layers
    kind, sizes = _KINDS.get(_meaning((), common[0]).kind(common[1] + _USUAL)), table.table_of_names(names)
    if kind is None or sizes is None or not table.is_sound(sizes).all():
        return None
    make = table.problem_of
    return [make(row, *kind, name) for row, name in zip(sizes.tolist(), names, strict=True)], sizes


def _plainly(layer: Named, common: Named) -> _Plain | None:
    """A layer in one of the usual forms; None for others, which `_carefully` reads."""
    meaning, values = _meaning(layer[0], common[0]), layer[1] + common[1]
    kind = _KINDS.get(meaning.kind(values + _USUAL))
    if kind is None or not meaning.is_complete:
        return None
    if meaning.layer is None:
        return meaning.sizes(values + _USUAL), *kind, None
    short = values[meaning.layer]
    row = table.row_of_short(short)
    if meaning.says_sizes and "x" in short:  # such a short form sets every size, and may contradict the named ones
        return None
    if row is None or not meaning.says_sizes:
        return (row, *kind, short) if row else None
    return meaning.sizes(values + row), *kind, None


def _carefully(layer: Named, common: Named) -> ConvProblem:
    """The problem of a layer, however it is written.

    Raises
    ------
    InvalidProblem, InvalidLayerName
    """
    own, held = (dict(zip(*parameters, strict=True)) for parameters in (layer, common))
    row = {"length": held["length"]} if "length" in held else {}
    fields = in_our_words(held) | in_our_words(row | own)
    written, shape, auto_pad = (fields.pop(name, None) for name in ("layer", "input", "auto_pad"))
    if written is not None and is_call(written):
        fields = called(written, shape, fields)
        written, auto_pad = None, fields.pop("auto_pad", auto_pad)
    elif shape is not None:
        raise InvalidProblem("input", shape, "only together with a layer as PyTorch prints it, Conv2d(...)")
    for name in SIZES:
        if written is None and name not in fields:
            raise InvalidProblem(name, None, f"an integer; or layer, such as {LAYER}")
        if written is not None and name in fields:
            raise InvalidProblem(name, fields[name], "not together with layer, which sets it")
    if written is not None and not fields.keys() <= _KIND:
        _check_said(fields, written)
    fields |= _epilogue_of(fields, written)
    if auto_pad is not None:
        fields |= _automatic_pads(auto_pad, fields, written)
    return ConvProblem(**fields) if written is None else ConvProblem.parse(written, **fields)


def _check_said(fields: Mapping[str, Any], written: str) -> None:
    """Check that no named field contradicts the suffixes of the short form.

    Raises
    ------
    InvalidProblem
    """
    in_name = layer_names.read(written, MAX_ELEMENTS)
    for name in filter(fields.__contains__, table.SIZES):
        word, value = "end" if name.endswith("_end") else name.partition("_")[0], fields[name]
        if f"-{word}" in written and in_name.get(name, value) != value:
            raise InvalidProblem(name, value, f"not together with layer, which sets {in_name[name]}")


def _epilogue_of(fields: dict[str, Any], written: str | None) -> dict[str, Epilogue]:
    """The epilogue that is named part by part, taken out of the fields."""
    parts = {name: fields.pop(name) for name in EPILOGUE if name in fields}
    if not parts:
        return {}
    if written is not None and (in_name := ConvProblem.parse(written).epilogue):
        name, value = next(iter(parts.items()))
        raise InvalidProblem(name, value, f"not together with layer, which sets {in_name}")
    return {"epilogue": Epilogue(**parts)}


def _automatic_pads(auto_pad: Any, fields: dict[str, Any], written: str | None) -> dict[str, int]:
    """The pads that ``auto_pad`` means.

    Raises
    ------
    InvalidProblem
        Other pads are named.
    """
    base = ConvProblem.parse(written) if written is not None else None
    sizes = {name: getattr(base, name) for name in table.SIZES} if base else {}
    meant = automatic_pads(auto_pad, sizes | fields)
    if meant is None:
        return {}
    if any(fields.get(name, pad) != pad for name, pad in meant.items()):
        allowed = f"{[*meant.values()]}, which auto_pad {auto_pad} means here; or no auto_pad"
        raise InvalidProblem("pads", [fields.get(name, 0) for name in meant], allowed)
    return meant


@lru_cache(_MEANINGS_KEPT)
def _meaning(own: tuple[str, ...], common: tuple[str, ...]) -> _Meaning:
    """How to read these names: a layer's come before the common ones, and a field before its pair."""
    parts = ((0, own), (len(own), common))

    def place(*names: str) -> int | None:
        return next((start + part.index(name) for start, part in parts for name in names if name in part), None)

    place_by_field = {field: place(*_names_of(field)) for field in _PLAIN}
    fields = {field: where for field, where in place_by_field.items() if where is not None}
    places = [fields.get(name, len(own) + len(common) + index) for index, name in enumerate(_PLAIN)]
    kind, sizes = itemgetter(*places[len(table.SIZES) :]), itemgetter(*places[: len(table.SIZES)])
    layer = place("layer")
    is_complete = sum(name in fields for name in SIZES) == (0 if layer is not None else len(SIZES))
    is_complete = is_complete and _READ.issuperset(own + common)
    return _Meaning(layer, kind, sizes, is_complete, not fields.keys() <= _KIND)


def _names_of(field: str) -> tuple[str, ...]:
    """Names that set a field, by precedence: ``pad_h_end``, ``pad_h``, ``pad``."""
    parts = field.split("_")
    return tuple("_".join(parts[:count]) for count in range(len(parts), 0, -1))


def _named(layer: Layer) -> Named:
    return (_SHORT, (layer,)) if isinstance(layer, str) else layer


def _fits(row: table.Row) -> bool:
    """Whether an array of integers can hold the row; not where a pair is written as text or as a list."""
    try:
        return min(row) >= 0 and max(row) <= MAX_ELEMENTS
    except TypeError:
        return False
