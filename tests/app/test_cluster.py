"""The engine of a cluster, with a real scheduler and real workers: it is to its caller what a local engine is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from pathlib import Path

import httpx
import numpy as np
import pytest

from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.any_engine import EngineState
from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.app.workers.cluster.engine import ClusterEngine
from conv_advisor.app.workers.cluster.link import Link, link_from
from conv_advisor.data.errors import (
    DeadlineExceeded,
    InvalidInput,
    LaunchFailed,
    NotSupported,
    QueueFull,
    WorkerDied,
    WorkerError,
)
from tests import fakes
from tests.app.clusters import COMMAND, START_S, Cluster, Process, certificates
from tests.app.serving import Client, is_problem
from tests.processes import eventually, is_running, read_pid

pytestmark = pytest.mark.slow

BARE = "tests.fakes:open_bare"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One worker."""
    with Cluster() as cluster:
        cluster.add("cpu", BARE)
        yield cluster


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[ClusterEngine]:
    """An engine that outlives the tests that do it no harm."""
    with cluster.engine(1) as engine:
        yield engine


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[ClusterEngine]:
    with cluster.engine(1, max_queue=2) as engine:
        yield engine


def test_runs_in_the_child_of_a_dask_worker(cluster: Cluster, shared: ClusterEngine):
    (worker,) = cluster.pids().values()
    assert shared.run(fakes.parent_pid, deadline_s=300) == worker
    assert (shared.n_workers, shared.state, shared.is_alive, shared.pid) == (1, EngineState.IDLE, True, None)


def test_jobs_end_in_the_order_they_came(shared: ClusterEngine):
    futures = [shared.submit(fakes.add, index, 1, deadline_s=300) for index in range(5)]
    assert [future.result() for future in futures] == list(range(1, 6))


def test_a_tasks_own_error_comes_back_and_keeps_the_worker(shared: ClusterEngine):
    pid = shared.run(fakes.pid, deadline_s=300)
    with pytest.raises(NotSupported, match="no engine for it"):
        shared.run(fakes.refuse, deadline_s=300)
    assert shared.run(fakes.pid, deadline_s=300) == pid


@pytest.mark.parametrize(
    ("task", "message"),
    [(fakes.divide_by_zero, "ZeroDivisionError"), (fakes.unpicklable, "cannot be sent"), (lambda: 1, "cannot be sent")],
)
def test_the_unforeseen_is_wrapped_and_keeps_the_worker(shared: ClusterEngine, task, message):
    pid = shared.run(fakes.pid, deadline_s=300)
    with pytest.raises(WorkerError, match=message):
        shared.run(task, deadline_s=300)
    assert shared.run(fakes.pid, deadline_s=300) == pid


def test_progress_is_passed_on_in_order_and_before_the_end(shared: ClusterEngine):
    seen = []
    shared.run(fakes.count_to, 4, deadline_s=300, on_progress=lambda fraction, text: seen.append((fraction, text)))
    assert seen == [(0.25, "step 1"), (0.5, "step 2"), (0.75, "step 3"), (1.0, "step 4")]


def test_a_failing_progress_callback_does_not_fail_the_job(shared: ClusterEngine):
    assert shared.run(fakes.count_to, 3, deadline_s=300, on_progress=lambda *_: 1 / 0) == 3


def test_large_arguments_and_results_come_through(shared: ClusterEngine):
    given = np.ones(20 * 2**20, np.uint8)
    assert shared.run(fakes.total, given, deadline_s=300) == given.size
    assert shared.run(fakes.zeros, given.size, deadline_s=300).nbytes == given.size


def test_dask_does_not_limit_the_threads_of_what_is_measured(shared: ClusterEngine):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert shared.run(fakes.environment, name, deadline_s=300) == os.environ.get(name)


@pytest.mark.parametrize(
    ("task", "error"), [(fakes.crash, WorkerDied), (fakes.exit_early, WorkerDied), (fakes.poison, LaunchFailed)]
)
def test_a_child_that_ends_is_replaced_within_the_same_dask_worker(
    cluster: Cluster, engine: ClusterEngine, task, error
):
    workers = cluster.pids()
    with pytest.raises(error):
        engine.run(task, deadline_s=300)
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3
    assert cluster.pids() == workers


def test_an_overrun_kills_even_a_deaf_child(engine: ClusterEngine):
    pid = engine.run(fakes.pid, deadline_s=300)
    with pytest.raises(DeadlineExceeded, match=r"spin took more than 0\.2 s"):
        engine.run(fakes.spin, 60, deadline_s=0.2)
    assert not is_running(pid)
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3


def test_a_running_job_can_be_cancelled(engine: ClusterEngine, tmp_path):
    future = engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    pid = read_pid(tmp_path / "pid")
    assert engine.state is EngineState.BUSY
    assert future.cancel()
    assert eventually(lambda: not is_running(pid))
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3


def test_a_queued_job_can_be_cancelled_and_never_runs(engine: ClusterEngine, tmp_path):
    first = engine.submit(fakes.wait_for, tmp_path / "first", deadline_s=300)
    second = engine.submit(fakes.sleep, 0, tmp_path / "second", deadline_s=300)
    assert second.cancel()
    assert wait([second], timeout=300).done == {second}
    (tmp_path / "first").touch()
    first.result()
    assert engine.run(fakes.add, 1, 2, deadline_s=300) == 3
    assert not (tmp_path / "second").exists()


def test_too_many_waiting_jobs_are_refused(engine: ClusterEngine, tmp_path):
    engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    read_pid(tmp_path / "pid")
    for _ in range(2):
        engine.submit(fakes.add, 1, 2, deadline_s=300)
    assert engine.queued == 2
    with pytest.raises(QueueFull, match="2 jobs wait for tcp://"):
        engine.submit(fakes.add, 1, 2, deadline_s=300)


def test_close_stops_what_runs_and_leaves_the_worker_to_others(cluster: Cluster, tmp_path):
    engine = cluster.engine(1)
    running = engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
    pid = read_pid(tmp_path / "pid")
    queued = engine.submit(fakes.add, 1, 2, deadline_s=300)
    engine.close()
    engine.close()
    for future in (running, queued):
        with pytest.raises(CancelledError):
            future.result(300)
    assert eventually(lambda: not is_running(pid))
    assert engine.state is EngineState.CLOSED
    with pytest.raises(WorkerError, match="closed"):
        engine.submit(fakes.add, 1, 2, deadline_s=300)
    with cluster.engine(1) as other:
        assert other.run(fakes.add, 1, 2, deadline_s=300) == 3


def test_two_coordinators_take_turns(cluster: Cluster, shared: ClusterEngine, engine: ClusterEngine):
    futures = [each.submit(fakes.pid, deadline_s=300) for each in (shared, engine, shared)]
    assert len({future.result(300) for future in futures}) == 1


def test_nobody_waits_for_a_scheduler_that_is_not_there():
    with ClusterEngine(Link("tcp://127.0.0.1:9"), start_timeout_s=0.5) as engine:
        with pytest.raises(WorkerError, match=r"no worker of tcp://127\.0\.0\.1:9 in 0\.5 s: no scheduler answers"):
            engine.run(fakes.add, 1, 2, deadline_s=300)
        assert engine.state is EngineState.DOWN


def test_workers_come_and_go(caplog):
    with Cluster() as cluster, cluster.engine() as engine:
        assert engine.state is EngineState.STARTING
        assert eventually(lambda: engine._client)  # the scheduler answers
        engine.start_timeout_s = 2.0
        with pytest.raises(WorkerError, match=r"in 2 s: no worker has joined"):
            engine.run(fakes.add, 1, 2, deadline_s=300)
        assert engine.state is EngineState.DOWN

        engine.start_timeout_s = START_S  # in which a worker opens its device
        first, other = cluster.add("cpu", BARE)[0], cluster.add("cpu", "tests.fakes:open_other")[0]
        assert engine.wait_ready(START_S)
        assert {engine.run(fakes.add, 1, index, deadline_s=300) for index in range(4)} == {1, 2, 3, 4}
        assert eventually(lambda: "gets nothing: it has " in caplog.text)  # the other: its device is another
        assert engine.n_workers == 1
        assert len(cluster.pids()) == 2

        engine.start_timeout_s = 2.0
        first.signal(signal.SIGTERM)
        other.signal(signal.SIGTERM)
        assert (first.wait(), other.wait()) == (0, 0)
        assert eventually(lambda: engine.state is EngineState.DOWN)
        assert eventually(lambda: engine.restarts == 2)


def test_a_killed_dask_worker_fails_its_job_and_comes_back_and_ends_with_its_scheduler(tmp_path):
    with Cluster() as cluster:
        (nanny,) = cluster.add("cpu", BARE)
        with cluster.engine(1) as engine:
            future = engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
            child = read_pid(tmp_path / "pid")
            following = engine.submit(fakes.add, 1, 2, deadline_s=300)
            (worker,) = cluster.pids().values()
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(WorkerDied, match="ended during the job"):
                future.result()
            assert eventually(lambda: not is_running(child))
            assert following.result() == 3
            assert worker not in cluster.pids().values()

            running = engine.submit(fakes.sleep, 60, tmp_path / "second", deadline_s=60)
            child = read_pid(tmp_path / "second")
            engine.start_timeout_s = 1.0
            cluster.scheduler.end()
            with pytest.raises(WorkerError):  # it died, or is looked for where no scheduler answers any more
                running.result()
            assert nanny.wait() == 1
            assert eventually(lambda: not is_running(child))
            with pytest.raises(WorkerError, match="no scheduler answers"):
                engine.run(fakes.add, 1, 2, deadline_s=300)
            assert engine.state is EngineState.DOWN


def test_a_dask_worker_that_is_told_to_end_blames_no_job(tmp_path):
    with Cluster() as cluster:
        (nanny,) = cluster.add("cpu", BARE)
        with cluster.engine(1) as engine:
            future = engine.submit(fakes.sleep, 60, tmp_path / "pid", deadline_s=60)
            child = read_pid(tmp_path / "pid")
            nanny.signal(signal.SIGTERM)
            with pytest.raises(WorkerKilled, match="ended"):
                future.result(300)
            assert eventually(lambda: not is_running(child))


def test_the_commands_make_a_cluster_with_tls_that_lets_in_nobody_else(tmp_path):
    (tmp_path / "strange").mkdir()
    files, strange = certificates(tmp_path), certificates(tmp_path / "strange")
    environment = {"CONV_ADVISOR_HOME": str(tmp_path / "home")}
    for name, path in zip(("CA", "CERT", "KEY"), files, strict=True):
        environment[f"CONV_ADVISOR_SCHEDULER_{name}_FILE"] = str(path)
    with Process(*COMMAND, "scheduler", "--port", "0", **environment) as scheduler:
        address = environment["CONV_ADVISOR_SCHEDULER"] = scheduler.await_address()
        assert address.startswith("tls://")
        with Process(*COMMAND, "worker", "--device", "cpu", **environment) as worker:
            worker.await_address()
            done = run_command("convolve", "5-1-3-4-2", "--variant", "cpu.gemm", "--json", **environment)
            assert done.returncode == 0, done.stderr
            assert '"variant": "cpu.gemm", "outcome": "measured"' in done.stdout
            served(tmp_path / "served", address, files, worker)
            plain = Link(address.replace("tls://", "tcp://"))
            for link in (plain, Link(address, *strange), Link(address, files[0], *strange[1:])):
                with (
                    ClusterEngine(link, start_timeout_s=1.0) as engine,
                    pytest.raises(WorkerError, match="no scheduler answers"),
                ):
                    engine.run(fakes.add, 1, 2, deadline_s=300)
        scheduler.signal(signal.SIGTERM)
        assert scheduler.wait() == 0


def served(home: Path, address: str, files: tuple[Path, Path, Path], worker: Process) -> None:
    """The service convolves on the cluster, and says so when its last worker goes."""
    tls = dict(zip(("scheduler_ca_file", "scheduler_cert_file", "scheduler_key_file"), files, strict=True))
    settings = Settings(home=home, scheduler=address, start_timeout_s=START_S, convolution_deadline_s=START_S, **tls)
    client = Client(create_app(settings, timings=home / "nothing"))
    try:
        assert eventually(lambda: not lacks_worker(client) and convolve(client).status_code == 200)
        assert convolve(client).json()["outcome"] == "measured"
        client.app.state.service.worker.engine.start_timeout_s = 4.0
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert eventually(lambda: lacks_worker(client))
        is_problem(convolve(client), 503, "worker-error")
    finally:
        client.close()


def convolve(client: Client) -> httpx.Response:
    return client.post("/v1/convolutions", json={"layer": "5-1-3-4-2", "variant": "cpu.gemm"})


def lacks_worker(client: Client) -> bool:
    return "worker" in client.get("/readyz").json().get("missing", {})


def run_command(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-c", before + COMMAND[1], *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scheduler": "tcp://10.0.0.1:8786"}, "tls:// beyond loopback"),
        ({"scheduler": "tcp://head:8786"}, "CONV_ADVISOR_SCHEDULER_PLAIN"),
        ({"scheduler": "tls://head:8786"}, "CONV_ADVISOR_SCHEDULER_CA_FILE is ''; allowed: a PEM file"),
        ({"scheduler": "tls://head:8786", "scheduler_ca_file": Path("nowhere.pem")}, "can be read .No such file"),
        (
            {"scheduler": "tls://head:8786", "scheduler_ca_file": Path(__file__)},
            "test_cluster.py'; allowed: a PEM file",
        ),
    ],
)
def test_what_is_unsafe_or_incomplete_is_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        link_from(Settings(**given))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"])
def test_plain_connections_stay_on_this_machine(address):
    link = link_from(Settings(scheduler=address))
    assert (link.protocol, link.port, link.address) == ("tcp", 1, address)


def test_plain_connections_beyond_it_have_to_be_allowed():
    assert link_from(Settings(scheduler="tcp://192.0.2.1:1", scheduler_plain=True)).host == "192.0.2.1"


@pytest.mark.parametrize("command", [("scheduler",), ("worker",), ("convolve", "5-1-3-4-2"), ("sweep",), ("serve",)])
def test_without_dask_the_commands_say_what_to_install(command, tmp_path):
    environment = {"CONV_ADVISOR_SCHEDULER": "tcp://127.0.0.1:9", "CONV_ADVISOR_HOME": str(tmp_path)}
    done = run_command(*command, before="import sys; sys.modules['distributed'] = None; ", **environment)
    assert done.returncode == 2, done.stderr
    assert "pip install 'conv-advisor[cluster]'" in done.stderr
