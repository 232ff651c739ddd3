"""The scores on docs/advice.md and the README are those of the report that ships beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="only the figures need matplotlib")

from benchmarks.plots import advice, pages
from benchmarks.plots.__main__ import DOCS, RESULTS, ROOT
from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, TUNED, Row, write
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.judging import SINGLE_BEST, TEACHER, TREE
from conv_advisor.models.peers import PEERS
from conv_advisor.models.registry import SHIPPED

DEVICE = "nvidia-h200"
RULES = {TREE: 1.01, TEACHER: 1.005, "cudnn.heuristic_v7": 1.5, "cudnn.graph.heuristic_a": 1.4, SINGLE_BEST: 1.3}
OTHERS = {"cudnn.graph.heuristic_b": 1.35, DEFAULT: 1.6, TUNED: 1.7, ORACLE: 1.0}


def scores(rules: dict[str, float]) -> dict[str, Any]:
    return {
        rule: {"n_problems": 1200, "geometric_mean": mean, "p95": 2 * mean, "worst": 10 * mean}
        for rule, mean in rules.items()
    }


def part(**more: Any) -> dict[str, Any]:
    """What a report says of each of its parts."""
    errors = {name: {"median": median} for name, median in (("overall", 0.09), ("tf32/nchw", 0.1), ("x", 0.08))}
    return {
        "overall": scores(RULES),
        "by_precision": {"tf32/nchw": scores(RULES), "float32/nhwc": scores(RULES)},
        "by_network": {"dla34": scores(RULES)},
        "in_common": {"overall": scores(RULES | OTHERS)},
        "time_error": errors,
        **more,
    }


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, str]:
    """docs/advice.md and README.md, made from nothing but marks."""
    (tmp_path / "report.json").write_text(json.dumps(part(never_trained=part())))
    problem = ConvProblem.parse("7-1-3-8-8", dtype="float16", layout="nhwc")
    times_ms = {ORACLE: 1.0, ADVICE: 1.25, DEFAULT: 2.5, TUNED: 2.0}
    rows = [Row(problem, rule, "cudnn.graph.eng1", samples_ms=(ms,) * 3) for rule, ms in times_ms.items()]
    write(rows, tmp_path / "peers.parquet")
    names = advice.parts(part(never_trained=part()), rows)
    for page, parts in (("advice.md", list(names)), ("README.md", ["never trained"])):
        (tmp_path / page).write_text("\n".join("\n".join(pages.marks(name)) for name in parts))
    advice.write(tmp_path / "report.json", tmp_path / "peers.parquet", tmp_path, tmp_path / "README.md")
    return (tmp_path / "advice.md").read_text(), (tmp_path / "README.md").read_text()


def test_every_score_is_on_its_page(written: tuple[str, str]) -> None:
    page, readme = written
    row = "1,200 | 1.010 · 2.02 · 10.1 | 1.500 · 3.00 · 15.0 | 1.400 · 2.80 · 14.0 | 1.300 · 2.60 · 13.0 |"
    for text in (page, readme):
        rows = [line for line in text.splitlines() if line.endswith(row)]
        names = [line.split(" | ")[0] for line in rows]
        assert names == ["| float32 NHWC", "| tf32 NCHW", "| all"] * (2 if text is page else 1)
    assert "| dla34 | 1,200 | 1.010 | 1.400 | 1.300 |" in page
    begin, end = map(page.index, pages.marks("in common"))
    ranked = re.findall(r"^\| ([^|]*) \| \d\.", page[begin:end], re.MULTILINE)
    assert ranked[:3] == ["its teacher", "this tree", "single best variant"]
    assert ranked[-2:] == ["PyTorch default", "PyTorch `benchmark=True`"]
    assert "is 9.0 % (8.0 to 10.0 % by precision and layout)" in page
    assert "| float16 nhwc" in page
    assert "2.00 (reached: 1.15)" in page, "advice over PyTorch's default"


def test_the_pages_say_what_the_report_that_ships_says() -> None:
    report = json.loads((RESULTS / f"evaluation-{DEVICE}.json").read_text(encoding="utf-8"))
    card = json.loads((SHIPPED / DEVICE / "card.json").read_text(encoding="utf-8"))
    overall = report["never_trained"]["overall"][TREE]
    assert card["scores"]["never_trained"]["overall"]["geometric_mean"] == round(overall["geometric_mean"], 4)
    before = {path: path.read_text(encoding="utf-8") for path in (DOCS / "advice.md", ROOT / "README.md")}
    found = advice.parts(report, advice.read(PEERS / f"{DEVICE}.parquet"))
    for path, names in zip(before, (list(found), ["never trained"]), strict=True):
        assert pages.rewritten(before[path], {name: found[name] for name in names}) == before[path]
