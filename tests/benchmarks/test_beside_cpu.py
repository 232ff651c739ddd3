"""The course's comparison of CPU with GPU, of made-up times."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="only the figures need matplotlib")

from benchmarks import cpu
from benchmarks.measured import load
from benchmarks.plots.beside_cpu import beside_cpu, beside_cpu_table
from benchmarks.plots.course import EXPERIMENTS
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.networks import problems
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.models.costs import Costs
from tests.benchmarks.made_up import GPU
from tests.data import arrow

CPU = Device(id="cpu", name="An abacus", kind="cpu")
LAYERS = problems("fourth-seed", dtypes=[DType.FLOAT32])


@pytest.fixture
def costs(tmp_path: Path) -> Costs:
    """Direct and FFT on the GPU take 1 and 2 ms; Winograd was not measured there."""
    rows = [
        Measurement(problem, name, GPU, Outcome.MEASURED, samples_ms=(ms,) * 3, max_error=1e-7)
        for problem in LAYERS
        for name, ms in (("cuda.direct_naive", 1.0), ("cuda.fft", 2.0))
    ]
    parquet.write(arrow.measurements_to_table(rows), tmp_path / GPU.id / "all.parquet")
    return load(tmp_path / GPU.id, GPU.id, ("float32", "nchw"), "fourth-seed")


def on_cpu(file: Path, layers: list[ConvProblem]) -> cpu.CpuTimes:
    """What is read again: direct takes 500 and 250 ms there, FFT fails, Winograd takes 8 and 4."""
    times = {"cpu.direct": 500.0, "cpu.direct_parallel": 250.0, "cpu.winograd": 8.0, "cpu.winograd_parallel": 4.0}
    measured = {
        (problem, name): Measurement(problem, name, CPU, Outcome.MEASURED, samples_ms=(ms,) * 3)
        for problem in layers
        for name, ms in times.items()
    }
    failed = {(problem, "cpu.fft"): Measurement(problem, "cpu.fft", CPU, Outcome.OUT_OF_MEMORY) for problem in layers}
    cpu.write(file, measured | failed)
    return cpu.read(file)


def test_times_are_read_as_they_were_written_and_failures_left_out(tmp_path: Path) -> None:
    found = on_cpu(tmp_path / "cpu.json", list(LAYERS))
    assert found.name == "An abacus"
    assert found.cores >= 1
    assert len(found.time_ms) == 4 * len(set(LAYERS))
    assert found.time_ms[LAYERS[0], "cpu.direct_parallel"] == 250.0


def test_a_row_says_all_three_times_and_how_many_times_as_fast_the_gpu_is(costs: Costs, tmp_path: Path) -> None:
    found = beside_cpu_table(costs, on_cpu(tmp_path / "cpu.json", list(LAYERS)))
    rows = [line for line in found.splitlines() if line.startswith("| ")][2:]
    assert found.startswith("An abacus, ")
    assert len(rows) == len(set(LAYERS))
    cells = {row.partition(" | ")[2] for row in rows}
    assert cells == {"500 · 250 · 1: 250× | - · - · 2 | 8 · 4 · - |"}
    assert any(row.startswith("| one plane of 512x512, one filter: filter size 2 |") for row in rows)


def test_layers_that_the_cpu_did_not_run_have_no_row_and_every_experiment_a_panel(costs: Costs, tmp_path: Path) -> None:
    found = on_cpu(tmp_path / "cpu.json", [LAYERS[0]])
    assert len([line for line in beside_cpu_table(costs, found).splitlines() if line.startswith("| ")]) == 2 + 1
    figure = beside_cpu(costs, found)
    assert [panel.get_title(loc="left") for panel in figure.axes] == list(EXPERIMENTS)
    drawn = [line for panel in figure.axes for line in panel.lines if len(line.get_xdata())]
    assert len(drawn) == 3 * 3, "one layer of one experiment: three methods, each on a core, on all, and on the GPU"
