"""Reads the names and values that PyTorch, ONNX and TensorFlow have for the parameters of a layer as our own.

Our names are the fields of `ConvProblem`; stride, pad and dilation for both sides at once; and bias, residual and
activation for the epilogue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.problem import DType, Layout

DTYPES: Final = {
    **dict.fromkeys(("fp32", "float", "f32", "single"), DType.FLOAT32),
    **dict.fromkeys(("fp16", "half", "f16"), DType.FLOAT16),
    **dict.fromkeys(("bf16",), DType.BFLOAT16),
}
"""Other names of a precision, beside our own with ``torch.`` before them."""

LAYOUTS: Final = {
    "channels_last": Layout.NHWC,
    "channels_first": Layout.NCHW,
    "contiguous_format": Layout.NCHW,
    "contiguous": Layout.NCHW,
}
"""Other names of a memory order, beside our own in capitals and with ``torch.`` before them."""


class AutoPad(StrEnum):
    """ONNX's ``auto_pad``: as much padding as gives size / stride outputs, the odd row at the end or at the begin."""

    NOTSET = "NOTSET"
    VALID = "VALID"
    SAME_UPPER = "SAME_UPPER"
    SAME_LOWER = "SAME_LOWER"


_SAME: Final = {"same": AutoPad.SAME_UPPER, "valid": AutoPad.VALID}
"""The words that PyTorch's and TensorFlow's ``padding`` may be."""

_NAMES: Final = {
    **{"in_channels": "c", "out_channels": "k", "batch": "n", "batch_size": "n", "group": "groups"},
    **{"kernel_size": "kernel", "kernel_shape": "kernel", "strides": "stride", "dilations": "dilation"},
    **{"memory_format": "layout", "data_format": "layout"},
}
_SIDES: Final = {
    "kernel": ("r", "s"),
    "stride": ("stride_h", "stride_w"),
    "dilation": ("dilation_h", "dilation_w"),
    "pad": ("pad_h", "pad_w"),
    "padding": ("pad_h", "pad_w"),
}
_PAIRS: Final = ("stride", "pad", "dilation")
_ENDS: Final = {"pad_h": "pad_h_end", "pad_w": "pad_w_end"}
_FOUR: Final = (*_ENDS, *_ENDS.values())
"""Top, left, bottom, right."""
_PADDING: Final = "a number from 0, two as 1x2 or 1,2, four as top,left,bottom,right, same or valid"
_NUMBERS: Final = re.compile(r"[\[(]?\s*([0-9]{1,10}(?:\s*[x×,]\s*[0-9]{1,10}){0,3})\s*,?\s*[\])]?")

OTHER_NAMES: Final = frozenset((*_NAMES, "padding", "pads", "auto_pad", "length"))
"""Names of other libraries that a layer may use."""


def dtype_of(value: Any) -> Any:
    """Our name of a precision; any other value is returned as it is, for the caller to refuse."""
    name = str(value).lower().removeprefix("torch.")
    return DTYPES.get(name, name if name in set(DType) else value)


def layout_of(value: Any) -> Any:
    """Our name of a memory order; any other value is returned as it is."""
    name = str(value).lower().removeprefix("torch.")
    return LAYOUTS.get(name, name if name in set(Layout) else value)


def in_our_words(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by our names, pairs taken apart; ``auto_pad`` stays, since it depends on all the others.

    Raises
    ------
    InvalidProblem
        A value that is not allowed, or two names that set the same field.
    """
    is_row = "length" in parameters
    fields: dict[str, Any] = {}
    name_of_field: dict[str, str] = {}
    for name, value in sorted(parameters.items(), key=lambda item: item[0] in _PAIRS):
        for field, field_value in _read(name, value, is_row).items():
            if field not in fields:
                fields[field], name_of_field[field] = field_value, name
            elif name not in _PAIRS or name_of_field[field] != field:  # a field named by itself overrides its pair
                raise InvalidProblem(name, value, f"not together with {name_of_field[field]}, which sets it")
    for begin, end in _ENDS.items():
        if begin in fields:
            fields.setdefault(end, fields[begin])
    return fields


def automatic_pads(auto_pad: Any, sizes: Mapping[str, Any]) -> dict[str, int] | None:
    """The pads that ``auto_pad`` means for a layer of these sizes; None for NOTSET, which sets none.

    Parameters
    ----------
    auto_pad : str
        One of `AutoPad`, in any case.
    sizes : mapping of str to int
        h, w, r, s, and strides and dilations that are not 1.

    Raises
    ------
    InvalidProblem

    Notes
    -----
    Source: ONNX, operator Conv; TensorFlow's "SAME" is its SAME_UPPER.
    """
    try:
        mode = AutoPad(str(auto_pad).upper())
    except ValueError:
        raise InvalidProblem("auto_pad", auto_pad, ", ".join(AutoPad)) from None
    if mode is AutoPad.NOTSET:
        return None
    pads = dict.fromkeys(_FOUR, 0)
    if mode is AutoPad.VALID:
        return pads
    for side, size, taps in (("h", "h", "r"), ("w", "w", "s")):
        numbers = [sizes.get(name, 1) for name in (size, taps, f"stride_{side}", f"dilation_{side}")]
        if all(type(number) is int and number >= 1 for number in numbers):  # the problem refuses other values by name
            less, more = _halves(*numbers)
            begins_with_more = mode is AutoPad.SAME_LOWER
            pads[f"pad_{side}"], pads[f"pad_{side}_end"] = (more, less) if begins_with_more else (less, more)
    return pads


def _halves(size: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    """Padding that gives size / stride outputs, rounded up: the smaller half, and the larger one."""
    outputs = -(-size // stride)
    total = max(0, (outputs - 1) * stride + dilation * (taps - 1) + 1 - size)
    return total // 2, total - total // 2


def _read(name: str, value: Any, is_row: bool) -> dict[str, Any]:
    """Our fields that one parameter sets."""
    if name == "pads":
        return _four(name, value, is_row)
    if name == "padding" and isinstance(value, str) and value.lower() in _SAME:
        return {"auto_pad": _SAME[value.lower()]}
    if name == "length":
        return {"h": 1, "w": value}
    ours = _NAMES.get(name, name)
    if ours in _SIDES:
        return _both(name, ours, value, is_row)
    if ours in ("dtype", "layout"):
        return {ours: dtype_of(value) if ours == "dtype" else layout_of(value)}
    return {ours: value}


def _both(name: str, pair: str, value: Any, is_row: bool) -> dict[str, Any]:
    """Both fields of a pair; for a 1-D layer, one number sets the length's, and the height keeps its neutral value."""
    neutral = 0 if pair in ("pad", "padding") else 1
    allowed = _PADDING if name == "padding" else f"a number from {neutral}, or two as 3x3 or 3,3"
    numbers = _numbers(name, value, allowed)
    if name == "padding" and len(numbers) == len(_FOUR):
        return dict(zip(_FOUR, numbers, strict=True))
    if len(numbers) > 2:
        raise InvalidProblem(name, value, allowed)
    if is_row:
        numbers = numbers if len(numbers) == 2 else [neutral, numbers[0]]
    return dict(zip(_SIDES[pair], numbers if len(numbers) == 2 else numbers * 2, strict=True))


def _four(name: str, value: Any, is_row: bool) -> dict[str, Any]:
    """ONNX's pads: the begins of all axes, then their ends."""
    allowed = "two numbers: left, right" if is_row else "four numbers: top, left, bottom, right"
    numbers = _numbers(name, value, allowed)
    if len(numbers) != (2 if is_row else len(_FOUR)):
        raise InvalidProblem(name, value, allowed)
    return dict(zip(_FOUR, (0, numbers[0], 0, numbers[1]) if is_row else numbers, strict=True))


def _numbers(name: str, value: Any, allowed: str) -> list[Any]:
    """One number or several, as a list or as text such as ``3``, ``3x3``, ``3,3`` and ``(3, 3)``."""
    if isinstance(value, list | tuple) and value:
        return list(value)
    if isinstance(value, str):
        match = _NUMBERS.fullmatch(value.strip())
        if match is None:
            raise InvalidProblem(name, value, allowed)
        return [int(digits) for digits in re.split(r"[x×,\s]+", match[1])]
    return [value]
