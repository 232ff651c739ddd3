"""A layer in answers."""

from __future__ import annotations

from typing import cast

from typing_extensions import TypedDict

from conv_advisor.data.problem import FIELDS, ConvProblem


class ProblemAnswer(TypedDict):
    """A layer: its short form, all fields, the output's size, and the operations of the direct algorithm."""

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
    p: int
    q: int
    flops: int


def problem_answer(problem: ConvProblem) -> ProblemAnswer:
    """A problem as every answer says it."""
    fields = {"layer": problem.short} | {name: getattr(problem, name) for name in FIELDS}
    return cast("ProblemAnswer", fields | {"p": problem.p, "q": problem.q, "flops": problem.flops})
