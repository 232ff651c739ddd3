"""Turns a request into a job: a new one in the queue, or the one that the same request queued before."""

from __future__ import annotations

import asyncio

from conv_advisor.app.jobs.job import Job, JobKind, Key
from conv_advisor.app.jobs.requests import AnyJob, CalibrateJob, RetrainJob, kept_request, key_of
from conv_advisor.app.service.service import Service
from conv_advisor.app.sweep.calibrate import check_is_gpu
from conv_advisor.data.extras import require
from conv_advisor.data.measurement import Device
from conv_advisor.data.shipped import problem_of


async def submit(service: Service, job_request: AnyJob, key: str | None, caller: str) -> Job:
    """Queue a job.

    Parameters
    ----------
    service : Service
    job_request : RetrainJob, SweepJob, MeasureJob, CalibrateJob or RefreshJob
    key : str or None
        The caller's name for this request: sent again, it gives the same job.
    caller : str
        Name of the caller's token; empty where there are no tokens.

    Raises
    ------
    InvalidInput, KeyReused, NotEnoughData, QueueFull, StoreError
    UnknownDevice, UnknownNetwork, UnknownVariant, WorkerError
    NotInstalled
        This installation lacks packages that the job needs.
    """
    job_key = key_of(key, job_request, caller)
    job = await asyncio.to_thread(service.jobs.find, job_key) if job_key else None
    if job is not None:
        return job
    if isinstance(job_request, RetrainJob):
        require("sklearn")
    device = await _device_of(service, job_request)
    if isinstance(job_request, RetrainJob):
        await asyncio.to_thread(_check_enough, service, device.id)
    if isinstance(job_request, CalibrateJob):
        check_is_gpu(device)
    return await service.writing.run(_create, service, job_request, device, job_key)


async def _device_of(service: Service, job_request: AnyJob) -> Device:
    """The device of a job: the named one, else the default one to retrain, or this server's own to measure.

    Raises
    ------
    UnknownDevice, WorkerError
    """
    if job_request.device is None and not isinstance(job_request, RetrainJob):
        return (await service.worker.opened())[1]
    return await asyncio.to_thread(lambda: service.known.find_met(service.known.asked_id(job_request.device)))


def _check_enough(service: Service, device_id: str) -> None:
    from conv_advisor.models.training.enough import check_enough  # imported only to train

    check_enough(map(problem_of, service.records.measured_keys(device_id)), device_id)


def _create(service: Service, job_request: AnyJob, device: Device, key: Key | None) -> Job:
    runs_on = None if isinstance(job_request, RetrainJob) else device.id
    request = kept_request(job_request, device.id)
    return service.background.submit(JobKind(job_request.kind), request, device_id=runs_on, key=key)
