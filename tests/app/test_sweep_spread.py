"""Sweeps spread over devices of one host, and over a real cluster whose workers are killed: one row an attempt."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from conv_advisor.app.sweep import sweep as sweeping
from conv_advisor.app.sweep.attempt import Layer, Result, Terms
from conv_advisor.app.sweep.fleet import OnBegin, OnResult
from conv_advisor.app.sweep.sweep import MAX_LOST, SweepReport, sweep
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.app.workers.child import JobNotTaken, WorkerKilled
from conv_advisor.app.workers.engine import Engine
from conv_advisor.app.workers.lent import Lent
from conv_advisor.data import parquet
from conv_advisor.data.errors import InvalidInput, StoreError, WorkerDied, WorkerError
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.data.transfer import measurements_table
from conv_advisor.kernels.bench import BenchOptions
from tests import fakes
from tests.app.clusters import START_S, Cluster
from tests.data import arrow
from tests.processes import eventually, read_pid

CPU = Device("cpu", "A recorded CPU", "cpu", processors=2)
SIZES, BATCHES = range(5, 11), (1, 2)
PROBLEMS = [ConvProblem.parse(f"{size}-{batch}-3-4-2") for batch in BATCHES for size in SIZES]
VARIANTS = ["cpu.direct", "cpu.gemm", "cpu.fft"]
OPTIONS = BenchOptions()
EVERY = Counter((problem, variant) for problem in PROBLEMS for variant in VARIANTS)


def recorded(device: Device = CPU, spoilt: dict[tuple[str, str], Outcome] | None = None) -> list[Measurement]:
    """Every variant measured on every problem, but for those attempts that fail."""
    rows = [
        Measurement(
            problem, name, device, Outcome.MEASURED, samples_ms=(time_ms,) * 3, workspace_bytes=64, max_error=1e-7
        )
        for problem in PROBLEMS
        for time_ms, name in enumerate(VARIANTS, start=1)
    ]
    failing = {
        (row.problem.short, row.variant): row for row in rows if (row.problem.short, row.variant) in (spoilt or {})
    }
    return [
        replace(row, outcome=(spoilt or {})[key], samples_ms=(), detail="as recorded")
        if (key := (row.problem.short, row.variant)) in failing
        else row
        for row in rows
    ]


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'sweep.db'}") as store:
        yield store


@pytest.fixture
def recording(tmp_path) -> Path:
    return write(tmp_path / "recording.parquet", recorded())


def write(path: Path, rows: list[Measurement]) -> Path:
    parquet.write(arrow.measurements_to_table(rows), path)
    return path


def attempts(store: Store) -> Counter[tuple[ConvProblem, str]]:
    return Counter((row.problem, row.variant) for row in rows(store))


def rows(store: Store) -> list[Measurement]:
    return arrow.table_to_measurements(measurements_table(store, "cpu"))


def measuring(recording: Path) -> set[int]:
    """Processes that have measured, and their parents."""
    return {int(pid) for path in recording.parent.glob("measured-*") for pid in path.name.split("-")[1:]}


def refuse() -> None:
    """Cancel the sweep."""
    raise StoreError("cancelled")


class Hook:
    """Does something once, when so many problems are measured."""

    def __init__(self, when: int, what) -> None:
        self._when, self._what = when, what
        self.seen: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int, _key: str) -> None:
        self.seen.append((done, total))
        if self._what and done >= self._when:
            what, self._what = self._what, None
            what()


# What a layer is blamed for.


class LosingFleet:
    """One worker, lost as often as there are losses; each measures so many problems of a layer before."""

    n_workers = n_places = 1
    patience_s = 5.0

    def __init__(self, losses: list[WorkerError], n_measured: int) -> None:
        self._losses = losses
        self._n_measured = n_measured

    def describe(self, _deadline_s: float) -> Device:
        return CPU

    def delegate(self, layer: Layer, _terms: Terms, _on_begin: OnBegin, on_result: OnResult) -> Future[None]:
        future: Future[None] = Future()
        n_measured = self._n_measured if self._losses else len(layer)
        for trial in layer[:n_measured]:
            problem = trial.problem
            on_result(Result(problem, [replace(row, problem=problem) for row in recorded()[: len(VARIANTS)]], []))
        if self._losses:
            future.set_exception(self._losses.pop())
        else:
            future.set_result(None)
        return future

    def stop(self) -> None:
        return


LAYER = [ConvProblem.parse(f"5-{batch}-3-4-2") for batch in range(1, MAX_LOST + 2)]
DIED, KILLED = WorkerDied("it ended during the job"), WorkerKilled("somebody has ended it")


def spread(
    monkeypatch: pytest.MonkeyPatch, store: Store, losses: list[WorkerError], n_measured: int = 0
) -> SweepReport:
    """A sweep of one layer on workers that are lost so."""
    monkeypatch.setattr(sweeping, "fleet_of", lambda _engine: LosingFleet(losses, n_measured))
    return sweep(store, [], LAYER, VARIANTS, options=OPTIONS)


def test_a_layer_that_loses_one_worker_after_the_other_ends_the_sweep(monkeypatch, store):
    with pytest.raises(WorkerError, match=rf"has lost {MAX_LOST} workers, the last one by: it ended"):
        spread(monkeypatch, store, [DIED] * MAX_LOST)
    assert spread(monkeypatch, store, [DIED] * (MAX_LOST - 1)).is_complete


def test_workers_that_were_ended_from_outside_are_not_counted_against_a_layer(monkeypatch, store):
    losses: list[WorkerError] = [KILLED, DIED] * (MAX_LOST - 1) + [JobNotTaken("it was gone")] * MAX_LOST
    assert spread(monkeypatch, store, losses).is_complete
    assert set(attempts(store)) == {(problem, variant) for problem in LAYER for variant in VARIANTS}


def test_a_worker_where_a_layer_has_measured_something_is_not_counted_against_it(monkeypatch, store):
    assert spread(monkeypatch, store, [DIED] * MAX_LOST, n_measured=1).is_complete
    assert attempts(store).total() == len(LAYER) * len(VARIANTS)


def test_a_dask_worker_that_is_ended_says_that_its_job_is_not_to_blame(tmp_path):
    node = pytest.importorskip("conv_advisor.app.workers.cluster.node", reason="Dask is an extra")
    said = []

    def work(lent: Lent) -> int:
        return lent.run(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)

    with Engine("cpu", opener="tests.fakes:open_bare", has_spare=False) as engine, ThreadPoolExecutor(1) as threads:
        owned = node.Owned(engine)
        ended = threads.submit(owned.run, "job", work, lambda: said.append(1))
        read_pid(tmp_path / "pid")
        owned.leave()
        engine.close()
        assert isinstance(ended.result(300).error, WorkerKilled)
    assert said == [1]


# Several devices of one host.


@pytest.fixture
def devices(recording: Path) -> Iterator[list[Engine]]:
    engines = [Engine(str(recording), opener=fakes.SLOW_REPLAY, has_spare=False) for _ in range(2)]
    yield engines
    for engine in engines:
        engine.close()


def test_two_devices_of_a_host_share_a_sweep(store, devices, recording):
    def wait_for_both() -> None:
        assert eventually(lambda: {engine.pid for engine in devices} <= measuring(recording))

    watch = Hook(1, wait_for_both)
    report = sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=watch)
    assert attempts(store) == EVERY
    assert report.is_complete
    assert report.outcomes == {Outcome.MEASURED: EVERY.total()}
    assert watch.seen[-1] == (len(PROBLEMS), len(PROBLEMS))
    assert [done for done, _ in watch.seen] == sorted(done for done, _ in watch.seen)


def test_the_largest_layers_are_begun_first_and_a_layers_batches_in_order(store, devices):
    sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS)
    begun = list(dict.fromkeys(row.problem for row in rows(store)))
    assert {problem.h for problem in begun[:2]} <= {9, 10}
    for size in SIZES:
        assert [problem.n for problem in begun if problem.h == size] == list(BATCHES)


def test_a_device_that_is_lost_leaves_its_layer_to_the_other(store, tmp_path, recording):
    own = write(tmp_path / "own.parquet", recorded())
    with (
        Engine(str(recording), opener=fakes.SLOW_REPLAY, has_spare=False) as first,
        Engine(str(own), opener=fakes.SLOW_REPLAY, has_spare=False) as second,
    ):

        def lose() -> None:
            own.write_text("no recording any more")
            os.kill(second.pid, signal.SIGKILL)

        report = sweep(store, [first, second], PROBLEMS, VARIANTS, options=OPTIONS, on_progress=Hook(3, lose))
    assert attempts(store) == EVERY
    assert report.outcomes == {Outcome.MEASURED: EVERY.total()}


def test_a_killed_child_costs_one_problem_again_and_the_other_device_nothing(store, devices):
    def kill() -> None:
        os.kill(devices[0].pid, signal.SIGKILL)

    report = sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=Hook(3, kill))
    assert attempts(store) == EVERY
    assert report.outcomes == {Outcome.MEASURED: EVERY.total()}
    assert [engine.restarts for engine in devices] == [1, 0]


def test_a_report_says_where_the_time_of_its_workers_went(store, devices):
    report = sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS)
    spent = report.time
    assert report.n_workers == 2
    assert spent.measuring_s >= 0.2 * len(PROBLEMS)  # what operands take here
    parts = (spent.measuring_s, spent.preparing_s, spent.store_s, spent.host_s, spent.waiting_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(2 * report.elapsed_s)
    assert 0.2 <= spent.longest_s <= report.elapsed_s


def test_devices_of_two_kinds_are_not_mixed(store, tmp_path, recording):
    other = write(tmp_path / "other.parquet", recorded(replace(CPU, name="Another")))
    with (
        Engine(str(recording), opener=fakes.REPLAY, has_spare=False) as first,
        Engine(str(other), opener=fakes.REPLAY, has_spare=False) as second,
        pytest.raises(InvalidInput, match=r"Another.*devices like .*A recorded CPU"),
    ):
        sweep(store, [first, second], PROBLEMS, VARIANTS, options=OPTIONS)
    assert not rows(store)


def test_what_progress_raises_ends_the_sweep_at_once(store, devices):
    with pytest.raises(StoreError, match="cancelled"):
        sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=Hook(2, refuse))
    found = attempts(store)
    assert 0 < found.total() < EVERY.total()
    assert set(found.values()) == {1}
    sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS)
    assert attempts(store) == EVERY


def test_a_sweep_can_be_stopped_from_outside(store, devices):
    stopping = threading.Event()
    with pytest.raises(CancelledError):
        sweep(store, devices, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=Hook(2, stopping.set), stopping=stopping)
    assert 0 < attempts(store).total() < EVERY.total()
    assert eventually(lambda: all(engine.is_alive for engine in devices))


def test_a_queue_that_is_full_of_others_work_is_waited_for(store, recording, tmp_path):
    with Engine(str(recording), opener=fakes.REPLAY, has_spare=False, max_queue=1) as engine:
        engine.submit(fakes.wait_for, tmp_path / "end", deadline_s=300)
        assert eventually(lambda: engine.state is EngineState.BUSY)
        other = engine.submit(fakes.add, 1, 2, deadline_s=300)
        threading.Timer(0.5, (tmp_path / "end").touch).start()
        assert sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS).is_complete
        assert other.result() == 3
    assert attempts(store) == EVERY


# A cluster.


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.mark.slow
def test_a_killed_dask_worker_costs_only_its_layer(store, cluster: Cluster, recording):
    cluster.add(str(recording), fakes.SLOW_REPLAY, 2)
    with cluster.engine(2) as engine:
        pids = set(cluster.pids().values())

        def kill_one() -> None:
            assert eventually(lambda: pids <= measuring(recording))  # both are at work
            os.kill(min(pids), signal.SIGKILL)

        hook = Hook(4, kill_one)
        report = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=hook)
        assert eventually(lambda: (engine.n_workers, engine.restarts) == (2, 1))  # its nanny brings it back
    assert attempts(store) == EVERY
    assert (report.is_complete, report.n_attempts) == (True, EVERY.total())
    assert report.outcomes == {Outcome.MEASURED: EVERY.total()}
    assert hook.seen[-1] == (len(PROBLEMS), len(PROBLEMS))


@pytest.mark.slow
def test_late_workers_are_used_and_a_sweep_that_all_have_left_ends_clearly_and_goes_on(store, cluster, recording):
    cluster.add(str(recording), fakes.SLOW_REPLAY)
    with cluster.engine(1) as engine:
        engine.start_timeout_s = 2.0

        def join() -> None:
            engine.start_timeout_s = START_S  # in which the late one opens its device
            cluster.add(str(recording), fakes.SLOW_REPLAY)
            assert engine.wait_ready(START_S, 2)

        joined = Hook(1, join)

        def join_then_leave(done: int, total: int, key: str) -> None:
            joined(done, total, key)
            parents = {path.name.split("-")[1] for path in recording.parent.glob("measured-*")}
            if len(parents) == 2:  # the late one has measured too
                engine.start_timeout_s = 2.0
                for worker in cluster.workers:
                    worker.end()

        with pytest.raises(WorkerError, match=r"no worker is left.*ended during the job.* goes on"):
            sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=join_then_leave)
        before = attempts(store)
        assert 0 < before.total() < EVERY.total()
        engine.start_timeout_s = START_S
        cluster.add(str(recording), fakes.SLOW_REPLAY)
        assert engine.wait_ready(START_S)
        report = sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS)
        assert report.n_skipped == before.total()
    assert attempts(store) == EVERY


@pytest.mark.slow
def test_limits_bad_variants_and_cancelling_are_on_a_cluster_what_they_are_on_one_device(store, cluster, tmp_path):
    spoilt = {("9-2-3-4-2", "cpu.gemm"): Outcome.CRASHED, ("6-1-3-4-2", "cpu.fft"): Outcome.LAUNCH_FAILED}
    recording = write(tmp_path / "recording.parquet", recorded(spoilt=spoilt))
    cluster.add(str(recording), fakes.SLOW_REPLAY, 2)
    with cluster.engine(2) as engine:
        pids = cluster.pids()
        while not attempts(store):  # a busy machine may begin none in that time
            assert not sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, time_limit_s=0.7).is_complete
        assert attempts(store).total() < EVERY.total()

        with pytest.raises(StoreError, match="cancelled"):
            sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS, on_progress=Hook(0, refuse))

        assert sweep(store, engine, PROBLEMS, VARIANTS, options=OPTIONS).is_complete
        assert (cluster.pids(), engine.restarts) == (pids, 0)
    assert attempts(store) == EVERY
    failed = {
        (row.problem.short, row.variant): row.outcome for row in rows(store) if row.outcome is not Outcome.MEASURED
    }
    assert failed == spoilt
