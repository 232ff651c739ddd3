"""The tables say what the rows say."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.contest.scores import H200
from benchmarks.contest.tables import breakdown_table, layer_table, missing_text, report, target_table, variant_table
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem
from tests.benchmarks.made_up import row

ROWS = [
    row("14-1-3-256-128", 9.0, 1.0),
    row("7-1-1-32-832", 3.0, 1.0, ours="cuda.cuconv"),
    row("14-8-3-256-128", 1.0, 2.0),
    row("14-8-3-256-128", 1.0, 2.0, dtype="bfloat16", layout="nhwc"),
    row("14-1-3-256-128", 1.0, 2.0, l2=L2State.COLD),
]
WARM = ROWS[:4]


def cells(table: str) -> list[list[str]]:
    """The cells of a Markdown table, without its head and rule."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_target_stands_beside_what_is_reached() -> None:
    first, second = cells(target_table(WARM))
    assert first == [
        "float32 nchw",
        "3 of 602",
        "66.7 % (missed: 70.0 %)",
        "3.00 (reached: 1.50)",
        "5.20 (reached: 3.00)",
        "9.00 (reached: 8.00)",
        "100.0 % (reached: 95.0 %)",
    ]
    assert second == ["bfloat16 nhwc", "1 of 602", "0.0 % (missed: 65.0 %)", "1.00 (missed: 1.20)", "-", "-", "-"]


def test_the_breakdown_has_a_line_for_each_class() -> None:
    assert cells(breakdown_table(WARM)) == [
        ["float32 nchw", "1x1", "1", "1", "100.0 %", "3.00", "3.00", "3.00"],
        ["float32 nchw", "3x3", "1", "1", "100.0 %", "9.00", "9.00", "9.00"],
        ["float32 nchw", "3x3", "8-16", "1", "0.0 %", "1.00", "0.50", "0.50"],
        ["bfloat16 nhwc", "3x3", "8-16", "1", "0.0 %", "1.00", "0.50", "0.50"],
    ]


def test_variants_are_counted_and_failures_too() -> None:
    failed = replace(ROWS[0], failures={"cuda.fft": "launch_failed: an illegal access"})
    text = variant_table([failed, *WARM[1:]])
    won, lost = text.split("\n\n")
    assert cells(won) == [
        ["float32 nchw", "cuda.implicit_gemm", "2", "1"],
        ["float32 nchw", "cuda.cuconv", "1", "1"],
        ["bfloat16 nhwc", "cuda.implicit_gemm", "1", "0"],
    ]
    assert cells(lost) == [["float32 nchw", "cuda.fft", "launch_failed", "1"]]


def test_the_best_and_the_worst_layers_have_their_roofline() -> None:
    lines = cells(layer_table(WARM[:3], H200, 1))
    assert [line[0] for line in lines] == ["14-1-3-256-128", "14-8-3-256-128"]
    assert lines[0][1:6] == ["cuda.implicit_gemm", "1000.00", "cudnn.graph.eng0", "9000.00", "9.00"]
    assert lines[0][6:] == ["1.73", "arithmetic", "579.56", "5216.01"]
    assert len(cells(layer_table(WARM[:3], H200, 2))) == 3, "no layer is shown twice"


def test_a_report_is_of_one_l2_state() -> None:
    text = report(ROWS, L2State.COLD)
    assert "cold" in text
    assert "14-8-3-256-128" not in text
    assert "14-1-3-256-128" in text
    assert report([], L2State.WARM) == "## warm L2"


def test_what_is_missing_is_told_with_its_batches() -> None:
    gaps = {("float32", "nchw"): [ConvProblem.parse(f"7-{n}-1-32-832") for n in (8, 1, 8)]}
    assert missing_text(gaps) == "Not measured: float32 nchw: 3 layers, of batch 1 (1), 8 (2)."
