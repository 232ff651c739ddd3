"""The state of the service that every page shows: its worker, and the devices with advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conv_advisor.app.service.service import Service
from conv_advisor.data.errors import NoAdvice, UnknownDevice
from conv_advisor.data.gpus import gpus


@dataclass(frozen=True)
class Status:
    """What the service can do now."""

    device_name: str
    device_id: str
    missing: Mapping[str, str]


def status_view(service: Service) -> Status:
    """The worker as the header shows it, and what the service cannot do now."""
    device = service.worker.device
    return Status(device.name if device else "", device.id if device else "", service.shortcomings())


def askable_ids(service: Service) -> list[str]:
    """The devices with advice: those of `device_ids`, then the GPUs that borrow a tree."""
    known = device_ids(service)
    return [*known, *(device_id for device_id in gpus() if device_id not in known)]


def device_ids(service: Service) -> list[str]:
    """The devices that were measured, have a tree, or are the worker's; the default one first."""
    known = list(service.known.all())
    try:
        default = service.known.asked_id()
    except (NoAdvice, UnknownDevice):
        return known
    return sorted(known, key=lambda device_id: device_id != default)
