"""docs/advice.md and the README: how the shipped tree fares, trees trained without some networks, and PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.plots.pages import number, rewritten, table
from benchmarks.rivals.rows import DEFAULT, TUNED, Row, read
from benchmarks.rivals.scores import layers_of
from benchmarks.rivals.tables import prediction_table, slowdown_table, speedup_table, worth_table
from conv_advisor.data.problem import DType, Layout
from conv_advisor.models.evaluation.judging import ORACLE, SINGLE_BEST, TEACHER, TREE

NAMES: Final = {
    TREE: "this tree",
    TEACHER: "its teacher",
    "cudnn.heuristic_v7": "cuDNN heuristic v7",
    "cudnn.graph.heuristic_a": "cuDNN graph heuristic A",
    "cudnn.graph.heuristic_b": "cuDNN graph heuristic B",
    DEFAULT: "PyTorch default",
    TUNED: "PyTorch `benchmark=True`",
    SINGLE_BEST: "single best variant",
}
"""What the pages call the rules."""
OTHERS: Final = ("cudnn.heuristic_v7", "cudnn.graph.heuristic_a", SINGLE_BEST)
BESIDE: Final = (TREE, *OTHERS)
"""Rules that are compared on the same problems."""
OF_NETWORKS: Final = (TREE, "cudnn.graph.heuristic_a", SINGLE_BEST)

NEVER: Final = "never trained"
"""The part that the README has too."""

Scores = Mapping[str, Any]


def write(report: Path, standing: Scores, peers: Path, docs: Path, readme: Path) -> None:
    """Rewrite the parts of both pages.

    Parameters
    ----------
    report : Path
        What `conv-advisor evaluate --json` printed.
    standing : dict
        What `models.evaluation.evaluate.evaluate` says of the shipped tree, which trains nothing.
    peers : Path
        Rows of `benchmarks.advice`.
    docs : Path
        Holds advice.md.
    readme : Path
    """
    texts = parts(json.loads(report.read_text(encoding="utf-8")), standing, read(peers))
    for page, names in ((docs / "advice.md", list(texts)), (readme, [NEVER])):
        text = rewritten(page.read_text(encoding="utf-8"), {name: texts[name] for name in names})
        page.write_text(text, encoding="utf-8")


def parts(report: Scores, standing: Scores, rows: list[Row]) -> dict[str, str]:
    """The parts of docs/advice.md, by the name of their marks.

    Scores of trees that are trained without some networks come from the report, all others from the shipped tree.
    """
    layers = layers_of(rows)
    return standing_parts(standing) | {
        "teacher": teacher_table(report["never_trained"]["trees"]),
        "left out": left_out_part(report["trees"], standing),
        "slowdown beside PyTorch": slowdown_table(layers),
        "speedup over PyTorch": speedup_table(layers),
        "times beside PyTorch": prediction_table(layers),
        "tuning": worth_table(layers),
    }


def standing_parts(standing: Scores) -> dict[str, str]:
    """The parts on the shipped tree and networks that it was never trained on."""
    never = standing["never_trained"]
    return {
        NEVER: f"{precision_table(never)}\n\n{left_out_sentence(never)}",
        "its networks": network_table(never),
        "in common": common_table(never["in_common"]["overall"]),
        "predicted times": time_sentence(never["time_error"]),
    }


def precision_table(part: Scores) -> str:
    """A row a dtype and layout, a column a rule."""
    rows = [*_precisions(part["by_precision"]), ("all", part["overall"])]
    head = ("", "problems", *(NAMES[rule] for rule in BESIDE))
    return table(head, [(name, _count(of), *(_three(of[rule]) for rule in BESIDE)) for name, of in rows])


def left_out_sentence(part: Scores) -> str:
    """How many problems no rule is scored on, and why; and the tree's score with them."""
    launched, silent = (
        ", ".join(f"{NAMES[rule]} {part[name][rule]:,}" for rule in BESIDE if part[name].get(rule)) or "none"
        for name in ("n_left_out", "n_silent")
    )
    alone = part["trees"]["overall"][TREE]
    gone = alone["n_problems"] - part["overall"][TREE]["n_problems"]
    return (
        "All rules are scored on the same problems, and every precision and layout has the same weight in the total."
        f" {gone:,} more measured problems are left out for every rule: there, one rule's choice was only launched"
        f" once, which cannot be scored ({launched}), or a rule made no choice ({silent}). With these problems the tree"
        f" is at {_three(alone)} on {alone['n_problems']:,}."
    )


def left_out_part(trees: Scores, standing: Scores) -> str:
    """The tree on all problems, and rules without training on the problems where all of those have a score.

    Parameters
    ----------
    trees : dict
        From the report: scores of trees that were trained without each network.
    standing : dict
        What is scored anew.
    """
    head = ("", "problems", NAMES[TREE], "problems", *(NAMES[rule] for rule in OTHERS))
    named = dict([*_precisions(standing["by_precision"]), ("all", standing["overall"])])
    rows = dict([*_precisions(trees), ("all", trees["overall"])])
    return table(
        head,
        [
            (
                *(name, _count(rows[name]), _three(rows[name][TREE])),
                *(_count(of), *(_three(of[rule]) for rule in OTHERS)),
            )
            for name, of in named.items()
        ],
    )


def network_table(part: Scores) -> str:
    """A row a network, geometric means alone."""
    head = ("", "problems", *(NAMES[rule] for rule in OF_NETWORKS))
    return table(
        head,
        [
            (name, _count(of), *(number(of[rule]["geometric_mean"], 3) for rule in OF_NETWORKS))
            for name, of in part["by_network"].items()
        ],
    )


def common_table(scores: Scores) -> str:
    """A row a rule, the best first; over how many problems."""
    ranked = sorted((rule for rule in scores if rule != ORACLE), key=lambda rule: scores[rule]["geometric_mean"])
    head = (f"{_count(scores)} problems", "geometric mean", "95th percentile", "worst")
    return table(head, [(NAMES[rule], *_three(scores[rule]).split(" · ")) for rule in ranked])


def teacher_table(trees: Scores) -> str:
    """The tree beside what it learned from."""
    rows = [*_precisions(trees), ("all", trees["overall"])]
    return table(
        ("", NAMES[TREE], NAMES[TEACHER]), [(name, _three(of[TREE]), _three(of[TEACHER])) for name, of in rows]
    )


def time_sentence(errors: Scores) -> str:
    """The median error of the predicted times, over all and its range."""
    medians = [error["median"] for name, error in errors.items() if name != "overall"]
    least, most = (f"{100 * value:.1f}" for value in (min(medians), max(medians)))
    return (
        f"The predicted time of the chosen variant has a median error of {100 * errors['overall']['median']:.1f} %"
        f" ({least} to {most} % by precision and layout)."
    )


def _precisions(scores: Scores) -> Iterable[tuple[str, Scores]]:
    """The precisions that have scores, in the order of the dtypes, with their names on the pages."""
    for dtype in DType:
        for layout in Layout:
            if of := scores.get(f"{dtype}/{layout}"):
                yield f"{dtype} {layout.upper()}", of


def _count(scores: Scores) -> str:
    """How many problems the scores rest on, the same for all of them."""
    return f"{next(iter(scores.values()))['n_problems']:,}"


def _three(score: Scores) -> str:
    return f"{score['geometric_mean']:.3f} · {score['p95']:.2f} · {score['worst']:.1f}"
