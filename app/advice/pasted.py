"""A layer as PyTorch prints it, ``Conv2d(64, 128, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)``."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout

_PARAMETERS: Final = (
    *("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias"),
    "padding_mode",
)
_NAME: Final = re.compile(r"\s*(?:\(\w+\):\s*)?((?:\w+\.)*Conv2d)\s*\(")
"""In print(model) a module begins with its name in brackets."""
_MOST_CHARACTERS: Final = 1000


def is_call(text: str) -> bool:
    """Whether a text is such a layer, and not the name of one."""
    return _NAME.match(text) is not None


def problem_of_call(text: str, shape: str, *, dtype: DType, layout: Layout) -> ConvProblem:
    """The problem of a layer and an input.

    Parameters
    ----------
    text : str
        ``Conv2d(...)`` with the parameters of PyTorch's; a bias is allowed and left aside.
    shape : str
        Of the input, n x c x h x w whatever the layout, such as ``1x64x56x56``.
    dtype : DType
    layout : Layout

    Raises
    ------
    InvalidInput, InvalidProblem
    """
    given = _parameters(text)
    n, c, h, w = _shape(shape)
    if c != given["in_channels"]:
        raise InvalidInput("--input", shape, f"{given['in_channels']} channels, as the layer has it")
    if given.get("padding_mode", "zeros") != "zeros":
        raise InvalidInput("padding_mode", given["padding_mode"], "zeros: nothing else is measured")
    r, s = _pair("kernel_size", given["kernel_size"])
    stride_h, stride_w = _pair("stride", given.get("stride", 1))
    dilation_h, dilation_w = _pair("dilation", given.get("dilation", 1))
    pad_h, pad_w = _padding(given.get("padding", 0), (r, s), (dilation_h, dilation_w))
    return ConvProblem(
        *(n, c, h, w, given["out_channels"], r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w),
        groups=given.get("groups", 1),
        dtype=dtype,
        layout=layout,
    )


def _parameters(text: str) -> dict[str, Any]:
    """The parameters by name; only literals are read, nothing is run."""
    allowed = "Conv2d(in_channels, out_channels, kernel_size, ...) as PyTorch has it, of numbers"
    begins = _NAME.match(text)
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
    return given


def _shape(text: str) -> tuple[int, int, int, int]:
    numbers = re.fullmatch(
        r"\(?([0-9]{1,10})[x×, ]+([0-9]{1,10})[x×, ]+([0-9]{1,10})[x×, ]+([0-9]{1,10})\)?", text.strip()
    )
    if numbers is None:
        raise InvalidInput("--input", text, "batch x channels x height x width, such as 1x64x56x56")
    n, c, h, w = map(int, numbers.groups())
    return n, c, h, w


def _pair(name: str, value: object) -> tuple[Any, Any]:
    """Height and width; whether they are sound sizes, the problem says."""
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise InvalidInput(name, value, "a number, or two: of height and width")
        return value[0], value[1]
    return value, value


def _padding(value: object, filters: tuple[Any, Any], dilations: tuple[Any, Any]) -> tuple[Any, Any]:
    if value == "valid":
        return 0, 0
    if value != "same":
        return _pair("padding", value)
    around = [dilation * (size - 1) for size, dilation in zip(filters, dilations, strict=True)]
    if any(each % 2 for each in around):
        raise InvalidInput("padding", value, "as much on both sides, which an even filter does not have")
    return around[0] // 2, around[1] // 2
