"""The scores on docs/advice.md and the README are those of the report that ships beside them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("matplotlib", reason="only the figures need matplotlib")

from benchmarks.measured import Counts
from benchmarks.plots import advice, pages
from benchmarks.plots.__main__ import DOCS, RESULTS, ROOT
from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, TUNED, Row, write
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation.evaluate import evaluate
from conv_advisor.models.evaluation.judging import SINGLE_BEST, TEACHER, TREE
from conv_advisor.models.evaluation.peers import PEERS, read_peers
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.training.train import training_set
from conv_advisor.models.tree.file import read

DEVICE = "nvidia-h200"
RULES = {TREE: 1.01, TEACHER: 1.005, "cudnn.heuristic_v7": 1.5, "cudnn.graph.heuristic_a": 1.4, SINGLE_BEST: 1.3}
OTHERS = {"cudnn.graph.heuristic_b": 1.35, DEFAULT: 1.6, TUNED: 1.7, ORACLE: 1.0}


def scores(rules: dict[str, float], n_problems: int = 1200) -> dict[str, Any]:
    return {
        rule: {"n_problems": n_problems, "geometric_mean": mean, "p95": 2 * mean, "worst": 10 * mean}
        for rule, mean in rules.items()
    }


def part(**more: Any) -> dict[str, Any]:
    """What a report says of each of its parts."""
    precisions = ("tf32/nchw", "float32/nhwc")
    errors = {name: {"median": median} for name, median in (("overall", 0.09), ("tf32/nchw", 0.1), ("x", 0.08))}
    return {
        "overall": scores(RULES),
        "by_precision": {name: scores(RULES) for name in precisions},
        "by_network": {"dla34": scores(RULES)},
        "trees": {name: scores({TREE: 1.01, TEACHER: 1.005}, 1300) for name in ("overall", *precisions)},
        "n_left_out": {"cudnn.heuristic_v7": 42, "cudnn.graph.heuristic_a": 2},
        "n_silent": {"cudnn.graph.heuristic_a": 14},
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
    report = part(never_trained=part())
    names = advice.parts(report, report, rows)
    for page, parts in (("advice.md", list(names)), ("README.md", ["never trained"])):
        (tmp_path / page).write_text("\n".join("\n".join(pages.marks(name)) for name in parts))
    advice.write(tmp_path / "report.json", report, tmp_path / "peers.parquet", tmp_path, tmp_path / "README.md")
    return (tmp_path / "advice.md").read_text(), (tmp_path / "README.md").read_text()


def test_every_score_is_on_its_page(written: tuple[str, str]) -> None:
    page, readme = written
    row = "1,200 | 1.010 · 2.02 · 10.1 | 1.500 · 3.00 · 15.0 | 1.400 · 2.80 · 14.0 | 1.300 · 2.60 · 13.0 |"
    for text in (page, readme):
        rows = [line for line in text.splitlines() if line.endswith(row)]
        names = [line.split(" | ")[0] for line in rows]
        assert names == ["| float32 NHWC", "| tf32 NCHW", "| all"]
        assert "100 more measured problems are left out for every rule" in text
        assert (
            "(cuDNN heuristic v7 42, cuDNN graph heuristic A 2), or a rule made no choice (cuDNN graph heuristic A 14)"
            in text
        )
    alone = "| all | 1,300 | 1.010 · 2.02 · 10.1 | 1,200 | 1.500 · 3.00 · 15.0 | 1.400 · 2.80 · 14.0 |"
    assert alone in page, "networks left out"
    assert "| dla34 | 1,200 | 1.010 | 1.400 | 1.300 |" in page
    begin, end = map(page.index, pages.marks("in common"))
    ranked = re.findall(r"^\| ([^|]*) \| \d\.", page[begin:end], re.MULTILINE)
    assert ranked[:3] == ["its teacher", "this tree", "single best variant"]
    assert ranked[-2:] == ["PyTorch default", "PyTorch `benchmark=True`"]
    assert "error of 9.0 % (8.0 to 10.0 % by precision and layout)" in page
    assert "| float16 nhwc" in page
    assert "2.00 (reached: 1.15)" in page, "advice over PyTorch's default"


@pytest.fixture(scope="module")
def measured() -> tuple[pa.Table, pa.Table]:
    records = Records()
    return records.table(DEVICE), records.picks_table(DEVICE)


@pytest.fixture(scope="module")
def standing(measured: tuple[pa.Table, pa.Table]) -> dict[str, Any]:
    """What the shipped measurements say of the shipped tree, computed anew."""
    peers = read_peers(PEERS / f"{DEVICE}.parquet")
    return evaluate(*measured, device_id=DEVICE, peers=peers, model=read(SHIPPED / DEVICE)).to_dict()


@pytest.mark.slow
def test_the_pages_say_what_the_shipped_tree_comes_to_on_the_shipped_measurements(standing: dict[str, Any]) -> None:
    report = json.loads((RESULTS / f"evaluation-{DEVICE}.json").read_text(encoding="utf-8"))
    found = advice.parts(report, standing, advice.read(PEERS / f"{DEVICE}.parquet"))
    for path, names in ((DOCS / "advice.md", list(found)), (ROOT / "README.md", [advice.NEVER])):
        page = path.read_text(encoding="utf-8")
        stale = [name for name in names if pages.rewritten(page, {name: found[name]}) != page]
        assert stale == [], f"{path.name}: run python -m benchmarks.plots"


@pytest.mark.slow
def test_the_report_and_the_card_say_it_too(standing: dict[str, Any]) -> None:
    report = json.loads((RESULTS / f"evaluation-{DEVICE}.json").read_text(encoding="utf-8"))
    card = json.loads((SHIPPED / DEVICE / "card.json").read_text(encoding="utf-8"))
    never = standing["never_trained"]
    for name, anew in never["trees"].items():
        kept, said = report["never_trained"]["trees"][name][TREE], card["scores"]["never_trained"][name]
        assert kept["n_problems"] == anew[TREE]["n_problems"]
        for each in ("geometric_mean", "p95", "worst", "share_tied"):
            assert kept[each] == pytest.approx(anew[TREE][each]), (name, each)
            assert said[each] == round(anew[TREE][each], 4), (name, each)
    n_left_out = {rule: n for rule, n in report["never_trained"]["n_left_out"].items() if rule != TEACHER}
    assert n_left_out == never["n_left_out"]
    for name, left_out in report["trees"].items():
        assert card["scores"]["leave_one_network_out"][name]["geometric_mean"] == round(
            left_out[TREE]["geometric_mean"], 4
        )


@pytest.mark.slow
def test_what_is_published_was_timed_to_the_end(standing: dict[str, Any]) -> None:
    """cuDNN's heuristic v7 was said to be 250.4 times behind at worst, for a first launch; sampled, that is 2.91."""
    worst = {rule: score["worst"] for rule, score in standing["never_trained"]["overall"].items()}
    assert worst["cudnn.heuristic_v7"] < 41
    assert standing["never_trained"]["n_left_out"]["cudnn.heuristic_v7"] == 21


@pytest.mark.slow
def test_every_count_is_that_of_the_shipped_measurements(measured: tuple[pa.Table, pa.Table]) -> None:
    """Problems, layers and times count the same on every page: a time is one that was sampled to the end."""
    counts = Counts.of(measured[0])
    known = training_set(from_table(measured[0], DEVICE))
    card = json.loads((SHIPPED / DEVICE / "card.json").read_text(encoding="utf-8"))
    anew = {
        "n_problems": len(known.problems),
        "n_layers": len({problem.layer for problem in known.problems}),
        "n_times": int((np.isfinite(known.time_ms) & ~known.is_pruned).sum()),
    }
    assert {name: card[name] for name in anew} == anew
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{round(counts.n_tried, -4):,} trials of a variant on a layer" in readme
    assert f"{round(counts.n_timed, -3):,} of them timed to the end" in readme
    times = f"{round(card['n_times'], -3):,}"
    assert f"{card['n_problems']:,} problems of {card['n_layers']:,} layers with {times} times" in readme
    outcomes = Counter(measured[0]["outcome"].to_pylist())
    n_refused = outcomes[Outcome.UNSTEADY]
    decision = " ".join((DOCS / "decisions" / "0016-who-judges-and-what-counts.md").read_text(encoding="utf-8").split())
    n_timed = outcomes[Outcome.MEASURED] + n_refused
    assert f"Of the H200's {n_timed:,} timed attempts these bounds refuse {n_refused}." in decision
