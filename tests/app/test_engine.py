"""The engine with real worker processes: they crash, overrun, are killed, and the next job runs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from pathlib import Path

import pytest

from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.app.workers.engine import NO_DEVICE, Engine, resolve_device
from conv_advisor.data.errors import DeadlineExceeded, LaunchFailed, NotSupported, QueueFull, WorkerDied, WorkerError
from tests import fakes
from tests.processes import children, eventually, is_running, read_pid

OPENER = "tests.fakes:open_nothing"


@pytest.fixture(scope="module")
def shared() -> Iterator[Engine]:
    """An engine whose worker outlives the tests that do it no harm."""
    with Engine("cpu", opener=OPENER) as engine:
        assert engine.wait_ready(300)
        yield engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine("cpu", opener=OPENER, max_queue=2) as engine:
        assert engine.wait_ready(300)
        yield engine


def test_runs_in_another_process(shared: Engine):
    assert shared.run(fakes.pid, deadline_s=300) == shared.pid != os.getpid()


def test_jobs_end_in_the_order_they_came(shared: Engine):
    futures = [shared.submit(fakes.add, index, 1, deadline_s=300) for index in range(10)]
    assert [future.result() for future in futures] == list(range(1, 11))


def test_a_tasks_own_error_comes_back_and_keeps_the_worker(shared: Engine):
    pid = shared.pid
    with pytest.raises(NotSupported, match="no engine for it"):
        shared.run(fakes.refuse, deadline_s=300)
    assert shared.run(fakes.pid, deadline_s=300) == pid


@pytest.mark.parametrize(
    ("task", "message"),
    [(fakes.divide_by_zero, "ZeroDivisionError"), (fakes.unpicklable, "cannot be sent"), (lambda: 1, "cannot be sent")],
)
def test_the_unforeseen_is_wrapped_and_keeps_the_worker(shared: Engine, task, message):
    pid = shared.pid
    with pytest.raises(WorkerError, match=message):
        shared.run(task, deadline_s=300)
    assert shared.run(fakes.pid, deadline_s=300) == pid


def test_progress_is_passed_on_in_order(shared: Engine):
    seen = []
    shared.run(fakes.count_to, 4, deadline_s=300, on_progress=lambda fraction, text: seen.append((fraction, text)))
    assert seen == [(0.25, "step 1"), (0.5, "step 2"), (0.75, "step 3"), (1.0, "step 4")]


def test_a_failing_progress_callback_does_not_fail_the_job(shared: Engine):
    assert shared.run(fakes.count_to, 3, deadline_s=300, on_progress=lambda *_: 1 / 0) == 3


def test_a_large_result_comes_through(shared: Engine):
    assert shared.run(fakes.zeros, 10 * 2**20, deadline_s=300).nbytes == 10 * 2**20


@pytest.mark.parametrize(
    ("task", "error"), [(fakes.crash, WorkerDied), (fakes.exit_early, WorkerDied), (fakes.poison, LaunchFailed)]
)
def test_a_worker_that_ends_is_replaced(engine: Engine, task, error):
    pid = engine.pid
    with pytest.raises(error):
        engine.run(task, deadline_s=300)
    assert engine.run(fakes.pid, deadline_s=300) != pid
    assert engine.restarts == 1
    assert not is_running(pid)


def test_a_worker_killed_during_a_job_fails_it_at_once_and_the_next_job_runs(engine: Engine, tmp_path):
    future = engine.submit(fakes.sleep, 3600, tmp_path / "pid", deadline_s=3600)
    following = engine.submit(fakes.add, 1, 2, deadline_s=300)
    os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
    with pytest.raises(WorkerDied, match="during the job"):
        future.result(300)  # and not after an hour, when the task would have ended
    assert following.result(300) == 3


def test_a_worker_killed_while_idle_costs_no_job(engine: Engine):
    for _ in range(3):
        os.kill(engine.pid, signal.SIGKILL)
        assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3
    assert engine.restarts >= 3


def test_a_worker_killed_while_idle_is_replaced_before_the_next_job(engine: Engine):
    pid = engine.pid
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: engine.is_alive and engine.pid != pid)


def test_a_worker_killed_before_its_first_task_has_a_spare_that_takes_over(engine: Engine):
    assert eventually(lambda: engine._spare is not None)
    spare = engine._spare.pid
    os.kill(engine.pid, signal.SIGKILL)
    assert eventually(lambda: engine.pid == spare and engine.is_alive)
    assert engine.run(fakes.pid, deadline_s=300) == spare


def test_a_worker_that_ended_is_collected_though_no_other_can_be_started(monkeypatch):
    with Engine("cpu", opener=OPENER, has_spare=False) as engine:
        assert engine.wait_ready(300)

        def refuse(*_given: object, **_named: object) -> None:
            raise OSError("no more processes")

        monkeypatch.setattr("conv_advisor.app.workers.engine.Child", refuse)
        pid = engine.pid
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: engine.state is EngineState.DOWN)
        assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_worker_that_is_stopped_is_replaced_as_one_that_ended_and_so_is_a_spare(engine: Engine):
    assert eventually(lambda: engine._spare is not None)
    for pid in (engine._spare.pid, engine.pid):
        os.kill(pid, signal.SIGSTOP)
        assert eventually(lambda pid=pid: not is_running(pid))
        assert eventually(lambda: engine.is_alive)
        assert engine.run(fakes.add, 1, 2, deadline_s=60) == 3


def test_a_worker_that_is_stopped_during_a_job_is_as_one_that_others_have_killed(engine: Engine, tmp_path):
    future = engine.submit(fakes.sleep, 3600, tmp_path / "pid", deadline_s=3600)
    os.kill(read_pid(tmp_path / "pid"), signal.SIGSTOP)
    with pytest.raises(WorkerKilled):
        future.result(300)
    assert engine.run(fakes.add, 1, 2, deadline_s=60) == 3


def test_a_worker_that_is_stopped_while_it_starts_is_replaced():
    with Engine("cpu", opener="tests.fakes:open_nothing", start_timeout_s=3600) as engine:
        assert eventually(lambda: engine.pid is not None)
        os.kill(engine.pid, signal.SIGSTOP)
        assert eventually(lambda: engine.is_alive)
        assert engine.run(fakes.add, 1, 2, deadline_s=60) == 3


def test_a_spare_is_warm_once_there_was_something_to_compute(engine: Engine):
    assert eventually(lambda: engine._spare is not None)
    assert not engine._spare.is_warm
    cold = engine._spare.pid
    engine.run(fakes.add, 1, 2, deadline_s=300)
    assert eventually(lambda: engine._spare.is_warm and engine._spare.pid != cold)
    assert eventually(lambda: not is_running(cold))


def test_an_overrun_kills_even_a_deaf_worker(engine: Engine):
    pid = engine.pid
    with pytest.raises(DeadlineExceeded, match=r"spin took more than 0\.2 s"):
        engine.run(fakes.spin, 60, deadline_s=0.2)
    assert not is_running(pid)
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3


def test_a_running_job_can_be_cancelled(engine: Engine, tmp_path):
    future = engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    pid = read_pid(tmp_path / "pid")
    assert future.cancel()
    assert eventually(lambda: not is_running(pid))
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3


def test_a_queued_job_can_be_cancelled_and_never_runs(engine: Engine, tmp_path):
    first = engine.submit(fakes.wait_for, tmp_path / "first", deadline_s=300)
    second = engine.submit(fakes.sleep, 0, tmp_path / "second", deadline_s=300)
    assert second.cancel()
    (tmp_path / "first").touch()
    assert wait([second], timeout=60).done == {second}
    first.result()
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3
    assert not (tmp_path / "second").exists()
    assert engine.restarts == 0


def test_an_interrupted_wait_cancels_the_job(engine: Engine, tmp_path, monkeypatch):
    def interrupted(*_):
        read_pid(tmp_path / "pid")
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    assert eventually(lambda: not is_running(int((tmp_path / "pid").read_text())))


def test_too_many_waiting_jobs_are_refused(engine: Engine, tmp_path):
    engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    read_pid(tmp_path / "pid")
    waiting = [engine.submit(fakes.add, 1, 2, deadline_s=300) for _ in range(2)]
    assert engine.queued == 2
    with pytest.raises(QueueFull, match="2 jobs wait for cpu"):
        engine.submit(fakes.add, 1, 2, deadline_s=300)
    waiting[0].cancel()
    engine.submit(fakes.add, 1, 2, deadline_s=300)


def test_close_cancels_everything_and_leaves_no_process(tmp_path):
    engine = Engine("cpu", opener=OPENER)
    running = engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    queued = engine.submit(fakes.add, 1, 2, deadline_s=300)
    pid = read_pid(tmp_path / "pid")
    engine.close()
    engine.close()
    for future in (running, queued):
        with pytest.raises(CancelledError):
            future.result(300)
    assert not is_running(pid)
    assert engine.state is EngineState.CLOSED
    with pytest.raises(WorkerError, match="closed"):
        engine.submit(fakes.add, 1, 2, deadline_s=300)


def test_close_during_the_start_does_not_hang():
    engine = Engine("cpu", opener="tests.fakes:open_slowly")
    engine.close()
    assert eventually(lambda: not engine._supervisor.is_alive())


def test_states(tmp_path):
    with Engine("cpu", opener=OPENER) as engine:
        assert engine.state in (EngineState.STARTING, EngineState.IDLE)
        assert engine.wait_ready(300)
        assert engine.state is EngineState.IDLE
        future = engine.submit(fakes.wait_for, tmp_path / "end", deadline_s=300)
        assert eventually(lambda: engine.state is EngineState.BUSY)
        (tmp_path / "end").touch()
        future.result()
        assert engine.state is EngineState.IDLE
    assert not engine.is_alive


def test_a_worker_that_cannot_start_says_so_and_is_tried_again():
    with Engine("cpu", opener="tests.fakes:no_such_function") as engine:
        assert not engine.wait_ready(300)
        assert engine.state is EngineState.DOWN
        for _ in range(2):
            with pytest.raises(WorkerDied, match="while it started"):
                engine.run(fakes.add, 1, 2, deadline_s=300)


def test_a_start_that_takes_too_long_is_ended():
    with (
        Engine("cpu", opener="tests.fakes:open_slowly", start_timeout_s=0.3) as engine,
        pytest.raises(DeadlineExceeded, match="to start"),
    ):
        engine.run(fakes.add, 1, 2, deadline_s=300)


def test_without_a_device_the_worker_lives_for_one_job():
    with Engine(NO_DEVICE) as engine:
        assert engine.is_alive
        assert engine.pid is None
        first, second = (engine.run(fakes.pid, deadline_s=300) for _ in range(2))
        assert first != second
        assert eventually(lambda: not is_running(second))
        assert engine.is_alive


def test_children_die_with_a_killed_parent(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from conv_advisor.app.workers.engine import Engine; from tests import fakes\n"
        f"engine = Engine('cpu', opener={OPENER!r})\n"
        "engine.wait_ready(300)\n"
        "engine.run(fakes.sleep, 3600, Path(sys.argv[1]), deadline_s=3600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "pid")])
    try:
        pid = read_pid(tmp_path / "pid")
        workers = children(parent.pid)
        assert pid in workers
        assert len(workers) == 2  # the spare too
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: not any(map(is_running, workers))), "the task would have gone on for an hour"


def test_a_worker_ignores_what_lies_in_the_folder_it_is_started_in(tmp_path, monkeypatch):
    for name in ("conv_advisor", "data", "kernels", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the folder\\'s own')\n")
    monkeypatch.chdir(tmp_path)
    with Engine("cpu", opener=OPENER, has_spare=False) as engine:
        assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3


@pytest.mark.parametrize("task", [fakes.total, fakes.refuse])
def test_what_goes_into_a_job_and_comes_out_is_freed_without_a_collection_of_garbage(
    shared: Engine, task: Callable[..., object]
) -> None:
    gc.disable()
    try:
        given = fakes.zeros(8)
        future = shared.submit(task, given, deadline_s=300)
        wait([future])
        result = shared.run(fakes.zeros, 8, deadline_s=300)
        kept = weakref.ref(given), weakref.ref(future), weakref.ref(result)
        del given, future, result
        assert eventually(lambda: [each() for each in kept] == [None] * 3)
    finally:
        gc.enable()


def test_the_workers_output_stays_off_standard_output():
    program = (
        "from conv_advisor.app.workers.engine import Engine\nfrom tests import fakes\n"
        f"with Engine('cpu', opener={OPENER!r}) as engine:\n"
        "    engine.run(fakes.shout, deadline_s=300)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == ""
    assert "HELLO" in done.stderr


def test_many_threads_share_one_engine(shared: Engine):
    results: dict[int, int] = {}

    def ask(number: int) -> None:
        results[number] = shared.run(fakes.add, number, number, deadline_s=300)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: 2 * number for number in range(8)}


@pytest.mark.parametrize("device", ["cpu", "cuda:3"])
def test_a_named_device_is_taken_at_its_word(device):
    assert resolve_device(device) == device
