"""Who is ours, and who is chosen."""

from __future__ import annotations

import pytest

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS, from_timings, interleaved, shortlist
from benchmarks.turns.layer import Choice
from conv_advisor.data import parquet
from conv_advisor.data.measurement import L2State, Measurement, Outcome
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from tests.benchmarks.made_up import GPU
from tests.data import arrow

LAYER = ConvProblem.parse("14-1-3-256-128")
OTHER = ConvProblem.parse("14-8-3-256-128")


def measured(problem: ConvProblem, variant: str, *times_ms: float, **changes: object) -> Measurement:
    """One attempt with these samples."""
    return Measurement(
        problem, variant, GPU, **({"outcome": Outcome.MEASURED, "samples_ms": times_ms, "max_error": 1e-7} | changes)
    )


def test_a_library_is_not_ours() -> None:
    assert "cuda.gemm" not in OURS
    assert set(LIBRARIES) < set(VARIANTS)
    assert "cuda.implicit_gemm" in OURS
    assert not set(OURS) & set(CUDNN)
    assert len([name for name in CUDNN if "graph" not in name]) == 16


def test_the_fastest_of_each_side_are_kept() -> None:
    times = {"cudnn.a": 1.4, "cudnn.b": 1.0, "cudnn.c": 1.3, "cuda.a": 0.5, "cuda.b": 0.4}
    kept = shortlist({Choice(name): time_ms for name, time_ms in times.items()}, 2, 1)
    assert [each.variant for each in kept] == ["cudnn.b", "cudnn.c", "cuda.b"]
    assert shortlist({}, 2, 1) == []


def test_who_is_far_behind_its_own_side_is_not_kept() -> None:
    times = {"cudnn.a": 1.0, "cudnn.b": 1.6, "cuda.a": 8.0, "cuda.b": 9.0}
    kept = shortlist({Choice(name): time_ms for name, time_ms in times.items()}, 2, 2)
    assert [each.variant for each in kept] == ["cudnn.a", "cuda.a", "cuda.b"]


def test_the_sides_take_turns() -> None:
    kept = [Choice(name) for name in ("cudnn.a", "cudnn.b", "cudnn.c", "cuda.a")]
    assert [each.variant for each in interleaved(kept)] == ["cudnn.a", "cuda.a", "cudnn.b", "cudnn.c"]
    assert interleaved([]) == []


def test_measured_files_choose(tmp_path) -> None:
    plan = {"engine": 0, "knobs": {"2": 1}}
    first = [
        measured(LAYER, "cudnn.gemm", 3.0),
        measured(LAYER, "cudnn.graph.eng0", 2.0, plan=plan),
        measured(LAYER, "cuda.implicit_gemm", 5.0, plan={"tile": "64x64"}),
        measured(LAYER, "cuda.gemm", 0.1),
        measured(LAYER, "cuda.cuconv", outcome=Outcome.WRONG_RESULT, samples_ms=()),
        measured(LAYER, "cuda.fft", 0.1, outcome=Outcome.PRUNED),
        measured(OTHER, "cudnn.gemm", 0.1),
    ]
    second = [measured(LAYER, "cuda.implicit_gemm", 1.0), measured(LAYER, "cudnn.gemm", 0.1, l2=L2State.COLD)]
    for name, rows in (("a", first), ("b", second)):
        parquet.write(arrow.measurements_to_table(rows), tmp_path / f"{name}.parquet")
    chosen = from_timings(attempts_in(tmp_path), [LAYER], [*CUDNN, *OURS])
    assert set(chosen) == {LAYER}
    found = {each.variant: (each.plan, chosen_ms) for each, chosen_ms in chosen[LAYER].items()}
    assert found == {
        "cudnn.gemm": ("", pytest.approx(3.0)),
        "cudnn.graph.eng0": ('{"engine":0,"knobs":{"2":1}}', pytest.approx(2.0)),
        "cuda.implicit_gemm": ("", pytest.approx(3.0)),
    }
