"""The whole of `benchmarks.advice`, in a real worker process on a replaying device, whatever happens to it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import advice
from benchmarks.rivals.orders import of_networks, shuffled
from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, SINGLE_BEST, THREE, TUNED, Row, read
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.tree.arrays import LEAF
from conv_advisor.models.tree.features import FEATURES
from conv_advisor.models.tree.file import make, write
from tests import fakes
from tests.benchmarks import peers
from tests.benchmarks.made_up import GPU
from tests.data import arrow

LAYERS = [ConvProblem.parse(layer) for layer in ("5-1-3-4-2", "6-1-1-4-2", "7-8-3-4-2")]
OTHER = ConvProblem.parse("9-1-3-4-2")
TIMES_MS = {"cudnn.implicit_gemm": 4.0, "cudnn.graph.eng0": 3.0, "cuda.implicit_gemm": 2.2, "cuda.direct_naive": 2.0}


def recorded(*changes: tuple[str, dict[str, object]], problems: list[ConvProblem] | None = None) -> list[Measurement]:
    """Every variant measured on every layer, some of them changed."""
    rows = [
        Measurement(
            *(problem, variant, GPU, Outcome.MEASURED),
            samples_ms=(time_ms, 1.001 * time_ms, 0.999 * time_ms),
            workspace_bytes=0,
            max_error=1e-7,
            plan={"engine": 0, "knobs": {}} if "eng" in variant else {},
        )
        for problem in problems or [*LAYERS, OTHER]
        for variant, time_ms in TIMES_MS.items()
    ]
    for variant, fields in changes:
        rows = [replace(row, **fields) if row.variant == variant else row for row in rows]
    return rows


def write_stump(folder: Path) -> None:
    """A tree of one comparison that says everywhere: cuda.implicit_gemm 2 ms, cuda.direct_naive 1.25 times that."""
    arrays = {
        "feature": np.array([FEATURES.index("log2_n"), LEAF, LEAF], np.int32),
        "threshold": np.array([1.8, 0, 0]),
        "left": np.array([1, LEAF, LEAF], np.int32),
        "right": np.array([2, LEAF, LEAF], np.int32),
        "place": np.array([LEAF, 0, 1], np.int32),
        "log_slowdown": np.log(np.array([[1, 1.25]] * 2, np.float32)),
        "support": np.ones((2, 2), np.float32),
        "workspace": np.zeros((2, 2), np.float32),
        "log_best": np.full(2, np.log(2.0), np.float32),
        "roofline": np.array([[1e30, 1e30, 1.0]] * 2, np.float32),
        "spread": np.full(2, 0.05, np.float32),
    }
    variants = ("cuda.implicit_gemm", "cuda.direct_naive")
    write(folder, make(arrays, variants=variants, device=GPU, card={"created": "2026-01-01T00:00:00+00:00"}))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the benchmark on a recording; gives the status and the rows."""
    write_stump(tmp_path / "tree")
    (tmp_path / "layers.txt").write_text("".join(f"{each.short} float32 nchw\n" for each in LAYERS))

    def run(
        recording: list[Measurement],
        *options: str,
        known: list[Measurement] | None = None,
        trouble: dict[str, str] | None = None,
    ) -> tuple[int, list[Row]]:
        monkeypatch.setenv(peers.TROUBLE, json.dumps(trouble or {}))
        recorded_at, timings = tmp_path / "recording.parquet", tmp_path / "timings"
        parquet.write(arrow.measurements_to_table(recording), recorded_at)
        timings.mkdir(exist_ok=True)
        if known is not None:
            parquet.write(arrow.measurements_to_table(known), timings / "known.parquet")
        shared = ("--device", str(recorded_at), "--timings", str(timings), "--tree", str(tmp_path / "tree"))
        which = ("--problems", str(tmp_path / "layers.txt"), "--output", str(tmp_path / "rows.parquet"))
        status = advice.main([*shared, *which, *options], opener=fakes.REPLAY, peer_opener=peers.OPENER)
        return status, read(tmp_path / "rows.parquet") if (tmp_path / "rows.parquet").exists() else []

    return run


def by_rule(rows: list[Row], problem: ConvProblem = LAYERS[0]) -> dict[str, Row]:
    """The rows of one layer."""
    return {row.rule: row for row in rows if row.problem == problem}


def test_every_rule_is_timed_on_every_layer(bench, capsys) -> None:
    status, rows = bench(recorded(), known=recorded())
    assert status == 0
    assert {row.problem for row in rows} == set(LAYERS)
    for problem in LAYERS:
        mine = by_rule(rows, problem)
        assert set(mine) == {ADVICE, THREE, SINGLE_BEST, "replayed", ORACLE, DEFAULT, TUNED}
        assert (mine[ADVICE].variant, mine[ADVICE].time_ms) == ("cuda.implicit_gemm", pytest.approx(2.2))
        assert mine[ADVICE].predicted_ms == pytest.approx(2.0)
        assert mine[ADVICE].abstains is False
        assert (mine[THREE].variant, mine[THREE].time_ms) == ("cuda.direct_naive", pytest.approx(2.0))
        assert mine[ORACLE].variant == mine[SINGLE_BEST].variant == "cuda.direct_naive"
        assert (mine[DEFAULT].time_ms, mine[TUNED].time_ms) == (3.0, 2.5)
        assert mine[TUNED].first_call_s == pytest.approx(0.5025)
        assert all(not row.failure and row.networks == "layers" and row.device == GPU.id for row in mine.values())
    printed = capsys.readouterr().out
    assert "1.100 (missed: 1.03)" in printed
    assert "1.36 (reached: 1.30)" in printed
    assert "9.1 % (reached: 10.0 %)" in printed
    assert re.search(r"where it does not *\| *3 \| *1.100 · 1.10 · 1.10 \| *1.000 · 1.00 · 1.00 ", printed)


def test_a_variant_behind_the_near_best_is_no_candidate_of_the_oracle(bench) -> None:
    _, rows = bench(recorded(), known=recorded())
    tried = by_rule(rows)[ORACLE].others_ms
    assert set(tried) == {"cuda.implicit_gemm", "cuda.direct_naive"}


def test_layers_nobody_measured_are_tried_with_every_variant(bench) -> None:
    _, rows = bench(recorded(), known=recorded(problems=[OTHER]))
    assert set(by_rule(rows)[ORACLE].others_ms) == set(TIMES_MS)
    _, rows = bench(recorded(), "--choose-now", known=recorded())
    assert set(by_rule(rows)[ORACLE].others_ms) == set(TIMES_MS)


def test_without_any_measurements_there_is_no_single_best(bench) -> None:
    _, rows = bench(recorded())
    assert by_rule(rows)[SINGLE_BEST].failure
    assert by_rule(rows)[ORACLE].variant == "cuda.direct_naive"


def test_advice_that_does_not_run_leaves_its_place_to_the_next(bench) -> None:
    refused = ("cuda.implicit_gemm", {"outcome": Outcome.COMPILE_FAILED, "samples_ms": (), "detail": "no such kernel"})
    _, rows = bench(recorded(refused), known=recorded())
    mine = by_rule(rows)[ADVICE]
    assert (mine.variant, mine.predicted_ms) == ("cuda.direct_naive", None)
    assert mine.failure.startswith("cuda.implicit_gemm: compile_failed")


def test_a_wrong_result_is_not_advised(bench) -> None:
    _, rows = bench(recorded(("cuda.implicit_gemm", {"max_error": 0.5})), known=recorded())
    assert by_rule(rows)[ADVICE].variant == "cuda.direct_naive"
    assert "wrong_result: max error 0.5" in by_rule(rows)[ADVICE].failure


@pytest.mark.parametrize("outcome", [Outcome.LAUNCH_FAILED, Outcome.CRASHED])
def test_a_variant_that_brings_the_worker_down_costs_a_restart(bench, outcome) -> None:
    poisoned = ("cuda.implicit_gemm", {"outcome": outcome, "samples_ms": (), "detail": "as recorded"})
    status, rows = bench(recorded(poisoned), known=recorded())
    assert status == 0
    assert {row.variant for row in rows if row.rule == ADVICE} == {"cuda.direct_naive"}
    assert len([row for row in rows if row.rule == TUNED and row.samples_ms]) == len(LAYERS)


def test_a_layer_that_takes_too_long_is_a_row_too(bench) -> None:
    slow = ("cuda.implicit_gemm", {"outcome": Outcome.TIMED_OUT, "samples_ms": ()})
    status, rows = bench(recorded(slow), "--deadline", "5", "--count", "1", known=recorded())
    assert status == 0
    (mine,) = [row for row in rows if row.rule == ADVICE]
    assert mine.variant == "cuda.direct_naive"


@pytest.mark.parametrize(
    ("trouble", "said", "is_timed"),
    [("refused", "crashed: RuntimeError", False), ("wrong", "wrong_result", True), ("poisons", "launch_failed", False)],
)
def test_trouble_with_pytorch_is_a_row_and_the_rest_is_measured(bench, trouble, said, is_timed) -> None:
    status, rows = bench(recorded(), "--count", "2", known=recorded(), trouble={TUNED: trouble})
    assert status == 0
    tuned = [row for row in rows if row.rule == TUNED]
    assert len(tuned) == 2
    assert all(said in row.failure and bool(row.samples_ms) is is_timed for row in tuned)
    assert len([row for row in rows if row.rule == ADVICE and row.samples_ms]) == 2


def test_a_time_limit_ends_the_run_and_another_goes_on(bench) -> None:
    assert bench(recorded(), "--time-limit", "0", known=recorded()) == (0, [])
    _, rows = bench(recorded(), "--count", "1", known=recorded())
    first = {row.problem for row in rows}
    assert len(first) == 1
    _, rows = bench(recorded(), known=recorded())
    assert {row.problem for row in rows} == set(LAYERS)


def test_a_killed_run_leaves_its_journal_which_is_read_and_gone_on_from(bench, tmp_path) -> None:
    _, rows = bench(recorded(), "--count", "1", known=recorded())
    journal = tmp_path / "rows.parquet.jsonl"
    advice.append(rows, journal)
    with journal.open("a") as file:
        file.write('[{"layer": "5-1-3')
    (tmp_path / "rows.parquet").unlink()
    assert read(journal) == rows
    _, whole = bench(recorded(), known=recorded())
    assert {row.problem for row in whole} == set(LAYERS)
    assert [row for row in whole if row.problem == rows[0].problem] == rows
    assert not journal.exists()


def test_a_report_merges_what_runs_wrote(bench, tmp_path, capsys) -> None:
    files = []
    for index in range(2):
        bench(recorded(), "--shard", f"{index}/2", known=recorded())
        files.append(str((tmp_path / "rows.parquet").rename(tmp_path / f"rows-{index}.parquet")))
    capsys.readouterr()
    assert advice.main(["--report", *files, "--output", str(tmp_path / "all.parquet")]) == 0
    assert f"# Advice on {GPU.id}: 3 layers" in capsys.readouterr().out
    assert {row.problem for row in read(tmp_path / "all.parquet")} == set(LAYERS)


def test_a_device_that_cannot_be_opened_is_told(bench, tmp_path, capsys) -> None:
    status, rows = bench(recorded(), "--device", str(tmp_path / "no-such-file"), known=recorded())
    assert (status, rows) == (2, [])
    assert "no-such-file" in capsys.readouterr().err


def test_a_tree_that_is_none_and_a_mistaken_option_are_refused(tmp_path, capsys) -> None:
    assert advice.main(["--tree", str(tmp_path)]) == 2
    assert str(tmp_path / "tree.safetensors") in capsys.readouterr().err
    for option in (("--dtypes", "float64"), ("--networks", "lenet"), ("--shard", "4/4")):
        with pytest.raises(SystemExit):
            advice.main(option)


def test_layers_of_networks_bear_the_names_of_all_that_have_them() -> None:
    found = of_networks(["googlenet", "resnet50"], [1], [DType.FLOAT16], [Layout.NHWC])
    shared = ConvProblem.parse("56-1-1-64-64", dtype="float16", layout="nhwc")
    assert found[shared] == "googlenet resnet50"
    assert of_networks(["seeds"], [8], [DType.TF32], [Layout.NCHW]).keys() == {
        replace(problem, n=8, dtype=DType.TF32, layout=Layout.NCHW)
        for problem in of_networks(["seeds"], [1], [DType.FLOAT32], [Layout.NCHW])
    }


def test_the_order_is_fair_wherever_it_ends_and_the_same_each_time() -> None:
    every = list(of_networks(["resnet50"], None, list(DType), list(Layout)))
    order = shuffled(every, 0)
    assert sorted(order, key=str) == sorted(every, key=str)
    assert len({(each.dtype, each.layout) for each in order[:8]}) == 8
    assert order == shuffled(every[::-1], 0)
    assert order != shuffled(every, 1)
    assert len({each.layer for each in order[:8]}) > 4  # not one layer in all of them
