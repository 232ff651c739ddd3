"""From what somebody asks for to the job that does it: queued, or the one that the same request has queued before."""

from __future__ import annotations

import asyncio

from conv_advisor.app.jobs.job import Job, JobKind, Key
from conv_advisor.app.jobs.requests import AnyJob, CalibrateJob, RetrainJob, kept_request, key_of
from conv_advisor.app.service.service import Service
from conv_advisor.app.sweep.calibrate import check_is_gpu
from conv_advisor.data.extras import require
from conv_advisor.data.measurement import Device
from conv_advisor.data.shipped import problem_of


async def submit(service: Service, asked: AnyJob, key: str | None, caller: str) -> Job:
    """Queue a job.

    Parameters
    ----------
    service : Service
    asked : RetrainJob, SweepJob, MeasureJob, CalibrateJob or RefreshJob
    key : str or None
        What the caller calls this request: sent again it is the same job.
    caller : str
        Name of the caller's token; empty where there are no tokens.

    Raises
    ------
    InvalidInput, KeyReused, NotEnoughData, QueueFull, StoreError
    UnknownDevice, UnknownNetwork, UnknownVariant, WorkerError
    NotInstalled
        What the job needs is left out of this installation.
    """
    known = key_of(key, asked, caller)
    job = await asyncio.to_thread(service.jobs.find, known) if known else None
    if job is not None:
        return job
    if isinstance(asked, RetrainJob):
        require("sklearn")
    device = await _device_of(service, asked)
    if isinstance(asked, RetrainJob):
        await asyncio.to_thread(_check_enough, service, device.id)
    if isinstance(asked, CalibrateJob):
        check_is_gpu(device)
    return await service.writing.run(_create, service, asked, device, known)


async def _device_of(service: Service, asked: AnyJob) -> Device:
    """The device that a job is about: the one that is named, else the usual one, or this server's own to measure on.

    Raises
    ------
    UnknownDevice, WorkerError
    """
    if asked.device is None and not isinstance(asked, RetrainJob):
        return (await service.worker.opened())[1]
    return await asyncio.to_thread(lambda: service.known.find_met(service.known.asked_id(asked.device)))


def _check_enough(service: Service, device_id: str) -> None:
    from conv_advisor.models.training.enough import check_enough  # what trains is loaded where somebody wants to train

    check_enough(map(problem_of, service.records.measured_keys(device_id)), device_id)


def _create(service: Service, asked: AnyJob, device: Device, key: Key | None) -> Job:
    runs_on = None if isinstance(asked, RetrainJob) else device.id
    request = kept_request(asked, device.id)
    return service.background.submit(JobKind(asked.kind), request, device_id=runs_on, key=key)
