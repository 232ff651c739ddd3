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
"""Parameters that may be set beside such a layer, which does not set them."""
_NAME: Final = re.compile(r"\s*(?:\(\w+\):\s*)?((?:\w+\.)*((?:Lazy)?Conv\w*))\s*\(")
"""print(model) writes a module's name in brackets before it."""
_MOST_CHARACTERS: Final = 1000
_SIZE: Final = r"\s*[x×, ]\s*([0-9]{1,10})"
_SHAPE: Final = re.compile(rf"\(?\s*([0-9]{{1,10}}){_SIZE}{_SIZE}(?:{_SIZE})?\s*\)?")
_BEHIND: Final = re.compile(r"\)[\s,]*([0-9][0-9x×, ]*)$")
"""The shape of the input, where the layer has it behind it."""
_WORDS: Final = ("padding", "padding_mode")
_NOT_OURS: Final = {"Transpose": "a transposed convolution", "3d": "a convolution in three dimensions"}


def is_call(text: str) -> bool:
    """Whether a text is a convolution as PyTorch prints it, of any kind, rather than a layer's name."""
    return _NAME.match(text) is not None


def called(text: str, shape: str | None, beside: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a printed layer and of its input's shape, by our names.

    Parameters
    ----------
    text : str
        ``Conv2d(...)`` or ``Conv1d(...)`` with PyTorch's parameters; a bias is the default, as there.
    shape : str or None
        Shape of the input: n x c x h x w in either layout, such as ``1x64x56x56``; n x c x length for a Conv1d. None
        where the text ends with it.
    beside : mapping of str to value
        Other parameters of the layer, by our names.

    Returns
    -------
    fields : dict of str to value
        Fields of `ConvProblem`, bias, those of ``beside``, and ``auto_pad`` where padding is a word.

    Raises
    ------
    InvalidInput, InvalidProblem
        The text is no such layer, or another kind of convolution; the shape is invalid, or not of this layer.
    """
    if shape is None and (behind := _BEHIND.search(text)):
        text, shape = text[: behind.start() + 1], behind[1]
    parameters, is_row = _parameters(text)
    if shape is None:
        kind, example = ("Conv1d", "x56") if is_row else ("Conv2d", "x56x56")
        example = f"{kind}(...) 1x{parameters['in_channels']}{example}"
        raise InvalidInput("layer", text[:200], f"with the shape of its input behind, {example}; or as input")
    for name, value in beside.items():
        if name not in _BESIDE:
            raise InvalidProblem(name, value, "not together with Conv2d(...), which sets it")
    if parameters.get("padding_mode", "zeros") != "zeros":
        raise InvalidInput("padding_mode", parameters["padding_mode"], "zeros: nothing else is measured")
    sizes = _sizes(shape, parameters["in_channels"], is_row=is_row)
    padding, stride = parameters.get("padding", 0), parameters.get("stride", 1)
    if padding == "same" and stride not in (1, (1,), (1, 1)):
        raise InvalidInput("padding", padding, f"numbers, with a stride of {stride}: PyTorch knows no other")
    own: dict[str, Any] = {name: parameters[name] for name in _PARAMETERS[:-1] if name in parameters}
    return {**in_our_words({**own, **sizes, "bias": parameters.get("bias", True)}), **beside}


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
        parameters = dict(zip(_PARAMETERS, map(ast.literal_eval, call.args), strict=False))
        parameters |= {str(keyword.arg): _read(keyword) for keyword in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput("layer", text, allowed) from None
    for name in parameters.keys() - {*_PARAMETERS, "device", "dtype"} or _PARAMETERS[:3] - parameters.keys():
        raise InvalidInput("layer", text, f"{allowed}; {name} is {'unknown' if name in parameters else 'missing'}")
    return parameters, kind == "Conv1d"


def _read(keyword: ast.keyword) -> Any:
    """The value of a parameter; those that are words are printed without quotes."""
    if keyword.arg in _WORDS and isinstance(keyword.value, ast.Name):
        return keyword.value.id
    return ast.literal_eval(keyword.value)


def _check_kind(text: str, kind: str) -> None:
    if kind in ("Conv2d", "Conv1d"):
        return
    description = next((description for part, description in _NOT_OURS.items() if part in kind), "another layer")
    raise InvalidInput(
        "layer", text[:200], f"Conv2d(...) or Conv1d(...); {kind} is {description}, which is not computed here"
    )


def _sizes(shape: str, in_channels: object, *, is_row: bool) -> dict[str, int]:
    """Batch and size of the input, whose channels are checked."""
    allowed = (
        "batch x channels x length, such as 1x64x56"
        if is_row
        else ("batch x channels x height x width, such as 1x64x56x56")
    )
    match = _SHAPE.fullmatch(shape.strip())
    if match is None or (match[4] is None) != is_row:
        raise InvalidInput("input", shape, allowed)
    n, c, *sides = (int(digits) for digits in match.groups() if digits is not None)
    if c != in_channels:
        raise InvalidInput("input", shape, f"{in_channels} channels, as the layer has it")
    return {"n": n} | ({"length": sides[0]} if is_row else {"h": sides[0], "w": sides[1]})
