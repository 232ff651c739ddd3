"""A layer in answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import NotRequired, cast

from typing_extensions import TypedDict

from conv_advisor.data.problem import FIELDS, ConvProblem


class ProblemAnswer(TypedDict):
    """A layer: its short form, all fields, the output's size, and the operations of the direct algorithm.

    pad_h_end and pad_w_end are present if opposite sides are padded differently; bias, residual and activation if the
    layer has an epilogue.
    """

    layer: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    groups: int
    dtype: str
    layout: str
    pad_h_end: NotRequired[int]
    pad_w_end: NotRequired[int]
    bias: NotRequired[bool]
    residual: NotRequired[bool]
    activation: NotRequired[str]
    p: int
    q: int
    flops: int


def problem_answer(problem: ConvProblem) -> ProblemAnswer:
    """A problem as every answer says it."""
    fields = {"layer": problem.short} | {name: getattr(problem, name) for name in FIELDS}
    if problem.has_uneven_padding:
        fields |= {"pad_h_end": problem.pad_h_end, "pad_w_end": problem.pad_w_end}
    if problem.epilogue:
        fields |= asdict(problem.epilogue)
    return cast("ProblemAnswer", fields | {"p": problem.p, "q": problem.q, "flops": problem.flops})
