"""Costs of epilogues from made-up rows, and how advice by them is judged."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from benchmarks import ending_costs
from benchmarks.endings.costs import COUNTED, IGNORED, RULES, TREE, fitted, halves, held_out, pairs_of, scores, tried_ms
from benchmarks.endings.rows import CUDNN, EAGER, EAGER_PLAIN, OURS, PLAIN, POOL, Row, Timed, write
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.summary import Summary
from conv_advisor.models.ranking import endings
from conv_advisor.models.ranking.endings import Work
from conv_advisor.models.training.ending_fit import Pair
from tests.app.serving import GPU, small_tree

FUSED, APPENDED, LIBRARY = "cuda.direct_naive", "cuda.gemm", "cudnn.graph.eng0"
KERNEL_MS, BYTE_MS = 0.002, 1e-9
ALONE_MS = {FUSED: 0.0105, APPENDED: 0.010}
"""Alone the second is faster; with an epilogue the first, which has no kernel after it."""


def summary(variant: str, time_ms: float, outcome: Outcome = Outcome.MEASURED) -> Summary:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Summary(variant, outcome, time_ms, 0.001, 5, 0, 1e-7, {}, "", at)


def problem_of(size: int, epilogue: str = "bias-relu") -> ConvProblem:
    return ConvProblem.parse(f"{size}-2-3-6-4-{epilogue}")


def row_of(problem: ConvProblem) -> Row:
    """Fusing costs a tenth; a kernel that follows has its price, and so have its bytes."""
    appended_ms = ALONE_MS[APPENDED] + KERNEL_MS + 2 * problem.y_bytes * BYTE_MS
    fused_ms = 1.1 * ALONE_MS[FUSED]
    timed = {
        OURS: Timed((fused_ms,), FUSED),
        PLAIN: Timed((ALONE_MS[FUSED],)),
        POOL: Timed((fused_ms,), FUSED),
        EAGER_PLAIN: Timed((0.02,)),
        EAGER: Timed((0.02 + 2 * KERNEL_MS + 4 * problem.y_bytes * BYTE_MS,)),
    }
    tried = {FUSED: fused_ms, APPENDED: appended_ms}
    return Row(problem, timed, tried_ms=tried, refused=(LIBRARY,), device=GPU.id, software="made up")


ROWS = [row_of(problem_of(size)) for size in range(5, 45)]
KNOWN = {
    row.problem.plain.key: {name: summary(name, ms) for name, ms in (ALONE_MS | {LIBRARY: 0.03}).items()}
    for row in ROWS
}


def test_a_row_teaches_what_each_variant_takes_with_and_without() -> None:
    row = ROWS[0]
    y_bytes = row.problem.y_bytes
    assert list(pairs_of(row, KNOWN[row.problem.plain.key])) == [
        Pair("fused", Work(0, 0), ALONE_MS[FUSED], row.tried_ms[FUSED]),
        Pair("appended", Work(1, 2 * y_bytes), ALONE_MS[APPENDED], row.tried_ms[APPENDED]),
        Pair("library-float32", Work(0, 0), 0.03, None),
        Pair("eager", Work(2, 4 * y_bytes), 0.02, row.time_ms(EAGER)),
    ]


def test_the_fastest_fused_plan_of_cudnn_stands_beside_its_fastest_alone() -> None:
    row = replace(ROWS[0], refused=(), tried_ms=ROWS[0].tried_ms | {"cudnn.graph.eng41": 0.02})
    row = replace(row, timed=row.timed | {CUDNN: Timed((0.021,), "cudnn.graph.eng41")})
    alone = KNOWN[row.problem.plain.key] | {"cudnn.gemm": summary("cudnn.gemm", 0.018)}
    pairs = [pair for pair in pairs_of(row, alone) if pair.kind.startswith("library")]
    assert [(pair.alone_ms, pair.ended_ms) for pair in pairs] == [(None, 0.02), (0.018, 0.021)]


def test_what_was_not_timed_in_full_is_far_behind_alone_or_not_captured_teaches_nothing() -> None:
    row = replace(ROWS[0], refused=())
    row = replace(row, timed=row.timed | {EAGER: replace(row.timed[EAGER], is_captured=False)})
    known = KNOWN[row.problem.plain.key]
    assert [pair.kind for pair in pairs_of(row, known)] == ["fused", "appended"]
    assert [pair.kind for pair in pairs_of(row, known | {APPENDED: summary(APPENDED, 1.0)})] == ["fused"]
    launch = {APPENDED: summary(APPENDED, 0.01, Outcome.PRUNED)}
    assert [pair.kind for pair in pairs_of(ROWS[0], launch)] == ["fused", "eager"]


def test_of_rows_that_kept_the_chosen_alone_these_count() -> None:
    assert tried_ms(replace(ROWS[0], tried_ms={})) == {FUSED: ROWS[0].time_ms(OURS)}


def test_costs_are_found_and_say_what_they_are_of() -> None:
    found = fitted(ROWS, KNOWN, GPU.id)
    assert (found.device_id, found.software, found.n_layers) == (GPU.id, "made up", len(ROWS))
    assert found.costs["fused"].factor == pytest.approx(1.1)
    assert found.costs["appended"].kernel_ms == pytest.approx(KERNEL_MS, rel=1e-6)
    assert found.costs["appended"].byte_ms == pytest.approx(BYTE_MS, rel=1e-6)
    assert found.costs["eager"].kernel_ms == pytest.approx(KERNEL_MS, rel=1e-6)
    assert found.costs["library-float32"].share == 0


def test_a_layer_is_in_one_half_whatever_its_batch_and_precision() -> None:
    more = [replace(row, problem=replace(row.problem, n=8, dtype="float16")) for row in ROWS]
    one, other = halves([*ROWS, *more])
    assert len(one) == len(other) == len(ROWS)
    layers = [{(row.problem.h, row.problem.k) for row in half} for half in (one, other)]
    assert not layers[0] & layers[1]


def test_advice_that_counts_the_epilogue_is_held_against_advice_that_does_not() -> None:
    model = small_tree({FUSED: 0.0105, APPENDED: 0.010})
    found = scores(held_out(ROWS, KNOWN, GPU.id), KNOWN, model, GPU)["bias-relu"]
    assert found.keys() == set(RULES)
    assert found[COUNTED].slowdowns == [1.0] * len(ROWS)
    assert len(found[TREE].slowdowns) == len(ROWS)
    assert found[IGNORED].slowdowns == [
        max(1.0, row.tried_ms[APPENDED] / row.tried_ms[FUSED]) for row in halves_in_turn()
    ]
    assert min(found[IGNORED].slowdowns) > 1


def halves_in_turn() -> list[Row]:
    one, other = halves(ROWS)
    return [*one, *other]


def test_what_is_advised_and_has_no_time_is_counted_apart() -> None:
    rows = [replace(row, tried_ms={APPENDED: row.tried_ms[APPENDED]}) for row in ROWS]
    rows = [replace(row, timed={side: row.timed[side] for side in (EAGER, EAGER_PLAIN)}) for row in rows]
    told = [(row, fitted(ROWS, KNOWN, GPU.id)) for row in rows]
    found = scores(told, KNOWN, small_tree({FUSED: 0.0105, APPENDED: 0.010}), GPU)["bias-relu"]
    assert (found[COUNTED].slowdowns, found[COUNTED].n_untimed) == ([], len(rows))
    assert found[IGNORED].slowdowns == [1.0] * len(rows)


def test_the_command_prints_its_tables_and_writes_what_advice_reads(tmp_path: Path, capsys) -> None:
    parsed = [ConvProblem.parse(f"56-{n}-3-64-64-bias-relu", dtype="float16", layout="nhwc") for n in (1, 8, 32)]
    rows = [replace(row_of(problem), device="nvidia-h200") for problem in parsed]
    rows += [replace(row_of(problem_of(size)), device="nvidia-h200") for size in range(5, 25)]
    write(rows, tmp_path / "rows.jsonl")
    asked = [str(tmp_path / "rows.jsonl"), "--device", "nvidia-h200", "--output", str(tmp_path), "--write"]
    assert ending_costs.main(asked) == 0
    found = endings.read(tmp_path / "nvidia-h200.json")
    assert found.costs["fused"].factor == pytest.approx(1.1)
    said = capsys.readouterr().out
    assert f"## Costs on nvidia-h200: {len(rows)} layers" in said
    assert "## Slowdown of what is advised (asked: 1.03)" in said
    assert "bias-relu" in said


def test_what_advice_would_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    write([replace(row, device="nvidia-h200") for row in ROWS], tmp_path / "rows.jsonl")
    kept = tmp_path / "nvidia-h200.json"
    kept.write_text("as it was")
    monkeypatch.setattr(ending_costs, "fitted", lambda *of: msgspec.structs.replace(fitted(*of), format=9))
    asked = [str(tmp_path / "rows.jsonl"), "--device", "nvidia-h200", "--output", str(tmp_path), "--write"]
    assert ending_costs.main(asked) == 2
    assert "its format is 9; allowed: 1" in capsys.readouterr().err
    assert kept.read_text() == "as it was"


def test_rows_of_another_device_are_refused(tmp_path: Path, capsys) -> None:
    write(ROWS, tmp_path / "rows.jsonl")
    assert ending_costs.main([str(tmp_path / "rows.jsonl"), "--device", "nvidia-h200"]) == 2
    assert "no row is of nvidia-h200" in capsys.readouterr().err
    assert ending_costs.main([str(tmp_path / "nothing.jsonl")]) == 2
