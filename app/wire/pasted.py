"""A layer as PyTorch prints it, ``Conv2d(64, 128, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from conv_advisor.app.wire.spellings import in_our_words
from conv_advisor.data.errors import InvalidInput, InvalidProblem

_PARAMETERS: Final = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
    "padding_mode",
)
_BESIDE: Final = frozenset(("dtype", "layout", "residual", "activation"))
"""What may be said beside such a layer, since it does not say it."""
_NAME: Final = re.compile(r"\s*(?:\(\w+\):\s*)?((?:\w+\.)*((?:Lazy)?Conv\w*))\s*\(")
"""In print(model) a module begins with its name in brackets."""
_MOST_CHARACTERS: Final = 1000
_SIZE: Final = r"\s*[x×, ]\s*([0-9]{1,10})"
_SHAPE: Final = re.compile(rf"\(?\s*([0-9]{{1,10}}){_SIZE}{_SIZE}(?:{_SIZE})?\s*\)?")
_NOT_OURS: Final = {"Transpose": "a transposed convolution", "3d": "a convolution in three dimensions"}


def is_call(text: str) -> bool:
    """Whether a text is such a layer, of whatever kind of convolution, and not the name of one."""
    return _NAME.match(text) is not None


def called(text: str, shape: str | None, beside: Mapping[str, Any]) -> dict[str, Any]:
    """What a layer and the shape of its input say, by our names.

    Parameters
    ----------
    text : str
        ``Conv2d(...)`` or ``Conv1d(...)`` with the parameters of PyTorch's, whose bias is there unless it says not.
    shape : str or None
        Of the input, n x c x h x w whatever the layout, such as ``1x64x56x56``; n x c x length of a Conv1d.
    beside : mapping of str to value
        What else is said of the layer, by our names.

    Returns
    -------
    fields : dict of str to value
        Those of `ConvProblem`, bias, what is beside them, and ``auto_pad`` where padding is a word.

    Raises
    ------
    InvalidInput, InvalidProblem
        It is no such layer, or another kind of convolution; the shape is none, or not of this layer.
    """
    given, is_row = _parameters(text)
    for name, value in beside.items():
        if name not in _BESIDE:
            raise InvalidProblem(name, value, "not together with Conv2d(...), which sets it")
    if given.get("padding_mode", "zeros") != "zeros":
        raise InvalidInput("padding_mode", given["padding_mode"], "zeros: nothing else is measured")
    sizes = _sizes(shape, given["in_channels"], is_row=is_row)
    padding, stride = given.get("padding", 0), given.get("stride", 1)
    if padding == "same" and stride not in (1, (1,), (1, 1)):
        raise InvalidInput("padding", padding, f"numbers, with a stride of {stride}: PyTorch knows no other")
    own: dict[str, Any] = {name: given[name] for name in _PARAMETERS[:-1] if name in given}
    return {**in_our_words({**own, **sizes, "bias": given.get("bias", True)}), **beside}


def _parameters(text: str) -> tuple[dict[str, Any], bool]:
    """The parameters by name, and whether the layer has one dimension; only literals are read, nothing is run."""
    begins = _NAME.match(text)
    kind = begins[2] if begins else "Conv2d"
    _check_kind(text, kind)
    allowed = f"{kind}(in_channels, out_channels, kernel_size, ...) as PyTorch has it, of numbers"
    try:
        if begins is None or len(text) > _MOST_CHARACTERS:
            raise InvalidInput("layer", text[:200], allowed)
        call = ast.parse(text[begins.start(1) :].strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            raise InvalidInput("layer", text, allowed)
        given = dict(zip(_PARAMETERS, map(ast.literal_eval, call.args), strict=False))
        given |= {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput("layer", text, allowed) from None
    for name in given.keys() - {*_PARAMETERS, "device", "dtype"} or _PARAMETERS[:3] - given.keys():
        raise InvalidInput("layer", text, f"{allowed}; {name} is {'unknown' if name in given else 'missing'}")
    return given, kind == "Conv1d"


def _check_kind(text: str, kind: str) -> None:
    if kind in ("Conv2d", "Conv1d"):
        return
    what = next((said for part, said in _NOT_OURS.items() if part in kind), "another layer")
    raise InvalidInput("layer", text[:200], f"Conv2d(...) or Conv1d(...); {kind} is {what}, which is not computed here")


def _sizes(shape: str | None, in_channels: object, *, is_row: bool) -> dict[str, int]:
    """Batch and size of the input, whose channels are checked."""
    allowed = (
        "batch x channels x length, such as 1x64x56"
        if is_row
        else ("batch x channels x height x width, such as 1x64x56x56")
    )
    match = _SHAPE.fullmatch((shape or "").strip())
    if match is None or (match[4] is None) != is_row:
        raise InvalidInput("input", shape or "", allowed)
    n, c, *sides = (int(digits) for digits in match.groups() if digits is not None)
    if c != in_channels:
        raise InvalidInput("input", shape, f"{in_channels} channels, as the layer has it")
    return {"n": n} | ({"length": sides[0]} if is_row else {"h": sides[0], "w": sides[1]})
