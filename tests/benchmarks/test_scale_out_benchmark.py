"""The scale-out benchmark: its table from rows worked by hand, and which problems it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.scale_out.choosing import MOST_SHARE, candidates, even, measured_s
from benchmarks.scale_out.compiling import compile_ahead
from benchmarks.scale_out.table import Row, table, too_short
from conv_advisor.app.sweep.sweep import WorkersTime
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import networks, parquet
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.data.store import Store
from conv_advisor.kernels.bench import BenchOptions
from tests import fakes
from tests.app.test_sweep_spread import PROBLEMS, VARIANTS, recorded
from tests.data import arrow

ROWS = [
    Row("local", 1, 10, 300, 200, 30.0, WorkersTime(24.0, 3.0, 0.3, 0.9, 1.8, 0.2)),
    Row("local", 4, 10, 300, 200, 8.0, WorkersTime(24.0, 3.2, 0.32, 0.96, 3.52, 0.2)),
    Row("dask", 1, 10, 300, 200, 36.0, WorkersTime(27.0, 3.6, 0.0, 1.8, 3.6, 0.3)),
    Row("dask", 4, 10, 300, 200, 10.0, WorkersTime(28.0, 4.0, 0.0, 2.0, 6.0, 0.3)),
]


def test_ratios_are_to_one_device_of_the_same_path_and_shares_are_of_all_workers_time():
    assert cells(ROWS) == [
        ["local", "1", "10", "0.7%", "30.0", "10.0", "1.00", "80.0%", "10.0%", "1.0%", "3.0%", "6.0%"],
        ["local", "4", "10", "0.7%", "8.0", "37.5", "3.75", "75.0%", "10.0%", "1.0%", "3.0%", "11.0%"],
        ["dask", "1", "10", "0.9%", "36.0", "8.3", "1.00", "75.0%", "10.0%", "0.0%", "5.0%", "10.0%"],
        ["dask", "4", "10", "0.9%", "10.0", "30.0", "3.60", "70.0%", "10.0%", "0.0%", "5.0%", "15.0%"],
    ]


def test_without_a_run_on_one_device_there_is_no_ratio():
    assert cells(ROWS[1:2])[0][6] == ""


def test_a_problem_that_is_too_long_is_warned_of_with_a_time_that_is_enough():
    assert too_short(ROWS) == ""
    uneven = replace(ROWS[0], time=replace(ROWS[0].time, longest_s=0.6))
    assert "2.1% of the whole (local, 1)" in too_short([uneven, *ROWS[1:]])
    assert "--seconds 60 is enough" in too_short([uneven, *ROWS[1:]])


def test_candidates_are_one_unit_of_work_each_and_always_the_same():
    chosen = candidates(["seeds"], [1, 8, 32], [DType.FLOAT32, DType.FLOAT16])
    assert chosen == candidates(["seeds", "alexnet"], [1, 8, 32], [DType.FLOAT32, DType.FLOAT16])
    assert chosen[:20] == candidates(["seeds"], [1, 8, 32], [DType.FLOAT32, DType.FLOAT16], 20)
    assert len({replace(problem, n=1) for problem in chosen}) == len(chosen) > 100
    assert {problem.n for problem in chosen} == {1, 8, 32}


def test_the_quarter_of_the_most_work_is_no_candidate():
    sizes = {problem: max(problem.flops, 15 * problem.bytes) for problem in candidates(["seeds"], [1], [DType.FLOAT32])}
    seeds = networks.problems("seeds", batches=[1])
    more = [problem for problem in seeds if problem not in sizes]
    assert len(sizes) + len(more) == len(seeds)
    assert len(more) == len(seeds) // 4
    assert min(max(problem.flops, 15 * problem.bytes) for problem in more) >= max(sizes.values())


SOME = [ConvProblem.parse(f"{size}-1-3-4-2") for size in range(5, 305)]


def test_the_longest_are_left_out_until_none_is_a_hundredth_of_the_rest():
    times_s = dict.fromkeys(SOME, 0.2) | {SOME[7]: 5.0, SOME[9]: 0.7}
    kept = even(times_s)
    assert kept == [problem for problem in SOME if problem not in (SOME[7], SOME[9])]
    assert max(times_s[problem] for problem in kept) <= MOST_SHARE * sum(times_s[problem] for problem in kept)


def test_no_more_than_a_quarter_is_left_out():
    assert len(even(dict.fromkeys(SOME[:20], 1.0))) == 15
    assert even({SOME[0]: 1.0}) == SOME[:1]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[Engine]]:
    recording = tmp_path / "recording.parquet"
    parquet.write(arrow.measurements_to_table(recorded()), recording)
    started = [Engine(str(recording), opener=fakes.SLOW_REPLAY, has_spare=False) for _ in range(2)]
    yield started
    for engine in started:
        engine.close()


@pytest.mark.parametrize("limit_s", [60.0, 0.5])
def test_every_device_times_a_part_of_the_candidates(tmp_path: Path, engines: list[Engine], limit_s: float):
    for engine in engines:
        assert engine.wait_ready(300)
    with Store(f"sqlite:///{tmp_path / 'sweep.db'}") as store:
        times_s = measured_s(store, engines, PROBLEMS, VARIANTS, BenchOptions(), limit_s)
    assert min(times_s.values(), default=1.0) >= 0.2  # what the operands of a problem take here
    assert list(times_s) == [problem for problem in PROBLEMS if problem in times_s]
    assert (len(times_s) == len(PROBLEMS)) == (limit_s > 1)


def test_nothing_is_compiled_ahead_for_cpus():
    assert compile_ahead(["cpu", "cpu"], PROBLEMS, BenchOptions()) == 0


def cells(rows: list[Row]) -> list[list[str]]:
    """What the table shows, row by row."""
    printed = StringIO()
    Console(file=printed, width=160).print(table(rows))
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in printed.getvalue().splitlines() if "│" in line
    ]
