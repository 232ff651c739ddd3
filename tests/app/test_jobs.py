"""Background jobs: their states, and that neither a killed worker nor a killed service loses one or leaves it stuck."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.engine import NO_DEVICE, Engine
from app.jobs import MAX_ATTEMPTS, Job, JobKind, JobRunner, Jobs, JobState
from data.errors import NotEnoughData, StoreError, UnknownJob, WorkerDied
from data.store import Store
from tests import fakes
from tests.processes import eventually, is_running, read_pid


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'jobs.db'}") as store:
        yield store


@pytest.fixture
def jobs(store) -> Jobs:
    return Jobs(store)


@contextmanager
def running(jobs: Jobs, task, **options) -> Iterator[JobRunner]:
    """A runner whose retraining is this task."""
    with Engine(NO_DEVICE) as engine:
        runner = JobRunner(jobs, engine, {JobKind.RETRAIN: task}, deadline_s=options.pop("deadline_s", 30), **options)
        runner.start()
        try:
            yield runner
        finally:
            runner.close()


def ended(jobs: Jobs, job: Job) -> Job:
    eventually(lambda: jobs.get(job.id).state.is_final)
    return jobs.get(job.id)


def test_a_new_job_is_queued_and_keeps_its_request(jobs):
    job = jobs.create(JobKind.RETRAIN, {"device": "cpu"})
    assert (job.state, job.progress, job.attempt, job.request) == (JobState.QUEUED, 0.0, 0, {"device": "cpu"})
    assert job.created_at.utcoffset().total_seconds() == 0
    assert job.started_at is job.finished_at is job.result is job.error is None
    assert jobs.get(job.id) == job


def test_ids_differ_and_unknown_ones_are_refused(jobs):
    ids = {jobs.create(JobKind.RETRAIN, {}).id for _ in range(20)}
    assert len(ids) == 20
    assert min(map(len, ids)) >= 20
    with pytest.raises(UnknownJob):
        jobs.get("nonsense")
    with pytest.raises(UnknownJob):
        jobs.cancel("nonsense")


def test_the_oldest_is_claimed_first_and_the_newest_listed_first(jobs):
    first, second = jobs.create(JobKind.RETRAIN, {}), jobs.create(JobKind.RETRAIN, {})
    assert [job.id for job in jobs.list()] == [second.id, first.id]
    claimed = jobs.claim()
    assert (claimed.id, claimed.state, claimed.attempt) == (first.id, JobState.RUNNING, 1)
    assert jobs.claim().id == second.id
    assert jobs.claim() is None


def test_a_finished_job_no_longer_changes(jobs):
    jobs.create(JobKind.RETRAIN, {})
    job = jobs.claim()
    jobs.succeed(job, {"promoted": True})
    jobs.fail(job, NotEnoughData("too late"))
    jobs.note_progress(job, 0.1, "too late")
    assert jobs.cancel(job.id).state is JobState.SUCCEEDED
    assert jobs.get(job.id).result == {"promoted": True}
    assert jobs.get(job.id).progress == 1.0


def test_an_earlier_attempt_changes_nothing(jobs):
    jobs.create(JobKind.RETRAIN, {})
    stale = jobs.claim()
    jobs.recover()
    current = jobs.claim()
    jobs.succeed(stale, {"stale": True})
    assert jobs.get(current.id).state is JobState.RUNNING
    jobs.succeed(current, {"stale": False})
    assert jobs.get(current.id).result == {"stale": False}


def test_what_a_killed_service_left_is_taken_up_until_it_is_given_up(jobs):
    jobs.create(JobKind.RETRAIN, {})
    for attempt in range(1, MAX_ATTEMPTS + 1):
        job = jobs.claim()
        assert job.attempt == attempt
        jobs.recover()
    given_up = jobs.get(job.id)
    assert given_up.state is JobState.FAILED
    assert given_up.error["type"] == "worker-died"
    assert f"after {MAX_ATTEMPTS} attempts" in given_up.error["detail"]
    assert jobs.claim() is None


def test_a_database_that_cannot_be_written_is_a_store_error(jobs, store):
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE jobs")
    with pytest.raises(StoreError):
        jobs.create(JobKind.RETRAIN, {})


def test_a_job_runs_and_tells_when_it_is_done(jobs):
    finished = []
    with running(jobs, fakes.job_done, on_finished=finished.append) as runner:
        job = ended(jobs, runner.submit(JobKind.RETRAIN, {"device": "cpu"}))
    assert (job.state, job.progress, job.message) == (JobState.SUCCEEDED, 1.0, "a quarter")
    assert job.result == {"request": {"device": "cpu"}}
    assert job.created_at <= job.started_at <= job.finished_at
    assert finished == [job]


def test_a_failed_job_keeps_its_error(jobs):
    with running(jobs, fakes.job_that_fails) as runner:
        job = ended(jobs, runner.submit(JobKind.RETRAIN, {}))
    assert job.state is JobState.FAILED
    assert job.error == {
        "type": "not-enough-data",
        "title": "Not enough data",
        "detail": "3 measurements; at least 100 are needed",
    }


def test_an_overrun_fails_the_job_and_the_next_one_runs(jobs, tmp_path):
    mark = tmp_path / "pid"
    with running(jobs, fakes.job_once_interrupted, deadline_s=2) as runner:
        first = runner.submit(JobKind.RETRAIN, {"path": str(mark)})
        second = runner.submit(JobKind.RETRAIN, {"path": str(mark)})
        assert ended(jobs, first).error["type"] == "deadline-exceeded"
        assert ended(jobs, second).state is JobState.SUCCEEDED


def test_a_killed_worker_costs_an_attempt_but_not_the_job(jobs, tmp_path):
    with running(jobs, fakes.job_once_interrupted) as runner:
        job = runner.submit(JobKind.RETRAIN, {"path": str(tmp_path / "pid")})
        os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
        job = ended(jobs, job)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)


def test_a_job_that_always_kills_its_worker_is_given_up(jobs):
    with running(jobs, fakes.job_that_dies) as runner:
        job = ended(jobs, runner.submit(JobKind.RETRAIN, {}))
    assert (job.state, job.attempt) == (JobState.FAILED, MAX_ATTEMPTS)
    assert "exit status 9" in job.error["detail"]


def test_a_running_job_can_be_cancelled(jobs, tmp_path):
    with running(jobs, fakes.job_once_interrupted) as runner:
        job = runner.submit(JobKind.RETRAIN, {"path": str(tmp_path / "pid")})
        read_pid(tmp_path / "pid")
        assert runner.cancel(job.id).state is JobState.CANCELLED
        following = runner.submit(JobKind.RETRAIN, {"path": str(tmp_path / "pid")})
        assert ended(jobs, following).state is JobState.SUCCEEDED
    assert jobs.get(job.id).state is JobState.CANCELLED


def test_a_queued_job_can_be_cancelled_and_never_runs(jobs, tmp_path):
    job = jobs.create(JobKind.RETRAIN, {"path": str(tmp_path / "pid")})
    jobs.cancel(job.id)
    with running(jobs, fakes.job_once_interrupted) as runner:
        assert ended(jobs, runner.submit(JobKind.RETRAIN, {"path": "/dev/null"})).state is JobState.SUCCEEDED
    assert not (tmp_path / "pid").exists()


def test_a_stopped_service_leaves_its_job_to_the_next(jobs, tmp_path):
    with running(jobs, fakes.job_once_interrupted) as runner:
        job = runner.submit(JobKind.RETRAIN, {"path": str(tmp_path / "pid")})
        read_pid(tmp_path / "pid")
    assert jobs.get(job.id).state is JobState.QUEUED
    with running(jobs, fakes.job_once_interrupted):
        assert ended(jobs, job).state is JobState.SUCCEEDED


def test_a_service_killed_during_a_job_loses_nothing_and_leaves_nothing_stuck(jobs, tmp_path):
    service = subprocess.Popen([sys.executable, "-c", SERVICE, str(tmp_path / "jobs.db"), str(tmp_path / "pid")])
    try:
        worker = read_pid(tmp_path / "pid")
    finally:
        service.kill()
        service.wait()
    (job,) = jobs.list()
    assert job.state is JobState.RUNNING
    with running(jobs, fakes.job_once_interrupted):
        job = ended(jobs, job)
    assert (job.state, job.attempt, job.result) == (JobState.SUCCEEDED, 2, {"done": True})
    assert not is_running(worker)


SERVICE = """
import sys, time
from app.engine import NO_DEVICE, Engine
from app.jobs import JobKind, JobRunner, Jobs
from data.store import Store
from tests import fakes

jobs = Jobs(Store(f"sqlite:///{sys.argv[1]}"))
runner = JobRunner(jobs, Engine(NO_DEVICE), {JobKind.RETRAIN: fakes.job_once_interrupted}, deadline_s=60)
runner.start()
runner.submit(JobKind.RETRAIN, {"path": sys.argv[2]})
time.sleep(60)
"""


def test_interrupting_names_its_reason(jobs):
    jobs.create(JobKind.RETRAIN, {})
    job = jobs.claim()
    jobs.interrupt(job, WorkerDied("exit status 1"))
    assert jobs.get(job.id).message == "attempt 1 was interrupted: exit status 1"
