"""The written parts of ``docs/tree.md``: the first decisions of the tree that ships, and the plain tree beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.plots.pages import number, percent, rewritten, table
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import Layout
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, split
from conv_advisor.models.evaluation.judging import Score, comparable, even_weights, judge
from conv_advisor.models.ranking.trust import WITHIN
from conv_advisor.models.training.plain import PlainTree, covers, plain_tree
from conv_advisor.models.tree.file import TreeModel
from conv_advisor.models.tree.first_levels import Kind, Side, first_levels

PAGE: Final = "tree.md"
LEAVES: Final = (30, 100, 300, 1000)
SHOWN: Final = 30
"""Leaves of the plain tree whose first decisions are shown."""


def write(model: TreeModel, costs: Costs, docs: Path) -> None:
    """Write the parts of the page anew.

    Parameters
    ----------
    model : TreeModel
        That ships.
    costs : Costs
        All that was measured on its device.
    docs : Path
    """
    page = docs / PAGE
    parts = {"first decisions": decisions(first_levels(model)), **plain(model, costs)}
    page.write_text(rewritten(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


def decisions(kinds: Sequence[Kind]) -> str:
    """A list of decisions within decisions for each precision and layout."""
    return "\n\n".join(
        "\n".join([f"### {kind.dtype} {kind.layout.upper()}, {kind.n_layers:,} layers", "", *_lines(kind.head, 0)])
        for kind in kinds
    )


def plain(model: TreeModel, costs: Costs) -> dict[str, str]:
    """Scores of plain trees on networks never trained on, and the first decisions of a small one."""
    never = held_out_layers()
    known, unseen = split(costs, {problem.layer for problem in costs.problems} & never)
    rows, shown = [], ""
    for layout in Layout:
        judged = unseen.where(lambda problem, layout=layout: covers(problem, layout))  # type: ignore[misc]  # a lambda with a default has no type that mypy infers
        trees = [plain_tree(known, layout, leaves) for leaves in LEAVES]
        rows += list(_scores(layout, trees, model, judged))
        shown = shown or f"```text\n{trees[LEAVES.index(SHOWN)].text()}\n```"
    head = ("layout", "tree", "problems", "mean · 95th percentile · worst", f"over {percent(WITHIN)} behind")
    return {"plain scores": table(head, rows), "plain tree": shown}


def _scores(layout: Layout, trees: Sequence[PlainTree], model: TreeModel, judged: Costs) -> Iterator[tuple[str, ...]]:
    """A row a tree, on the problems where the choice of every tree was timed to the end."""
    names = [f"plain, {leaves:,} leaves" for leaves in LEAVES]
    results = {name: judge(judged, tree.order) for name, tree in zip(names, trees, strict=True)}
    results["as it ships"] = judge(judged, Advisor(model).predict_order)
    for name, fared in comparable(results).items():
        weights = even_weights([result.problem for result in fared])
        score = Score.of(fared, weights)
        is_over = sum(weight for weight, result in zip(weights, fared, strict=True) if result.slowdown > 1 + WITHIN)
        text = f"{number(score.geometric_mean, 3)} · {number(score.p95)} · {number(score.worst, 1)}"
        yield layout.upper(), name, f"{score.n_problems:,}", text, percent(float(is_over))


def _lines(side: Side, level: int) -> Iterator[str]:
    share = percent(side.share) if side.share >= 0.005 else "under 1 %"
    winners = ", ".join(f"`{name}` on {percent(of)}" for name, of in side.winners) or "nothing is expected to run"
    prefix = f"{side.said}: " if side.said else ""
    yield f"{'    ' * level}- {prefix}{share} of the layers; {winners}"
    for below in side.below:
        yield from _lines(below, level + 1)
