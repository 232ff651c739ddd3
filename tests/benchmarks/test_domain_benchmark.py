"""The table of the domain's benchmark, by hand."""

from __future__ import annotations

from benchmarks.domain import KINDS, report
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.evaluation.judging import Result

PROBLEM = ConvProblem.parse("14-1-3-256-128")


def result(slowdown: float) -> Result:
    return Result(PROBLEM, slowdown, is_tied=False, is_refused=False, is_oracle=False)


def test_slowdowns_are_told_by_distance_and_by_whether_the_tree_abstains() -> None:
    found = [
        (0.5, True, result(1.0), result(2.0)),
        (0.6, True, result(4.0), result(2.0)),
        (1.6, True, result(1.5), result(3.0)),
        (9.0, False, result(8.0), result(9.0)),
    ]
    lines = report(found).splitlines()
    assert lines[0] == "| octaves away | problems | tree | single best |"
    assert lines[2] == "| 0 to 0.75 | 2 | 2.000 · 3.85 · 4.0 | 2.000 · 2.00 · 2.0 |"
    assert lines[3].startswith("| 1.5 to 1.75 | 1 | 1.500 ")
    assert lines[4].startswith("| 3.5 to inf | 1 | 8.000 ")
    assert [line.split(" | ")[:2] for line in lines[5:]] == [["| inside", "3"], ["| outside", "1"]]


def test_each_kind_leaves_out_its_own_layers() -> None:
    plain = ConvProblem.parse("28-1-3-64-64")
    assert not any(is_left_out(plain) for is_left_out in KINDS.values())
    assert KINDS["filter 5"](ConvProblem.parse("28-1-5-64-64"))
    assert KINDS["groups"](ConvProblem.parse("28-1-3-64-64", groups=2))
    assert KINDS["odd sizes"](ConvProblem.parse("27-1-3-64-64"))
