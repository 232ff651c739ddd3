"""The names that people give layers: ``14-1-3-256-128`` and what may follow it, read and written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from conv_advisor.data.epilogue import PARTS, Epilogue
from conv_advisor.data.errors import InvalidLayerName, InvalidProblem

if TYPE_CHECKING:
    from conv_advisor.data.problem import ConvProblem


def _pair(first: str, second: str) -> str:
    return rf"(?P<{first}>\d+)(?:x(?P<{second}>\d+))?"


_NAME: Final = re.compile(
    rf"{_pair('h', 'w')}-(?P<n>\d+)-{_pair('r', 's')}-(?P<k>\d+)-(?P<c>\d+)"
    rf"(?:-stride{_pair('stride_h', 'stride_w')})?(?:-pad{_pair('pad_h', 'pad_w')})?"
    rf"(?:-end{_pair('pad_h_end', 'pad_w_end')})?(?:-dilation{_pair('dilation_h', 'dilation_w')})?"
    r"(?:-groups(?P<groups>\d+))?(?P<epilogue>(?:-[a-z][a-z0-9_]*)*)",
    re.ASCII,
)
_SAME_AS: Final = {"w": "h", "s": "r"} | {
    f"{name}_w{end}": f"{name}_h{end}" for name, end in (("stride", ""), ("pad", ""), ("pad", "_end"), ("dilation", ""))
}
"""The number that stands in for one that a name leaves out: one number says both sides."""


def read(layer: str, largest: int) -> dict[str, Any]:
    """The fields of a `ConvProblem` that a name gives; see `ConvProblem.parse`.

    Parameters
    ----------
    layer : str
    largest : int
        Numbers of more digits are refused unread.

    Raises
    ------
    InvalidLayerName
    """
    match = _NAME.fullmatch(layer)
    if match is None:
        raise InvalidLayerName("layer", layer, "size-batch-filter-filters-depth, such as 14-1-3-256-128")
    sizes = match.groupdict()
    epilogue = sizes.pop("epilogue")
    if max(len(digits) for digits in sizes.values() if digits) > len(str(largest)):
        raise InvalidLayerName("layer", layer, f"numbers of at most {largest}")
    values: dict[str, Any] = {name: int(digits) for name, digits in sizes.items() if digits}
    values |= {name: values[other] for name, other in _SAME_AS.items() if name not in values and other in values}
    if "pad_h" not in values:
        values |= {"pad_h": values["r"] // 2, "pad_w": values["s"] // 2}
    if epilogue:
        values["epilogue"] = _epilogue_of(layer, epilogue[1:])
    return values


def short(problem: ConvProblem) -> str:
    """The short form where it tells everything but dtype and layout, else a long form; stored data, never changed."""
    is_square = problem.h == problem.w and problem.r == problem.s
    is_same = problem.pad_h == problem.pad_w == problem.pad_h_end == problem.pad_w_end == problem.r // 2
    has_usual_steps = problem.stride_h == problem.stride_w == problem.dilation_h == problem.dilation_w == 1
    last = f"-{problem.epilogue}" if problem.epilogue else ""
    if is_square and is_same and has_usual_steps and problem.groups == 1:
        return f"{problem.h}-{problem.n}-{problem.r}-{problem.k}-{problem.c}{last}"
    ends = f"-end{problem.pad_h_end}x{problem.pad_w_end}" if problem.has_uneven_padding else ""
    return (
        f"{problem.h}x{problem.w}-{problem.n}-{problem.r}x{problem.s}-{problem.k}-{problem.c}"
        f"-stride{problem.stride_h}x{problem.stride_w}-pad{problem.pad_h}x{problem.pad_w}{ends}"
        f"-dilation{problem.dilation_h}x{problem.dilation_w}-groups{problem.groups}{last}"
    )


def brief(problem: ConvProblem) -> str:
    """The shortest name that `read` reads: the short form, followed by what is not as usual."""
    pads, ends = (problem.pad_h, problem.pad_w), (problem.pad_h_end, problem.pad_w_end)
    parts = [
        f"{_both(problem.h, problem.w)}-{problem.n}-{_both(problem.r, problem.s)}-{problem.k}-{problem.c}",
        _said("stride", (problem.stride_h, problem.stride_w), (1, 1)),
        _said("pad", pads, (problem.r // 2, problem.s // 2)),
        _said("end", ends, pads),
        _said("dilation", (problem.dilation_h, problem.dilation_w), (1, 1)),
        f"groups{problem.groups}" if problem.groups > 1 else "",
        str(problem.epilogue),
    ]
    return "-".join(filter(None, parts))


def _said(name: str, sides: tuple[int, int], usual: tuple[int, int]) -> str:
    return "" if sides == usual else name + _both(*sides)


def _both(first: int, second: int) -> str:
    return str(first) if first == second else f"{first}x{second}"


def _epilogue_of(layer: str, text: str) -> Epilogue:
    try:
        return Epilogue.parse(text)
    except InvalidProblem:
        sizes = "in this order, by hyphens: stride, pad, end, dilation, groups, with their numbers (stride2, pad1x0)"
        raise InvalidLayerName("layer", layer, f"after the sizes, {sizes}; {PARTS}") from None
