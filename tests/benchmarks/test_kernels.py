"""The whole of `benchmarks.kernels`, in a real worker process on a replaying device, whatever happens to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import kernels
from benchmarks.contest.rows import Row, read
from benchmarks.turns import run
from conv_advisor.data import parquet
from conv_advisor.data.measurement import L2State, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from tests import fakes
from tests.benchmarks.made_up import GPU
from tests.data import arrow

LAYERS = [ConvProblem.parse(layer) for layer in ("5-1-3-4-2", "6-1-1-4-2", "7-8-3-4-2")]
TIMES_MS = {
    "cudnn.implicit_gemm": 4.0,
    "cudnn.graph.eng0": 3.0,
    "cudnn.graph.eng1": 5.0,
    "cuda.implicit_gemm": 1.5,
    "cuda.direct_naive": 2.0,
    "cuda.cuconv": 6.0,
}


def recorded() -> list[Measurement]:
    """Every variant measured on every layer."""
    return [
        Measurement(
            *(problem, variant, GPU, Outcome.MEASURED),
            samples_ms=(time_ms, 1.001 * time_ms, 0.999 * time_ms),
            workspace_bytes=0,
            max_error=1e-7,
            plan={"engine": int(variant[-1]), "knobs": {}} if "eng" in variant else {},
        )
        for problem in LAYERS
        for variant, time_ms in TIMES_MS.items()
    ]


def spoiled(variant: str, outcome: Outcome, problems: list[ConvProblem]) -> list[Measurement]:
    """The same, but for one variant that fails on some layers."""
    return [
        replace(row, outcome=outcome, samples_ms=(), detail="as recorded")
        if row.variant == variant and row.problem in problems
        else row
        for row in recorded()
    ]


@pytest.fixture
def contest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the benchmark on a recording, chosen from another; gives the status and the rows."""
    asked = (["float32"], ["nchw"])
    monkeypatch.setattr(
        kernels, "problems", lambda *_, dtypes, layouts, **__: LAYERS if (dtypes, layouts) == asked else []
    )

    def bench(
        recording: list[Measurement], *options: str, known: list[Measurement] | None = None
    ) -> tuple[int, list[Row]]:
        timings = tmp_path / "timings"
        parquet.write(arrow.measurements_to_table(recording), tmp_path / "recording.parquet")
        parquet.write(arrow.measurements_to_table(known or recorded()), timings / "known.parquet")
        output = tmp_path / "rows.parquet"
        shared = ("--device", str(tmp_path / "recording.parquet"), "--timings", str(timings), "--output", str(output))
        status = kernels.main([*shared, *options], opener=fakes.REPLAY)
        return status, read(output)

    return bench


def fastest(rows: list[Row]) -> set[tuple[str, str]]:
    """The variants that stand for both sides."""
    return {(row.cudnn.variant, row.ours.variant) for row in rows if row.cudnn and row.ours}


def test_every_layer_is_compared_warm_and_cold(contest, capsys) -> None:
    status, rows = contest(recorded())
    assert status == 0
    assert {(row.problem, row.l2) for row in rows} == {(problem, l2) for problem in LAYERS for l2 in L2State}
    assert fastest(rows) == {("cudnn.graph.eng0", "cuda.implicit_gemm")}
    assert all(row.speedup == pytest.approx(2.0) and row.is_win for row in rows)
    assert rows[0].others_ms.keys() == {"cudnn.implicit_gemm", "cuda.direct_naive"}
    printed = capsys.readouterr().out
    assert "100.0 % (reached: 70.0 %)" in printed
    assert "Not measured" not in printed


def test_who_was_chosen_on_one_run_is_reported_on_another_even_where_it_is_slower_there(contest) -> None:
    known = [replace(row, samples_ms=(1.0, 1.0)) if row.variant == "cuda.direct_naive" else row for row in recorded()]
    _, rows = contest(recorded(), "--l2", "warm", known=known)
    assert fastest(rows) == {("cudnn.graph.eng0", "cuda.direct_naive")}
    assert rows[0].ours is not None
    assert (rows[0].ours.chosen_ms, rows[0].ours.time_ms) == (pytest.approx(1.0), pytest.approx(2.0))


@pytest.mark.parametrize(
    "options", [("--choose-now",), ("--choose-now", "all", "--first-plans"), ("--choose-now", "ours")]
)
def test_a_first_pass_chooses_where_it_is_asked_to(contest, options) -> None:
    only_cudnn = [row for row in recorded() if row.variant.startswith("cudnn.")]
    status, rows = contest(recorded(), *options, known=only_cudnn)
    assert status == 0
    assert fastest(rows) == {("cudnn.graph.eng0", "cuda.implicit_gemm")}
    assert all("first pass of this run" in row.choosing for row in rows)


def test_a_variant_that_no_measurement_knows_is_named(contest, capsys) -> None:
    known = [row for row in recorded() if row.variant != "cuda.implicit_gemm"]
    _, rows = contest(recorded(), "--variants", "cuda.implicit_gemm,cuda.direct_naive", known=known)
    assert fastest(rows) == {("cudnn.graph.eng0", "cuda.direct_naive")}
    assert "never chosen (see --choose-now): cuda.implicit_gemm\n" in capsys.readouterr().err


@pytest.mark.parametrize("outcome", [Outcome.WORKSPACE_EXCEEDED, Outcome.COMPILE_FAILED])
def test_a_variant_that_fails_leaves_its_place_to_the_next(contest, outcome) -> None:
    _, rows = contest(spoiled("cuda.implicit_gemm", outcome, LAYERS[:1]))
    assert fastest([row for row in rows if row.problem == LAYERS[0]]) == {("cudnn.graph.eng0", "cuda.direct_naive")}
    assert fastest([row for row in rows if row.problem != LAYERS[0]]) == {("cudnn.graph.eng0", "cuda.implicit_gemm")}
    why = {row.failures.get("cuda.implicit_gemm", "") for row in rows if row.problem == LAYERS[0]}
    assert all(text.startswith(outcome) for text in why)


def test_a_wrong_result_is_not_timed(contest) -> None:
    wrong = [replace(row, max_error=0.5) if row.variant == "cuda.implicit_gemm" else row for row in recorded()]
    _, rows = contest(wrong)
    assert fastest(rows) == {("cudnn.graph.eng0", "cuda.direct_naive")}
    assert all(row.failures["cuda.implicit_gemm"].startswith("wrong_result") for row in rows)


@pytest.mark.parametrize("outcome", [Outcome.LAUNCH_FAILED, Outcome.CRASHED])
def test_a_variant_that_brings_the_worker_down_is_left_out_at_last(contest, outcome, monkeypatch) -> None:
    monkeypatch.setattr(run, "MOST_STRIKES", 2)
    status, rows = contest(spoiled("cuda.implicit_gemm", outcome, LAYERS))
    assert status == 0
    assert fastest(rows) == {("cudnn.graph.eng0", "cuda.direct_naive")}
    why = [row.failures["cuda.implicit_gemm"] for row in rows]
    assert len(why) == 6
    assert sum("left out after 2 workers" in text for text in why) == 2


def test_a_layer_that_takes_too_long_is_a_row_too(contest) -> None:
    status, rows = contest(spoiled("cuda.implicit_gemm", Outcome.TIMED_OUT, LAYERS[:1]), "--deadline", "5")
    assert status == 0
    late = [row for row in rows if row.problem == LAYERS[0]]
    assert fastest(late) == {("cudnn.graph.eng0", "cuda.direct_naive")}
    assert late[0].failures["cuda.implicit_gemm"].startswith("timed_out")


def test_a_time_limit_leaves_a_table_that_says_what_is_missing(contest, capsys) -> None:
    status, rows = contest(recorded(), "--time-limit", "0")
    assert (status, rows) == (0, [])
    assert "Not measured: float32 nchw: 3 layers, of batch 1 (2), 8 (1)." in capsys.readouterr().out


def test_shards_share_the_work_and_a_report_merges_them(contest, tmp_path, capsys) -> None:
    files = []
    for index in range(2):
        contest(recorded(), "--shard", f"{index}/2")
        files.append(str((tmp_path / "rows.parquet").rename(tmp_path / f"rows-{index}.parquet")))
    capsys.readouterr()
    assert kernels.main(["--report", *files, "--output", str(tmp_path / "all.csv")]) == 0
    assert "| 3 of 602 |" in capsys.readouterr().out
    assert len(read(tmp_path / "all.csv")) == 6


def test_a_device_that_cannot_be_opened_is_told(tmp_path, capsys) -> None:
    assert kernels.main(["--device", str(tmp_path / "no-such-file")], opener=fakes.REPLAY) == 1
    assert "the device is lost" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--dtypes", "float64"), ("--shard", "4/4"), ("--variants", "cuda.gemm")])
def test_a_mistaken_option_is_refused(option) -> None:
    with pytest.raises(SystemExit):
        kernels.main(option)
