"""Sweeps with real worker processes on a replaying device: one row an attempt, whatever happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conv_advisor.app.sweep.attempt import Result, Terms, Trial, measure_layer
from conv_advisor.app.sweep.sweep import default_run_id, drawn, shard_of, sweep, with_epilogues
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import networks, parquet
from conv_advisor.data.epilogue import PLAIN, Epilogue
from conv_advisor.data.errors import WorkerError
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.data.transfer import measurements_table, picks_table
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.spent import Spent
from tests import fakes
from tests.data import arrow

CPU = Device("cpu", "A recorded CPU", "cpu", processors=2)
GPU = Device("nvidia-h200", "NVIDIA H200", "cuda", "9.0")
PROBLEMS = [ConvProblem.parse(layer) for layer in ("5-1-3-4-2", "6-1-3-4-2", "7-1-3-4-2")]
VARIANTS = ["cpu.direct", "cpu.gemm", "cpu.fft", "cpu.winograd"]
OPTIONS = BenchOptions()


def recorded(device: Device = CPU, variants: list[str] = VARIANTS) -> list[Measurement]:
    """Every variant measured on every problem, the later ones slower."""
    return [
        Measurement(
            problem, name, device, Outcome.MEASURED, samples_ms=(time_ms,) * 3, workspace_bytes=64, max_error=1e-7
        )
        for problem in PROBLEMS
        for time_ms, name in enumerate(variants, start=1)
    ]


def spoil(recording: list[Measurement], problem: ConvProblem, variant: str, outcome: Outcome) -> list[Measurement]:
    """The same, but for one attempt that fails."""
    return [
        replace(row, outcome=outcome, samples_ms=(), detail="as recorded")
        if (row.problem, row.variant) == (problem, variant)
        else row
        for row in recording
    ]


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'sweep.db'}") as store:
        yield store


@pytest.fixture
def replay(tmp_path):
    """Starts an engine on a recording."""
    engines: list[Engine] = []

    def start(recording: list[Measurement]) -> Engine:
        path = tmp_path / f"recording-{len(engines)}.parquet"
        parquet.write(arrow.measurements_to_table(recording), path)
        engines.append(Engine(str(path), opener=fakes.REPLAY, has_spare=False))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def rows(store: Store, device: Device = CPU) -> list[Measurement]:
    return arrow.table_to_measurements(measurements_table(store, device.id))


def test_every_attempt_is_a_row_in_a_fixed_order(store, replay):
    report = sweep(store, replay(recorded()), [*PROBLEMS, *PROBLEMS], VARIANTS, options=OPTIONS)
    assert [(row.problem, row.variant) for row in rows(store)] == [(p, v) for p in PROBLEMS for v in VARIANTS]
    assert {row.outcome for row in rows(store)} == {Outcome.MEASURED}
    assert {row.run_id for row in rows(store)} == {report.run_id} == {default_run_id(CPU, OPTIONS)}
    assert rows(store)[1].samples_ms == (2.0, 2.0, 2.0)
    assert (report.n_problems, report.n_attempts, report.n_skipped) == (3, 12, 0)
    assert report.is_complete
    assert report.outcomes == {Outcome.MEASURED: 12}


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.LAUNCH_FAILED])
def test_what_brings_the_worker_down_is_found_and_the_rest_is_measured(store, replay, outcome):
    engine = replay(spoil(recorded(), PROBLEMS[1], "cpu.gemm", outcome))
    deadline_s = 8.0 if outcome is Outcome.TIMED_OUT else 300.0  # others must not take as long on a busy machine
    report = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, deadline_s=deadline_s)
    failed = [row for row in rows(store) if row.outcome is not Outcome.MEASURED]
    assert [(row.problem, row.variant, row.outcome) for row in failed] == [(PROBLEMS[1], "cpu.gemm", outcome)]
    assert failed[0].detail
    assert report.outcomes == {Outcome.MEASURED: 11, outcome: 1}
    assert engine.restarts == 2


@pytest.mark.parametrize("outcome", [Outcome.NOT_SUPPORTED, Outcome.OUT_OF_MEMORY, Outcome.COMPILE_FAILED])
def test_a_refusal_is_a_row_and_costs_no_worker(store, replay, outcome):
    engine = replay(spoil(recorded(), PROBLEMS[0], "cpu.fft", outcome))
    report = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS)
    assert report.outcomes == {Outcome.MEASURED: 11, outcome: 1}
    assert engine.restarts == 0


def test_a_variant_of_another_device_does_not_apply(store, replay):
    variants = ["cudnn.implicit_gemm", "cpu.direct"]
    sweep(store, replay(recorded(GPU, variants)), PROBLEMS[:1], variants, options=OPTIONS)
    assert len(rows(store, GPU)) == 2


def test_a_repeated_sweep_adds_nothing(store, replay):
    engine = replay(recorded())
    sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS)
    report = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS)
    assert (report.n_attempts, report.n_skipped, len(rows(store))) == (0, 12, 12)


def test_a_sweep_goes_on_where_it_ended(store, replay):
    engine = replay(recorded())
    first = sweep(store, engine, PROBLEMS[:2], VARIANTS[:3], options=OPTIONS)
    second = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS)
    assert (first.n_attempts, second.n_attempts, second.n_skipped) == (6, 6, 6)
    assert len({(row.problem, row.variant) for row in rows(store)}) == len(rows(store)) == 12


def test_other_options_or_another_run_are_measured_anew(store, replay):
    engine = replay(recorded())
    for run in (
        {"options": OPTIONS},
        {"options": BenchOptions(l2=L2State.COLD)},
        {"options": OPTIONS, "run_id": "again"},
    ):
        assert sweep(store, engine, PROBLEMS, VARIANTS, **run).n_attempts == 12


def test_some_of_the_problems_are_drawn_by_a_seed_without_repetition():
    problems = networks.problems("alexnet")
    assert drawn(problems, None, seed=0) == problems
    assert drawn(problems, 5, seed=0) == drawn(problems, 5, seed=0) != drawn(problems, 5, seed=1)
    assert len(set(drawn(problems, 5, seed=0)) & set(problems)) == 5
    assert sorted(drawn(problems, 1000, seed=0), key=problems.index) == problems


def test_the_time_limit_stops_between_problems(store, replay):
    engine = replay(recorded())
    stopped = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, time_limit_s=0)
    assert (stopped.n_attempts, stopped.is_complete) == (0, False)
    assert sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, time_limit_s=3600).is_complete


def test_layers_get_each_epilogue_but_for_those_that_name_their_own():
    ends = [PLAIN, Epilogue(bias=True)]
    plain, own = ConvProblem.parse("5-1-3-4-2"), ConvProblem.parse("5-1-3-4-2-relu")
    assert [each.short for each in with_epilogues([plain, own], ends)] == [
        "5-1-3-4-2",
        "5-1-3-4-2-bias",
        "5-1-3-4-2-relu",
    ]


def test_progress_counts_problems(store, replay):
    seen = []
    sweep(store, replay(recorded()), PROBLEMS, VARIANTS, options=OPTIONS, on_progress=lambda *now: seen.append(now))
    assert [(done, total) for done, total, _ in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_gpus_own_picks_are_recorded_once(store, replay):
    variants = ["cudnn.implicit_gemm", "cudnn.gemm"]
    engine = replay(recorded(GPU, variants))
    for _ in range(2):
        report = sweep(store, engine, PROBLEMS, variants, options=OPTIONS)
    picks = arrow.table_to_picks(picks_table(store, GPU.id))
    assert [(pick.problem, pick.source, pick.variant, pick.run_id) for pick in picks] == [
        (problem, "replayed", "cudnn.implicit_gemm", report.run_id) for problem in PROBLEMS
    ]


def test_picks_are_not_asked_for_where_nobody_wants_them(store, replay):
    engine = replay(recorded(GPU, ["cudnn.implicit_gemm"]))
    sweep(store, engine, PROBLEMS[:1], ["cudnn.implicit_gemm"], options=OPTIONS, has_picks=False)
    assert len(rows(store, GPU)) == 1
    assert picks_table(store, GPU.id).num_rows == 0


def test_a_worker_killed_from_outside_costs_no_row(store, replay):
    engine = replay(recorded())

    def kill(done: int, _total: int, _doing: str) -> None:
        if done == 1:
            os.kill(engine.pid, signal.SIGKILL)

    report = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=kill)
    assert report.outcomes == {Outcome.MEASURED: 12}


class OnceKilled:
    """A device whose process is killed from outside during its first task."""

    device_id = "cpu"

    def __init__(self) -> None:
        self._is_killed = False

    def run(self, task: Callable[..., Any], *args: Any, deadline_s: float) -> Any:
        if task is tasks.describe_device:
            return CPU
        if not self._is_killed:
            self._is_killed = True
            raise WorkerKilled("it ended during the job")
        return [row for row in recorded() if row.problem == args[0] and row.variant in args[1]], Spent(1.0, 2.0)


def test_a_worker_killed_from_outside_does_not_spoil_an_only_variant():
    results: list[Result] = []
    terms = Terms(CPU, OPTIONS, "a run", 60.0)
    layer = (Trial(PROBLEMS[0], (VARIANTS[0],), has_picks=True),)
    measure_layer(OnceKilled(), layer, terms, lambda _key: None, results.append)
    (result,) = results
    assert [row.outcome for row in result.measurements] == [Outcome.MEASURED]
    assert result.spent.preparing_s == pytest.approx(1.0, abs=0.5)
    assert result.spent.measuring_s == 2.0


def test_a_worker_that_no_longer_starts_ends_the_sweep_without_blaming_a_variant(store, replay, tmp_path):
    engine = replay(recorded())

    def lose(done: int, _total: int, _doing: str) -> None:
        if done == 1:
            Path(engine.device_id).write_text("no recording any more")
            os.kill(engine.pid, signal.SIGKILL)

    with pytest.raises(WorkerError, match="is lost"):
        sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=lose)
    assert {row.problem for row in rows(store)} == {PROBLEMS[0]}


def test_shards_are_disjoint_and_complete():
    shards = [shard_of(PROBLEMS, index, 2) for index in range(2)]
    assert shards == [[PROBLEMS[0], PROBLEMS[2]], [PROBLEMS[1]]]


def test_a_variant_hopeless_at_one_batch_size_is_not_launched_at_larger_ones(store, replay):
    problems = [ConvProblem.parse(layer) for layer in ("5-8-3-4-2", "5-1-3-4-2", "5-16-3-4-2", "6-16-3-4-2")]
    recording = [
        Measurement(problem, name, CPU, outcome, samples_ms=(time_ms,), workspace_bytes=64, max_error=1e-7)
        for problem in problems
        for name, outcome, time_ms in (
            ("cpu.gemm", Outcome.MEASURED, 1.0),
            ("cpu.direct", Outcome.PRUNED, 11.0),
            ("cpu.fft", Outcome.PRUNED, 9.0),
        )
    ]
    sweep(store, replay(recording), problems, ["cpu.gemm", "cpu.direct", "cpu.fft"], options=OPTIONS)
    found = {(row.problem.short, row.variant): row for row in rows(store)}
    assert len(found) == 12
    skipped = [key for key, row in found.items() if row.outcome is Outcome.PRUNED and not row.samples_ms]
    assert skipped == [("5-16-3-4-2", "cpu.direct")]
    assert found[skipped[0]].detail == "11 times slower than the best at batch 8 already"
