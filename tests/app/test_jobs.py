"""Background jobs: their states, and that neither a killed worker nor a killed service loses one or leaves it stuck."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from sqlalchemy import event, insert, select, update

from conv_advisor.app.jobs.background import ToldJobs
from conv_advisor.app.jobs.job import Job, JobKind, JobLost, JobState, Key
from conv_advisor.app.jobs.leases import BEAT_S, LONGEST_PAUSE_S
from conv_advisor.app.jobs.runner import Done, Held, JobRunner, Work
from conv_advisor.app.jobs.table import MAX_ATTEMPTS, Jobs
from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.app.workers.engine import NO_DEVICE, Engine
from conv_advisor.data.database.tables import IMPORTS, JOBS
from conv_advisor.data.errors import (
    KeyReused,
    NotEnoughData,
    QueueFull,
    StoreError,
    UnknownDevice,
    UnknownJob,
    WorkerDied,
)
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels
from tests import fakes
from tests.models import hand_made
from tests.processes import eventually, is_running, read_pid

SHORT_S = 1.0
"""A lease that is over soon."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Four processes that share a database."""
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def store(database_url) -> Iterator[Store]:
    with Store(database_url) as store:
        yield store


@pytest.fixture
def jobs(store) -> Jobs:
    return Jobs(store)


def in_worker(engine: Engine, task, deadline_s: float = 60) -> Work:
    """Work that is one task of an engine; a request may have a deadline of its own."""

    def work(held) -> Done:
        request = held.job.request
        return Done(held.run(engine, task, request, deadline_s=request.get("deadline_s", deadline_s)))

    return work


@contextmanager
def running(jobs: Jobs, task, **options) -> Iterator[JobRunner]:
    """A runner whose retraining is this task."""
    with Engine(NO_DEVICE) as engine:
        work = in_worker(engine, task, deadline_s=options.pop("deadline_s", 300))
        runner = JobRunner(jobs, {JobKind.RETRAIN: work}, **({"lease_s": SHORT_S} | options))
        runner.start()
        try:
            yield runner
        finally:
            runner.close()


def submit(jobs: Jobs, runner: JobRunner, request: dict) -> Job:
    job = jobs.create(JobKind.RETRAIN, request)
    runner.wake()
    return job


def cancel(jobs: Jobs, runner: JobRunner, job: Job) -> Job:
    cancelled = jobs.cancel(job.id)
    runner.stop(job.id)
    return cancelled


def claim(jobs: Jobs, lease_s: float = 60.0, **options) -> Job | None:
    return jobs.claim("somebody", lease_s, **options)


def abandon(store: Store) -> None:
    """Let every lease end, as if their owners had been killed long ago."""
    with store.engine.begin() as connection:
        connection.execute(update(JOBS).where(JOBS.c.state == JobState.RUNNING).values(lease_ends_s=1.0))


def ended(jobs: Jobs, job: Job) -> Job:
    eventually(lambda: jobs.get(job.id).state.is_final)
    return jobs.get(job.id)


def test_a_new_job_is_queued_and_keeps_its_request(jobs):
    job = jobs.create(JobKind.RETRAIN, {"device": "cpu"})
    assert (job.state, job.progress, job.attempt, job.request) == (JobState.QUEUED, 0.0, 0, {"device": "cpu"})
    assert job.created_at.utcoffset().total_seconds() == 0
    assert job.started_at is job.finished_at is job.result is job.error is None
    assert jobs.get(job.id) == job


def test_a_new_job_is_queued_for_who_asked_even_if_it_is_claimed_at_once(jobs, store):
    claimed = []
    event.listen(store.engine, "checkin", lambda *_: claimed.append(claim(jobs)), once=True)
    job = jobs.create(JobKind.RETRAIN, {})
    assert job.state is JobState.QUEUED
    assert [each.id for each in claimed] == [job.id]
    assert jobs.get(job.id).state is JobState.RUNNING


def test_an_id_is_letters_and_digits(jobs):
    ids = [jobs.create(JobKind.RETRAIN, {}).id for _ in range(40)]
    assert all(job_id.isalnum() for job_id in ids), "a command line would take a hyphen for an option"


def test_ids_differ_and_unknown_ones_are_refused(jobs):
    ids = {jobs.create(JobKind.RETRAIN, {}).id for _ in range(20)}
    assert len(ids) == 20
    assert min(map(len, ids)) >= 20
    for ask in (jobs.get, jobs.cancel, lambda job_id: jobs.list(before=job_id)):
        with pytest.raises(UnknownJob):
            ask("\0")
    with pytest.raises(UnknownJob):
        jobs.get("nonsense")
    with pytest.raises(UnknownJob):
        jobs.cancel("nonsense")


def test_the_oldest_is_claimed_first_and_the_newest_listed_first(jobs):
    first, second = jobs.create(JobKind.RETRAIN, {}), jobs.create(JobKind.RETRAIN, {})
    assert [job.id for job in jobs.list()] == [second.id, first.id]
    claimed = claim(jobs)
    assert (claimed.id, claimed.state, claimed.attempt) == (first.id, JobState.RUNNING, 1)
    assert claim(jobs).id == second.id
    assert claim(jobs) is None


def test_a_finished_job_no_longer_changes(jobs):
    jobs.create(JobKind.RETRAIN, {})
    job = claim(jobs)
    jobs.succeed(job, {"promoted": True})
    jobs.fail(job, NotEnoughData("too late"))
    jobs.note_progress(job, 0.1, "too late")
    assert jobs.cancel(job.id).state is JobState.SUCCEEDED
    assert jobs.get(job.id).result == {"promoted": True}
    assert jobs.get(job.id).progress == 1.0


def test_an_earlier_attempt_changes_nothing(jobs, store):
    jobs.create(JobKind.RETRAIN, {})
    stale = claim(jobs)
    abandon(store)
    current = claim(jobs)
    assert (current.id, current.attempt) == (stale.id, 2)
    jobs.note_progress(stale, 0.9, "stale")
    jobs.fail(stale, NotEnoughData("stale"))
    jobs.interrupt(stale, WorkerDied("stale"))
    jobs.release(stale)
    assert not jobs.renew(stale, 60)
    with pytest.raises(JobLost):
        jobs.succeed(stale, {"stale": True})
    assert jobs.get(current.id) == current
    jobs.succeed(current, {"stale": False})
    assert jobs.get(current.id).result == {"stale": False}


def test_what_a_job_changes_at_its_end_is_changed_once_or_not_at_all(jobs, store):
    def remember(connection):
        connection.execute(insert(IMPORTS), {"sha256": "effect", "rows": 1})

    def break_off(connection):
        remember(connection)
        raise NotEnoughData("half way")

    jobs.create(JobKind.RETRAIN, {})
    stale = claim(jobs)
    abandon(store)
    current = claim(jobs)
    with pytest.raises(JobLost):
        jobs.succeed(stale, {}, remember)
    with pytest.raises(NotEnoughData):
        jobs.succeed(current, {}, break_off)
    assert jobs.get(current.id).state is JobState.RUNNING
    jobs.succeed(current, {}, remember)
    with pytest.raises(JobLost):
        jobs.succeed(current, {}, remember)
    with store.engine.connect() as connection:
        assert connection.execute(select(IMPORTS.c.sha256)).scalars().all() == ["effect"]


def crash(jobs: Jobs) -> Job:
    """Claim the job, and let its attempt break off by itself."""
    job = claim(jobs)
    jobs.interrupt(job, WorkerDied("exit status 1"))
    return jobs.get(job.id)


def test_what_killed_services_left_is_taken_up_however_often(jobs, store):
    jobs.create(JobKind.SWEEP, {})
    for attempt in range(1, 3 * MAX_ATTEMPTS):
        job = claim(jobs)
        assert job.attempt == attempt
        assert claim(jobs) is None
        abandon(store)
    assert "ended or lost the database" in claim(jobs).message


def test_a_job_whose_attempts_crash_is_given_up(jobs):
    jobs.create(JobKind.RETRAIN, {})
    for _ in range(MAX_ATTEMPTS - 1):
        assert crash(jobs).state is JobState.QUEUED
    given_up = crash(jobs)
    assert given_up.state is JobState.FAILED
    assert given_up.error["type"] == "worker-died"
    assert f"after {MAX_ATTEMPTS} attempts" in given_up.error["detail"]


def test_a_crash_of_an_attempt_that_has_kept_something_does_not_count(jobs, store):
    jobs.create(JobKind.SWEEP, {})
    for attempt in range(1, 3 * MAX_ATTEMPTS):
        job = claim(jobs)
        assert job.attempt == attempt
        with store.engine.begin() as connection:
            jobs.confirm(job, connection)
        jobs.interrupt(job, WorkerDied("exit status 1"))
    for _ in range(MAX_ATTEMPTS - 1):
        assert crash(jobs).state is JobState.QUEUED
    assert crash(jobs).state is JobState.FAILED


def test_what_was_kept_forgives_only_the_attempt_that_kept_it(jobs, store):
    jobs.create(JobKind.SWEEP, {})
    job = claim(jobs)
    with store.engine.begin() as connection:
        jobs.confirm(job, connection)
    jobs.release(job)
    assert [crash(jobs).state for _ in range(MAX_ATTEMPTS)][-1] is JobState.FAILED


def test_a_service_that_stops_counts_nothing_against_its_job(jobs):
    jobs.create(JobKind.RETRAIN, {})
    for attempt in range(1, 3 * MAX_ATTEMPTS):
        job = claim(jobs)
        assert job.attempt == attempt
        jobs.release(job)


def test_a_lease_lasts_as_long_as_it_is_renewed(store, jobs):
    jobs.create(JobKind.RETRAIN, {})
    job = claim(jobs, lease_s=3600)
    for _ in range(3):
        set_ahead(store, -3000)
        assert jobs.renew(job, 3600)
        assert claim(jobs) is None
    set_ahead(store, -4000)
    assert claim(jobs).attempt == 2
    assert not jobs.renew(job, 3600)


def set_ahead(store: Store, by_s: float) -> None:
    """Let every lease end so much later, as if the clock had been ahead when it was given; or earlier, if negative."""
    with store.engine.begin() as connection:
        held = update(JOBS).where(JOBS.c.state == JobState.RUNNING)
        connection.execute(held.values(lease_ends_s=JOBS.c.lease_ends_s + by_s))


def test_a_lease_given_while_the_clock_was_ahead_ends_once_nobody_renews_it(store):
    clock_s = [0.0]
    jobs = Jobs(store, clock=lambda: clock_s[0])
    jobs.create(JobKind.RETRAIN, {})
    job = claim(jobs)
    set_ahead(store, 3600)
    assert claim(jobs, lease_s=20) is None
    clock_s[0] = 19
    assert claim(jobs, lease_s=20) is None
    assert jobs.renew(job, 3600)
    clock_s[0] = 38
    assert claim(jobs, lease_s=20) is None, "a renewal is a sign of life"
    clock_s[0] = 57
    assert claim(jobs, lease_s=20) is None
    clock_s[0] = 59
    assert claim(jobs, lease_s=20).attempt == 2
    assert not jobs.renew(job, 20)


def test_who_looks_with_short_leases_takes_no_job_whose_owner_gives_longer_ones(store):
    clock_s = [0.0]
    jobs = Jobs(store, clock=lambda: clock_s[0])
    jobs.create(JobKind.RETRAIN, {})
    claim(jobs, lease_s=3600)
    assert claim(jobs, lease_s=1) is None
    clock_s[0] = BEAT_S * 9
    assert claim(jobs, lease_s=1) is None


def kill(jobs: Jobs, pause_s: float) -> Job:
    """Claim a job, and release it as if its worker had been killed."""
    job = claim(jobs)
    jobs.release(job, "the worker was killed", pause_s=pause_s)
    return job


def test_a_job_whose_worker_was_killed_waits_and_lets_the_others_go_first(jobs, store):
    first, second = jobs.create(JobKind.RETRAIN, {}), jobs.create(JobKind.RETRAIN, {})
    assert kill(jobs, 3600).id == first.id
    assert jobs.get(first.id).state is JobState.QUEUED
    assert claim(jobs).id == second.id
    assert claim(jobs) is None, "it waits even if nobody else does"
    end_pauses(store)
    assert claim(jobs).id == first.id


def end_pauses(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.execute(
            update(JOBS).where(JOBS.c.state == JobState.QUEUED).values(lease_ends_s=JOBS.c.lease_ends_s * 0)
        )


def test_jobs_whose_workers_are_killed_take_turns_with_all_that_wait(jobs, store):
    first, second, third = (jobs.create(JobKind.RETRAIN, {}).id for _ in range(3))
    turns = []
    for _ in range(3):
        turns.append(kill(jobs, 60).id)
        end_pauses(store)  # as if every attempt took longer than the longest pause
    later = jobs.create(JobKind.RETRAIN, {}).id
    for _ in range(4):
        turns.append(kill(jobs, 60).id)
        end_pauses(store)
    assert turns == [first, second, third, first, second, third, later]


def test_a_job_that_a_stopped_service_left_keeps_its_place(jobs):
    first, second = jobs.create(JobKind.RETRAIN, {}), jobs.create(JobKind.RETRAIN, {})
    jobs.release(claim(jobs))
    assert [claim(jobs).id, claim(jobs).id] == [first.id, second.id]


def test_a_pause_given_while_the_clock_was_ahead_ends_all_the_same(store):
    clock_s = [0.0]
    jobs = Jobs(store, clock=lambda: clock_s[0])
    jobs.create(JobKind.RETRAIN, {})
    kill(jobs, 3600)
    assert claim(jobs) is None
    clock_s[0] = LONGEST_PAUSE_S - 1
    assert claim(jobs, lease_s=1) is None, "a pause is no lease"
    clock_s[0] = LONGEST_PAUSE_S + 1
    assert claim(jobs).attempt == 2


def test_a_worker_that_is_always_killed_neither_spins_nor_keeps_other_jobs_waiting(jobs):
    def work(held) -> Done:
        if held.job.request:
            return Done({})
        raise WorkerKilled("exit status -9")

    runner = JobRunner(jobs, {JobKind.RETRAIN: work})
    killed, other = jobs.create(JobKind.RETRAIN, {}), jobs.create(JobKind.RETRAIN, {"is": "well"})
    began = time.monotonic()
    runner.start()
    assert ended(jobs, other).state is JobState.SUCCEEDED
    assert eventually(lambda: jobs.get(killed.id).attempt == 3)
    assert time.monotonic() - began >= 1 + 2, "a second after the first attempt, two after the second"
    runner.close()
    assert "exit status -9" in jobs.get(killed.id).message


def test_jobs_go_to_those_who_can_do_them(jobs):
    sweep = jobs.create(JobKind.SWEEP, {}, device_id="cpu")
    retrain = jobs.create(JobKind.RETRAIN, {})
    assert claim(jobs, kinds=[JobKind.SWEEP], device_id="nvidia-h200") is None
    assert claim(jobs, kinds=[JobKind.MEASURE], device_id="cpu") is None
    assert claim(jobs, device_id="nvidia-h200").id == retrain.id
    assert claim(jobs, kinds=[JobKind.SWEEP], device_id="cpu").id == sweep.id


def test_a_key_makes_one_job_of_equal_requests(jobs):
    first = jobs.create(JobKind.RETRAIN, {"device": "cpu"}, key=Key("k", "hash"))
    assert jobs.create(JobKind.RETRAIN, {"device": "cpu"}, key=Key("k", "hash")) == first
    assert jobs.find(Key("k", "hash")) == first
    assert jobs.find(Key("other", "hash")) is None
    for reuse in (
        lambda: jobs.find(Key("k", "other")),
        lambda: jobs.create(JobKind.RETRAIN, {}, key=Key("k", "other")),
    ):
        with pytest.raises(KeyReused, match="'k'"):
            reuse()
    assert jobs.create(JobKind.RETRAIN, {}).id != jobs.create(JobKind.RETRAIN, {}).id
    assert len(jobs.list()) == 3


def test_a_key_is_its_callers(jobs):
    keys = [Key("k", "hash", caller) for caller in ("", "one", "another")]
    made = [jobs.create(JobKind.RETRAIN, {}, key=key) for key in keys]
    assert len({job.id for job in made}) == 3
    assert [jobs.find(key) for key in keys] == made
    assert jobs.find(Key("k", "hash", "somebody else")) is None


def test_no_more_jobs_of_a_device_wait_than_may(jobs):
    for device_id in ("cpu", "cpu", "nvidia-h200", None):
        jobs.create(JobKind.SWEEP, {}, device_id=device_id, most=2)
    claim(jobs, device_id="cpu")
    with pytest.raises(QueueFull, match="2 background jobs for cpu"):  # what runs is not finished
        jobs.create(JobKind.SWEEP, {}, device_id="cpu", most=2)
    for device_id in ("nvidia-h200", None, "other"):
        jobs.create(JobKind.SWEEP, {}, device_id=device_id, most=2)
    assert len(jobs.list()) == 7


def _create_some(url: str, most: int) -> int:
    n_made = 0
    with Store(url) as store, suppress(QueueFull):
        jobs = Jobs(store)
        while True:
            jobs.create(JobKind.RETRAIN, {}, most=most)
            n_made += 1
    return n_made


def test_not_even_processes_that_submit_at_once_make_more(database_url, jobs, processes):
    for most in range(10, 40, 10):
        list(processes.map(_create_some, [database_url] * 4, [most] * 4))
        assert len(jobs.list()) == most


def test_of_finished_jobs_the_last_are_kept_and_of_others_all(jobs, monkeypatch):
    monkeypatch.setattr("conv_advisor.app.jobs.table.FINISHED_KEPT", 3)
    slow = jobs.create(JobKind.RETRAIN, {}, device_id="cpu")
    held = claim(jobs, device_id="cpu")
    key = Key("k", "hash")
    finished = [jobs.cancel(jobs.create(JobKind.SWEEP, {}, key=key if number == 0 else None).id) for number in range(5)]
    waiting = jobs.create(JobKind.SWEEP, {})
    assert [job.id for job in jobs.list()] == [waiting.id, *(job.id for job in finished[:1:-1]), slow.id]
    assert jobs.find(key) is None
    jobs.succeed(held, {})
    jobs.create(JobKind.SWEEP, {})
    assert jobs.get(slow.id).state is JobState.SUCCEEDED, "it was submitted first, and has just finished"
    with pytest.raises(UnknownJob):
        jobs.get(finished[2].id)
    assert jobs.get(finished[3].id) == finished[3]
    assert jobs.get(waiting.id).state is JobState.QUEUED


def test_every_change_has_a_revision_of_its_own(jobs, store):
    job = jobs.create(JobKind.RETRAIN, {})
    seen = [job.revision]
    held = claim(jobs)
    for change in (
        lambda: jobs.note_progress(held, 0.5, "half"),
        lambda: jobs.release(held),
        lambda: claim(jobs),
        lambda: jobs.cancel(job.id),
    ):
        change()
        seen.append(jobs.get(job.id).revision)
    assert seen == sorted(set(seen))
    assert jobs.renew(held, 5) is False
    assert jobs.cancel(job.id).revision == seen[-1]


def _take_all(url: str, n_jobs: int) -> list[str]:
    taken = []
    with Store(url) as store:
        jobs = Jobs(store)
        while sum(job.state.is_final for job in jobs.list()) < n_jobs:
            job = claim(jobs)
            if job:
                taken.append(job.id)
                jobs.succeed(job, {})
    return taken


def test_processes_share_the_jobs_and_none_gets_what_another_has(database_url, jobs, processes):
    ids = [jobs.create(JobKind.RETRAIN, {}).id for _ in range(60)]
    taken = [each.result() for each in [processes.submit(_take_all, database_url, 60) for _ in range(3)]]
    assert sorted(job_id for part in taken for job_id in part) == sorted(ids)
    assert all(job.attempt == 1 for job in jobs.list())


def _create(url: str, name: str) -> str:
    with Store(url) as store:
        return Jobs(store).create(JobKind.RETRAIN, {}, key=Key(name, "hash")).id


def test_processes_that_send_the_same_key_at_once_get_the_same_job(database_url, jobs, processes):
    for name in ("a", "b", "c", "d"):
        assert len({each.result() for each in [processes.submit(_create, database_url, name) for _ in range(8)]}) == 1
    assert len(jobs.list()) == 4


def test_a_database_that_cannot_be_written_is_a_store_error(jobs, store):
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE jobs")
    with pytest.raises(StoreError):
        jobs.create(JobKind.RETRAIN, {})


def test_a_job_runs_and_tells_when_it_is_done(jobs):
    finished = []
    with running(jobs, fakes.job_done, on_finished=finished.append) as runner:
        job = ended(jobs, submit(jobs, runner, {"device": "cpu"}))
    assert (job.state, job.progress, job.message) == (JobState.SUCCEEDED, 1.0, "done")
    assert job.result == {"request": {"device": "cpu"}}
    assert job.created_at <= job.started_at <= job.finished_at
    assert finished == [job]


def test_a_failed_job_keeps_its_error(jobs):
    with running(jobs, fakes.job_that_fails) as runner:
        job = ended(jobs, submit(jobs, runner, {}))
    assert job.state is JobState.FAILED
    assert job.error == {
        "type": "not-enough-data",
        "title": "Not enough data",
        "detail": "3 measurements; at least 100 are needed",
    }


def test_an_overrun_fails_the_job_and_the_next_one_runs(jobs, tmp_path):
    with running(jobs, fakes.job_once_interrupted) as runner:
        first = submit(jobs, runner, {"path": str(tmp_path / "pid"), "deadline_s": 2})
        second = submit(jobs, runner, {"path": os.devnull})
        assert ended(jobs, first).error["type"] == "deadline-exceeded"
        assert ended(jobs, second).state is JobState.SUCCEEDED


def test_a_worker_killed_from_outside_costs_attempts_but_never_the_job(jobs, tmp_path):
    n_kills = MAX_ATTEMPTS + 1
    with running(jobs, fakes.job_once_interrupted) as runner:
        job = submit(jobs, runner, {"path": str(tmp_path / "pid")})
        for number in range(n_kills):
            worker = read_pid(tmp_path / "pid")
            if number < n_kills - 1:
                (tmp_path / "pid").unlink()
            os.kill(worker, signal.SIGKILL)
        job = ended(jobs, job)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, n_kills + 1)


def test_a_job_that_always_kills_its_worker_is_given_up(jobs):
    with running(jobs, fakes.job_that_dies) as runner:
        job = ended(jobs, submit(jobs, runner, {}))
    assert (job.state, job.attempt) == (JobState.FAILED, MAX_ATTEMPTS)
    assert "exit status 9" in job.error["detail"]


def test_a_running_job_can_be_cancelled(jobs, tmp_path):
    with running(jobs, fakes.job_once_interrupted) as runner:
        job = submit(jobs, runner, {"path": str(tmp_path / "pid")})
        read_pid(tmp_path / "pid")
        assert cancel(jobs, runner, job).state is JobState.CANCELLED
        following = submit(jobs, runner, {"path": str(tmp_path / "pid")})
        assert ended(jobs, following).state is JobState.SUCCEEDED
    assert jobs.get(job.id).state is JobState.CANCELLED


def test_a_queued_job_can_be_cancelled_and_never_runs(jobs, tmp_path):
    job = jobs.create(JobKind.RETRAIN, {"path": str(tmp_path / "pid")})
    jobs.cancel(job.id)
    with running(jobs, fakes.job_once_interrupted) as runner:
        assert ended(jobs, submit(jobs, runner, {"path": "/dev/null"})).state is JobState.SUCCEEDED
    assert not (tmp_path / "pid").exists()


def test_a_stopped_service_leaves_its_job_to_the_next(jobs, tmp_path):
    with running(jobs, fakes.job_once_interrupted) as runner:
        job = submit(jobs, runner, {"path": str(tmp_path / "pid")})
        read_pid(tmp_path / "pid")
    assert jobs.get(job.id).state is JobState.QUEUED
    with running(jobs, fakes.job_once_interrupted):
        assert ended(jobs, job).state is JobState.SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [0, 3600])
def test_a_service_killed_during_a_job_loses_nothing_and_leaves_nothing_stuck(
    jobs, store, database_url, tmp_path, ahead_s
):
    service = subprocess.Popen([sys.executable, "-c", SERVICE, database_url, str(tmp_path / "pid")])
    try:
        worker = read_pid(tmp_path / "pid")
    finally:
        service.kill()
        service.wait()
    (job,) = jobs.list()
    assert job.state is JobState.RUNNING
    set_ahead(store, ahead_s)
    with running(jobs, fakes.job_once_interrupted):
        job = ended(jobs, job)
    assert (job.state, job.attempt, job.result) == (JobState.SUCCEEDED, 2, {"done": True})
    assert not is_running(worker)


SERVICE = """
import sys, time
from conv_advisor.app.workers.engine import NO_DEVICE, Engine
from conv_advisor.app.jobs.job import JobKind
from conv_advisor.app.jobs.table import Jobs
from conv_advisor.app.jobs.runner import Done, JobRunner
from conv_advisor.data.store import Store
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.registry.shared import SharedModels
from tests import fakes
from tests.models import hand_made

jobs = Jobs(Store(sys.argv[1]))
engine, task = Engine(NO_DEVICE), fakes.job_once_interrupted
work = lambda held: Done(held.run(engine, task, held.job.request, deadline_s=60))
JobRunner(jobs, {JobKind.RETRAIN: work}, lease_s=1.0).start()
jobs.create(JobKind.RETRAIN, {"path": sys.argv[2]})
time.sleep(60)
"""


def test_a_job_that_another_process_cancels_is_stopped(jobs, store, tmp_path):
    with running(jobs, fakes.job_once_interrupted, lease_s=3.0) as runner:
        job = submit(jobs, runner, {"path": str(tmp_path / "pid")})
        worker = read_pid(tmp_path / "pid")
        Jobs(store).cancel(job.id)  # the runner is not told
        assert eventually(lambda: not is_running(worker))
    assert jobs.get(job.id).state is JobState.CANCELLED


def test_a_long_job_is_not_taken_by_another_runner(jobs):
    lease_s = 5.0  # in which a busy machine renews it
    with (
        running(jobs, fakes.job_of_seconds, lease_s=lease_s) as first,
        running(jobs, fakes.job_of_seconds, lease_s=lease_s),
    ):
        job = ended(jobs, submit(jobs, first, {"seconds": 1.5 * lease_s}))
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


def test_a_runner_that_loses_the_database_stops_its_job_before_another_takes_it(jobs, store, tmp_path, monkeypatch):
    renewed, renew = [], jobs.renew

    def fail(_job, _lease_s):
        renewed.append(1)
        raise StoreError("the database is gone")

    with running(jobs, fakes.job_once_interrupted, lease_s=5.0) as runner:  # one try would not do
        monkeypatch.setattr(jobs, "renew", fail)
        job = submit(jobs, runner, {"path": str(tmp_path / "pid")})
        worker = read_pid(tmp_path / "pid")
        assert eventually(lambda: not is_running(worker))
        assert len(renewed) > 1
        monkeypatch.setattr(jobs, "renew", renew)  # else every attempt has but a second, which a busy machine takes
        assert ended(jobs, job).attempt >= 2


def test_work_that_fails_in_a_way_nobody_foresaw_fails_its_job_and_the_next_one_runs(jobs):
    outcomes = iter([ZeroDivisionError("by zero"), Done({"fine": True})])

    def work(_held):
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    runner = JobRunner(jobs, {JobKind.SWEEP: work})
    runner.start()
    first, second = jobs.create(JobKind.SWEEP, {}), jobs.create(JobKind.SWEEP, {})
    runner.wake()
    assert "ZeroDivisionError" in ended(jobs, first).error["detail"]
    assert ended(jobs, second).result == {"fine": True}
    runner.close()


def test_what_holds_jobs_up_is_logged_once_until_it_is_over(jobs, monkeypatch, caplog):
    claim, n_tried = jobs.claim, []

    def fail(*_arguments, **_options):
        n_tried.append(1)
        raise StoreError("the disk is full")

    caplog.set_level("INFO", "conv_advisor.app.jobs.runner")
    monkeypatch.setattr(jobs, "claim", fail)
    runner = JobRunner(jobs, {JobKind.SWEEP: lambda _held: Done({})})
    runner.start()

    def has_tried_again() -> bool:
        runner.wake()
        return len(n_tried) > 3

    assert eventually(has_tried_again)
    monkeypatch.setattr(jobs, "claim", claim)
    assert ended(jobs, jobs.create(JobKind.SWEEP, {})).result == {}
    runner.close()
    told = [record.getMessage() for record in caplog.records if record.name == "conv_advisor.app.jobs.runner"]
    assert told == ["jobs are held up: the disk is full", "jobs go on"]


def test_progress_that_cannot_be_noted_is_logged_once_until_it_can(jobs, monkeypatch, caplog):
    monkeypatch.setattr("conv_advisor.app.jobs.runner._PROGRESS_EVERY_S", 0.0)
    jobs.create(JobKind.RETRAIN, {})
    held, note_progress = Held(jobs, claim(jobs)), jobs.note_progress

    def fail(*_):
        raise StoreError("the disk is full")

    caplog.set_level("INFO")
    with Engine(NO_DEVICE) as engine:
        for write in (fail, fail, note_progress, fail):
            monkeypatch.setattr(jobs, "note_progress", write)
            assert held.run(engine, fakes.count_to, 3, deadline_s=300) == 3
    told = [record.getMessage() for record in caplog.records if "progress" in record.getMessage()]
    assert told == [f"progress of job {held.job.id} cannot be noted: the disk is full"] * 2
    assert not any(record.exc_info for record in caplog.records)


def test_a_job_whose_lease_could_not_be_renewed_says_so(jobs, monkeypatch):
    renew = jobs.renew

    def fail(_job, _lease_s):
        raise StoreError("the disk is full")

    def work(held) -> Done:
        if held.job.attempt == 1:
            held.stopping.wait(60)
            monkeypatch.setattr(jobs, "renew", renew)
            held.check()
        return Done({})

    monkeypatch.setattr(jobs, "renew", fail)
    runner = JobRunner(jobs, {JobKind.RETRAIN: work}, lease_s=SHORT_S)
    runner.start()
    job = ended(jobs, submit(jobs, runner, {}))
    runner.close()
    told = "attempt 1 was interrupted: its lease could not be renewed for 1 s: the disk is full"
    assert (job.attempt, job.message) == (2, told)


def test_interrupting_names_its_reason(jobs):
    jobs.create(JobKind.RETRAIN, {})
    job = claim(jobs)
    jobs.interrupt(job, WorkerDied("exit status 1"))
    assert jobs.get(job.id).message == "attempt 1 was interrupted: exit status 1"


def test_a_retraining_has_ended_for_whoever_asks_once_its_tree_is_in_use_here(store, jobs, tmp_path):
    registry, tree = Registry(tmp_path, shipped=tmp_path / "none"), hand_made.model()
    models = SharedModels(registry, store.engine)
    told = ToldJobs(store, models)
    jobs.create(JobKind.RETRAIN, {})
    held = claim(jobs)
    with pytest.raises(UnknownDevice):
        registry.active(tree.device.id)
    jobs.succeed(held, {}, partial(models.keep, model=tree, in_charge=True))  # and nothing that follows it has run yet
    assert told.get(held.id).state is JobState.SUCCEEDED
    assert registry.active(tree.device.id).id == tree.id


def test_a_list_of_jobs_is_as_true(store, jobs, tmp_path):
    registry, tree = Registry(tmp_path, shipped=tmp_path / "none"), hand_made.model()
    models = SharedModels(registry, store.engine)
    jobs.create(JobKind.RETRAIN, {})
    held = claim(jobs)
    jobs.succeed(held, {}, partial(models.keep, model=tree, in_charge=True))
    assert [job.state for job in ToldJobs(store, models).list()] == [JobState.SUCCEEDED]
    assert registry.active(tree.device.id).id == tree.id


def test_a_retraining_whose_tree_cannot_be_had_here_is_told_all_the_same(store, jobs, tmp_path):
    (tmp_path / "models").write_text("no folder")
    models = SharedModels(Registry(tmp_path, shipped=tmp_path / "none"), store.engine)
    jobs.create(JobKind.RETRAIN, {})
    held = claim(jobs)
    jobs.succeed(held, {}, partial(models.keep, model=hand_made.model(), in_charge=True))
    assert ToldJobs(store, models).get(held.id).state is JobState.SUCCEEDED
