"""The whole of `benchmarks.epilogues`: a real worker process on a replaying device, then the tables of made-up rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import epilogues
from benchmarks.endings.layer import side_of
from benchmarks.endings.rows import (
    AUTOTUNED,
    COMPILED,
    CUDNN,
    EAGER,
    EAGER_PLAIN,
    OURS,
    PLAIN,
    POOL,
    SIDES,
    Row,
    Timed,
    append,
    merge,
    read,
    write,
)
from benchmarks.endings.scores import cost, lead, worst
from benchmarks.endings.tables import report
from benchmarks.endings.wanted import BATCHES, COLUMNS, NETWORKS, OTHERS, epilogue_of, wanted
from conv_advisor.data import networks, parquet
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from tests import fakes
from tests.benchmarks import peers
from tests.benchmarks.made_up import GPU
from tests.data import arrow

LAYERS = [
    ConvProblem.parse(layer, dtype="float16", layout="nhwc")
    for layer in ("5-1-1-12-66-bias-residual-silu", "6-8-3-12-66-bias-silu")
]
TIMES_MS = {"cudnn.implicit_precomp_gemm": 1.5, "cudnn.graph.eng0": 3.0, "cuda.implicit_gemm_nhwc": 2.0}
"""With the epilogue; the kernel of ours takes 1.6 ms without."""


def recorded(**changes: dict[str, object]) -> list[Measurement]:
    """Three variants measured on every layer and on its plain convolution, some of them changed where they end."""
    rows = []
    for problem in (each for layer in LAYERS for each in (layer, layer.plain)):
        for variant, time_ms in TIMES_MS.items():
            row = Measurement(
                *(problem, variant, GPU, Outcome.MEASURED),
                samples_ms=(time_ms if problem.epilogue else 0.8 * time_ms,) * 3,
                workspace_bytes=0,
                max_error=1e-7,
                plan={"engine": 0, "knobs": {}} if "eng" in variant else {},
            )
            rows.append(replace(row, **changes.get(variant, {})) if problem.epilogue else row)
    return rows


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the benchmark on a recording; gives the status and the rows."""
    monkeypatch.setattr(epilogues, "wanted", lambda *_asked: dict.fromkeys(LAYERS, "resnet50"))

    def run(
        recording: list[Measurement], *options: str, trouble: dict[str, str] | None = None
    ) -> tuple[int, dict[ConvProblem, Row]]:
        monkeypatch.setenv(peers.TROUBLE, json.dumps(trouble or {}))
        recorded_at, output = tmp_path / "recording.parquet", tmp_path / "rows.jsonl"
        parquet.write(arrow.measurements_to_table(recording), recorded_at)
        which = ("--device", str(recorded_at), "--output", str(output))
        status = epilogues.main([*which, *options], opener=fakes.REPLAY, peer_opener=peers.OPENER)
        return status, {row.problem: row for row in (read(output) if output.exists() else [])}

    return run


def test_every_side_is_timed(bench, capsys) -> None:
    status, rows = bench(recorded())
    assert status == 0
    assert rows.keys() == set(LAYERS)
    for row in rows.values():
        assert set(row.timed) == set(SIDES)
        assert {side: row.time_ms(side) for side in SIDES} == pytest.approx(
            {OURS: 2.0, CUDNN: 3.0, POOL: 1.5, PLAIN: 1.6, EAGER: 2.75, EAGER_PLAIN: 2.5, COMPILED: 2.4, AUTOTUNED: 2.3}
        )
        assert row.timed[OURS].variant == "cuda.implicit_gemm_nhwc"
        assert (row.timed[POOL].variant, row.timed[POOL].chosen_ms) == ("cudnn.implicit_precomp_gemm", 1.5)
        assert json.loads(row.timed[CUDNN].plan)["engine"] == 0
        assert row.tried_ms == TIMES_MS
        assert (row.failures, row.networks, row.device) == ({}, "resnet50", GPU.id)
    assert "1.15 (missed: 1.50)" in capsys.readouterr().out


def test_a_fused_plan_far_behind_a_plain_one_is_timed_all_the_same(bench) -> None:
    _, rows = bench(recorded(**{"cudnn.graph.eng0": {"samples_ms": (9.0, 9.0, 9.0)}}))
    assert [row.time_ms(CUDNN) for row in rows.values()] == [9.0, 9.0]


def test_where_nothing_of_cudnn_fuses_the_pool_has_ours_and_cudnns_own(bench, capsys) -> None:
    refused = {"outcome": Outcome.NOT_SUPPORTED, "samples_ms": (), "detail": "no engine"}
    status, rows = bench(recorded(**{"cudnn.graph.eng0": refused}))
    assert status == 0
    assert all(CUDNN not in row.timed and row.time_ms(POOL) == 1.5 for row in rows.values())
    assert all(
        "cudnn.graph.eng0" in row.refused and "cuda.implicit_gemm_nhwc" not in row.refused for row in rows.values()
    )
    assert f"| {CUDNN}" in capsys.readouterr().out


@pytest.mark.parametrize("trouble", ["refused", "poisons"])
def test_trouble_with_a_compiler_is_told_and_the_rest_is_measured(bench, trouble) -> None:
    status, rows = bench(recorded(), "--count", "1", trouble={AUTOTUNED: trouble})
    assert status == 0
    (row,) = rows.values()
    assert AUTOTUNED in row.failures
    assert set(row.timed) == set(SIDES) - {AUTOTUNED}


def test_only_the_modes_that_are_asked_for_are_run(bench) -> None:
    _, rows = bench(recorded(), "--modes", "eager,compiled")
    assert all(set(row.timed) == set(SIDES) - {AUTOTUNED} and not row.failures for row in rows.values())


def test_a_time_limit_ends_the_run_and_another_goes_on_from_a_line_that_was_not_finished(bench, tmp_path) -> None:
    assert bench(recorded(), "--time-limit", "0") == (0, {})
    _, rows = bench(recorded(), "--count", "1")
    (first,) = rows.values()
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"layer": "6-8-3')
    _, rows = bench(recorded())
    assert rows.keys() == set(LAYERS)
    assert rows[first.problem] == first
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2


def test_a_device_that_cannot_be_opened_and_a_mistaken_option_are_told(bench, tmp_path, capsys) -> None:
    status, rows = bench(recorded(), "--device", str(tmp_path / "no-such-file"))
    assert (status, rows) == (2, {})
    assert "no-such-file" in capsys.readouterr().err
    for option in (("--dtypes", "float64"), ("--networks", "lenet"), ("--modes", "jit"), ("--shard", "2/2")):
        with pytest.raises(SystemExit):
            epilogues.main(option)


def test_layers_have_the_epilogues_of_their_networks() -> None:
    ends = {
        (name, layer.problem.short): str(epilogue_of(name, layer))
        for name in NETWORKS
        for layer in networks.whole(name)
    }
    assert ends["resnet50", "14-1-1-1024-256"] == "bias-residual-relu"
    assert ends["resnet50", "14-1-1-256-1024"] == "bias-relu"
    assert ends["resnet50", "14-1-3-256-256"] == "bias-relu"
    assert {end for (name, _), end in ends.items() if name != "resnet50"} == {"bias-relu"}
    projections = [layer for layer in networks.whole("resnet50") if "projection" in layer.source]
    assert {str(epilogue_of("resnet50", layer)) for layer in projections} == {"bias"}


def test_layers_of_other_kinds_have_the_usual_epilogue() -> None:
    every = wanted(["mobilenet_v2", "regnetx_032"], (8,), [DType.FLOAT16], [Layout.NHWC])
    assert {str(each.epilogue) for each in every} == {"bias-relu"}
    assert {each.groups for each in every} > {1, 2, 32}
    assert set(OTHERS) >= {"mobilenet_v2", "regnetx_032"}


def test_the_layers_are_those_of_the_networks_in_the_columns_that_have_targets() -> None:
    every = wanted(NETWORKS, BATCHES, list(DType), list(Layout))
    assert {(each.dtype, each.layout) for each in every} == set(COLUMNS)
    assert {each.n for each in every} == set(BATCHES)
    assert all(each.epilogue for each in every)
    assert wanted(["vgg19"], [1], [DType.FLOAT32], [Layout.NHWC]) == {}
    shared = ConvProblem.parse("56-8-1-64-64-bias-relu", dtype="tf32")
    assert wanted(["googlenet", "resnet50"], [8], [DType.TF32], [Layout.NCHW])[shared] == "googlenet resnet50"


def test_the_order_is_fair_wherever_it_ends_and_that_of_its_seed() -> None:
    parse = epilogues._parser().parse_args
    order = list(epilogues.layers(parse([])))
    assert len({(each.dtype, each.layout) for each in order[:7]}) == 7
    assert order == list(epilogues.layers(parse([])))
    assert order != list(epilogues.layers(parse(["--seed", "1"])))
    halves = [list(epilogues.layers(parse(["--shard", f"{index}/2"]))) for index in range(2)]
    assert sorted(map(str, halves[0] + halves[1])) == sorted(map(str, order))


def test_a_variant_runs_for_its_side_and_who_appends_a_kernel_for_the_pool() -> None:
    relu, alone = Epilogue.parse("bias-relu"), Epilogue.parse("relu")
    assert [side_of(variant, relu) for variant in ("cuda.implicit_gemm", "cudnn.graph.eng0")] == [OURS, CUDNN]
    assert [side_of(variant, alone) for variant in ("cuda.gemm", "cudnn.fft")] == [POOL, POOL]
    assert side_of("cudnn.fft", relu) == CUDNN


def made_up(layer: str, **times_ms: float) -> Row:
    """A row with these times, by names of sides in capitals."""
    sides = {"OURS": OURS, "CUDNN": CUDNN, "POOL": POOL, "PLAIN": PLAIN, "EAGER": EAGER, "COMPILED": COMPILED}
    problem = ConvProblem.parse(layer, dtype="float16", layout="nhwc")
    return Row(problem, {sides[side]: Timed((time_ms,), "cuda.x") for side, time_ms in times_ms.items()}, device=GPU.id)


def test_a_cost_leaves_out_the_time_of_the_residuals_bytes() -> None:
    row = made_up("100-1-1-50-8-bias-residual-relu", OURS=2.0, PLAIN=1.0)
    residual_bytes = 100 * 100 * 50 * 2
    found = cost([row], bytes_per_s=residual_bytes / 0.5e-3)
    assert found is not None
    assert (found.n_layers, found.whole, found.beside_residual) == (1, 2.0, pytest.approx(1.5))
    bias = made_up("100-1-1-50-8-bias-relu", OURS=2.0, PLAIN=1.0)
    found = cost([bias], bytes_per_s=1.0)
    assert found is not None
    assert found.beside_residual == 2.0
    assert cost([made_up("5-1-1-4-2", OURS=1.0)], 1.0) is None


def test_the_worst_are_those_furthest_behind_the_fastest_rival() -> None:
    rows = [
        made_up(f"{size}-1-3-4-2-bias-relu", OURS=1.0, CUDNN=0.1 * size, COMPILED=5.0, EAGER=6.0) for size in (9, 5, 7)
    ]
    alone = made_up("6-1-3-4-2-bias-relu", OURS=1.0)
    assert lead(rows[1]) == pytest.approx(0.5)
    assert lead(alone) is None
    assert worst([*rows, alone], 2) == [rows[1], rows[2]]


def test_a_report_has_targets_costs_the_worst_and_what_has_no_time() -> None:
    rows = [
        made_up("56-32-1-256-64-bias-residual-relu", OURS=1.0, CUDNN=2.0, POOL=1.0, PLAIN=0.9, EAGER=4.0, COMPILED=3.0),
        made_up("56-32-3-64-64-bias-relu", OURS=1.0, CUDNN=0.5, POOL=0.5, PLAIN=1.0, EAGER=4.0, COMPILED=3.0),
        replace(made_up("14-1-3-64-64-bias-relu"), failures={"cuda.x": "wrong_result: max error 0.5"}),
    ]
    text = report(rows)
    assert f"# Epilogues on {GPU.id}: 2 layers" in text
    assert "3.00 (reached: 1.50)" in text  # compiled
    assert "1.41 (reached: 1.15)" in text  # of 2 and 1: the pool has cuDNN's plan where that is the fastest
    assert "2.00 (reached: 1.50)" in text  # with a residual
    assert "float16 nhwc bias-relu" in text
    assert "1.000 (reached: 1.05)" in text
    assert text.index("56-32-3-64-64-bias-relu-float16-nhwc") < text.index("56-32-1-256-64-bias-residual-relu-float16")
    assert "(memory)" in text
    assert "cuda.x: wrong_result" in text
    assert report([]).startswith("# Epilogues on no device: 0 layers")


def test_rows_are_read_as_they_were_written_and_the_last_of_a_layer_counts(tmp_path: Path, capsys) -> None:
    row = made_up("100-1-1-50-8-bias-residual-relu", OURS=2.0, EAGER=1.0)
    plain = replace(made_up("5-1-3-4-2"), problem=ConvProblem(1, 4, 9, 5, 4, 3, 3, epilogue=Epilogue(bias=True)))
    row = replace(row, tried_ms={"cuda.x": 2.0}, refused=("cudnn.fft",))
    write([row, plain], tmp_path / "one.jsonl")
    assert read(tmp_path / "one.jsonl") == [row, plain]
    later = replace(row, failures={"cuda.x": "crashed: twice"})
    append(later, tmp_path / "two.jsonl")
    assert merge([read(tmp_path / "one.jsonl"), read(tmp_path / "two.jsonl")]) == [later, plain]
    files = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    assert epilogues.main(["--report", *files, "--output", str(tmp_path / "all.jsonl")]) == 0
    assert f"# Epilogues on {GPU.id}: 1 layers" in capsys.readouterr().out
    assert read(tmp_path / "all.jsonl") == [later, plain]
