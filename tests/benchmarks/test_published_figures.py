"""Figures in the prose and in the unmarked tables of the README and docs/kernels.md: each follows from what ships."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from benchmarks.contest import rows as contest
from benchmarks.contest.scores import score
from benchmarks.contest.tables import target_table
from benchmarks.measured import Counts
from benchmarks.rivals.rows import DEFAULT, ORACLE, TUNED, read
from benchmarks.rivals.scores import Layer, geometric_mean, layers_of, of_column, speedup
from conv_advisor.data.measurement import L2State
from conv_advisor.data.networks import BEYOND_HELD_OUT, GROUPS, HELD_OUT, held_out_layers
from conv_advisor.data.networks import layers as layers_of_network
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation.judging import TREE, Score, TimeError, judge, time_errors
from conv_advisor.models.evaluation.peers import PEERS
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read as read_tree

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
DECISION = " ".join(
    (ROOT / "docs" / "decisions" / "0016-who-judges-and-what-counts.md").read_text(encoding="utf-8").split()
)
KERNELS = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def layers() -> list[Layer]:
    return layers_of(read(PEERS / "nvidia-h200.parquet"))


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "evaluation-nvidia-h200.json").read_text(encoding="utf-8"))
    return found


def gains(layers: list[Layer]) -> tuple[str, str]:
    """How many times as fast as PyTorch's default and as its benchmark mode."""
    default, tuned = speedup(layers, DEFAULT), speedup(layers, TUNED)
    assert default
    assert tuned
    return f"{default.geometric_mean:.2f}×", f"{tuned.geometric_mean:.2f}×"


def test_the_gain_over_pytorch_is_that_of_the_run_that_ships(layers: list[Layer]) -> None:
    (default, tuned), over_default = gains(layers), speedup(layers, DEFAULT)
    assert over_default
    assert f"| one layer by the advised variant | PyTorch's default | {default} |" in README
    assert f"over {over_default.n_layers:,} of these problems" in README
    assert f"the advised variants were {default} as fast as PyTorch 2.11's default, and {tuned} as fast" in README
    nchw, nhwc = (gains(of_column(layers, column)) for column in (("float32", "nchw"), ("float16", "nhwc")))
    oracle = geometric_mean(
        [layer[DEFAULT].time_ms / layer[ORACLE].time_ms for layer in of_column(layers, ("float16", "nhwc"))]
    )
    assert (
        f"(float32 NCHW {nchw[0]} and {nchw[1]}; float16 NHWC {nhwc[0]} and {nhwc[1]}, "
        f"where the oracle is at {oracle:.2f}×); {over_default.share_much_slower:.0%}".replace("%", " %")
    ) in README


def test_the_first_lines_say_what_the_report_says(report: dict[str, Any]) -> None:
    never = {rule: f"{found['geometric_mean']:.3f}" for rule, found in report["never_trained"]["overall"].items()}
    heuristics = sorted(float(never[rule]) for rule in ("cudnn.heuristic_v7", "cudnn.graph.heuristic_a"))
    assert f"what it advises takes {never[TREE]} times as long as the fastest variant there is" in README
    assert f"what cuDNN's heuristics choose, {heuristics[0]:.2f} and {heuristics[1]:.2f} times" in README


def test_what_the_seed_networks_come_to_is_in_the_report(report: dict[str, Any]) -> None:
    left_out = report["trees"]["overall"][TREE]
    three = f"{left_out['geometric_mean']:.3f} · {left_out['p95']:.2f} · {left_out['worst']:.1f}"
    assert f"each left out in turn, it is at {three}" in README
    assert f"is off by {100 * report['never_trained']['time_error']['overall']['median']:.0f} %" in README


def test_the_best_of_three_is_that_of_the_page_of_advice() -> None:
    page = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")
    table = page[page.index("<!-- top:") : page.index("<!-- end of top -->")]
    (whole,) = re.findall(r"^\| all \| [\d,]+ \|(.*)\|$", table, re.MULTILINE)
    of_three = whole.split("|")[2].split("·")[0].strip()
    assert f"on networks never trained on that takes {of_three} times as long as the fastest of all" in README


def test_what_the_page_of_advice_says_in_short_is_in_its_tables(report: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")
    tree, heuristic = (
        f"{each['geometric_mean']:.3f} · {each['p95']:.2f} · {each['worst']:.1f}"
        for each in (report["never_trained"]["overall"][rule] for rule in (TREE, "cudnn.graph.heuristic_a"))
    )
    said = " ".join(page.split())
    assert (
        f"In short: {tree} on networks that were never trained on, where cuDNN's best heuristic is at {heuristic};"
        in said
    )
    (row,) = re.findall(r"^\| below 90 % \|(.*)\|$", page[page.index("<!-- unsure:") :], re.MULTILINE)
    _, two, calls_of_two, three, calls_of_three, *_ = (cell.strip() for cell in row.split("|"))
    two, three = (" · ".join(each.split(" · ")[:2]) for each in (two, three))
    more = round(int(calls_of_three.replace(",", "")) - int(calls_of_two.replace(",", "")), -2)
    assert f"two variants leave {two} and three {three}, which takes some {more:,} calls more" in said


@pytest.fixture(scope="module")
def contested() -> list[contest.Row]:
    return contest.read(RESULTS / "kernels-nvidia-h200.parquet")


@pytest.mark.parametrize("l2", [L2State.WARM, L2State.COLD])
def test_the_page_of_kernels_has_the_contest_that_ships(contested: list[contest.Row], l2: L2State) -> None:
    table = target_table([row for row in contested if row.l2 is l2])
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert cells
    for line in cells:
        assert f"| {' | '.join(line)} |" in KERNELS, f"{l2}: {line[0]}"


def test_the_readme_has_the_contest_that_ships(contested: list[contest.Row]) -> None:
    warm = [row for row in contested if row.l2 is L2State.WARM]
    for column in sorted({row.column for row in warm}):
        found = score(row for row in warm if row.column == column)
        best = f", best {found.one_image_best:.1f}×" if column == ("float32", "nchw") else ""
        line = f"| {column[0]} {column[1].upper()} | {found.rows} | {100 * found.wins:.0f} % | {found.gain:.2f}× |"
        assert f"{line} {found.one_image:.2f}×{best} |" in README


def test_what_the_sweep_says_of_channels_last_is_on_the_page_of_kernels() -> None:
    lines = dict(re.findall(r"^\| (\w+ nhwc) \| 602 \| (\d+ % \| [\d.]+) \|", KERNELS, re.MULTILINE))
    wins, means = zip(
        *(lines[f"{dtype} nhwc"].split(" % | ") for dtype in ("float16", "bfloat16", "tf32", "float32")), strict=True
    )
    assert f"ours wins {wins[0]}, {wins[1]} and {wins[2]} % in float16, bfloat16 and tf32 NHWC" in README
    assert f"the means are {means[0]}×, {means[1]}× and {means[2]}×; in float32 NHWC it wins {wins[3]} %" in README
    assert f"and the mean is {means[3]}×." in README


def test_the_decision_says_which_layers_are_held_out() -> None:
    judges, beyond, seeds, others = (
        {layer.problem for layer in layers_of_network(name)}
        for name in (HELD_OUT, BEYOND_HELD_OUT, "seeds", "more-networks")
    )
    n_held_out = len(held_out_layers() & judges)
    assert f"`held_out_layers`, {n_held_out} of {len(judges)}, are held out" in DECISION
    assert f"The other {len(judges) - n_held_out} teach" in DECISION
    assert f"So are the {len(held_out_layers() & beyond)} layers of `BEYOND_HELD_OUT`" in DECISION
    assert f"{len(seeds & judges)} of the {len(seeds)} layers of the seeds" in DECISION
    assert f"{len(others & judges)} of the {len(others)} of the other networks trained on" in DECISION
    assert f"layers of {len(GROUPS['more-networks'])} more networks" in README
    assert f"{7 * len(seeds)} configurations of the papers' five networks" in README


def test_the_decision_counts_what_judges(report: dict[str, Any]) -> None:
    never = report["never_trained"]
    problems = {name: found[TREE]["n_problems"] for name, found in never["trees"].items()}
    assert (
        f"there are {problems['float32/nhwc']} problems of float32 NHWC to judge by, "
        f"and {problems['float16/nchw']} of float16 NCHW"
    ) in DECISION
    assert f"({never['n_left_out']['single best']} of {problems['overall']:,} problems)" in DECISION


def _first(advisor: Advisor, problem: ConvProblem) -> str:
    """What a tree would run, measured or not."""
    return next(iter(advisor.predict_order(problem) or ()))


def test_what_a_borrowed_tree_is_worth_is_what_the_h100_says() -> None:
    records = Records()
    device = records.device("h100")
    table = records.table(device.id)
    costs, advisor = from_table(table, device.id), Advisor(read_tree(SHIPPED / "nvidia-h200"), device)
    results = [each for each in judge(costs, advisor.predict_order) if each.is_timed]
    found, share_passed = Score.of(results), fmean(each.variant != _first(advisor, each.problem) for each in results)
    off = TimeError.of([error for _, error in time_errors(costs, advisor)]).median
    said = " ".join((ROOT / "docs" / "how-to.md").read_text(encoding="utf-8").split())
    assert f"measurements ship, of {found.n_problems:,} problems of the seed networks" in said
    assert f"takes {found.geometric_mean:.3f} times as long as the fastest (95th percentile {found.p95:.2f};" in said
    assert f"first choice was not measured there, {100 * share_passed:.0f} % of them, the next one" in said
    assert f"its times are {100 * off:.0f} % off in the median" in said
    assert f"{round(Counts.of(table).n_tried, -3):,} trials made on an H100" in README
