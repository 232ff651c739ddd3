"""Commands that run the parts of a cluster: its scheduler, and workers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import split_words

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings

SchedulerOption = Annotated[
    str | None,
    typer.Option(help="tls://host:port or tcp://host:port of a Dask scheduler.  [default: CONV_ADVISOR_SCHEDULER]"),
]


def scheduler(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8786,
) -> None:
    """Run the scheduler of a cluster.

    It uses TLS if CONV_ADVISOR_SCHEDULER_{CA,CERT,KEY}_FILE are set.
    """
    from conv_advisor.app.workers.cluster.link import link_from
    from conv_advisor.app.workers.cluster.start import serve_scheduler

    protocol = "tls" if load_settings().scheduler_cert_file else "tcp"
    settings = load_settings(scheduler=f"{protocol}://{f'[{host}]' if ':' in host else host}:{port}")
    serve_scheduler(link_from(settings), _say)


def worker(
    scheduler: SchedulerOption = None,
    device: Annotated[
        str,
        typer.Option(help="cpu, cuda:0 ...; several, separated by commas, get a worker each; auto: cuda:0, else cpu."),
    ] = "auto",
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; without it, the one from which the scheduler is reached.")
    ] = None,
) -> None:
    """Run workers of a cluster, one per device.

    Every machine that has GPUs runs this.
    """
    from conv_advisor.app.workers.cluster.link import link_from
    from conv_advisor.app.workers.cluster.start import serve_workers

    settings = load_settings(scheduler=scheduler)
    link = link_from(settings)
    devices = resolve_devices(device, settings)
    serve_workers(link, devices, _say, host=host, start_timeout_s=settings.start_timeout_s)


def resolve_devices(text: str, settings: Settings) -> list[str]:
    """The device ids that an option lists.

    Raises
    ------
    InvalidInput
    """
    from conv_advisor.app.workers.engine import resolve_device

    devices = [load_settings(device=word).device for word in split_words("device", text)]
    device_ids = [resolve_device(device, start_timeout_s=settings.start_timeout_s) for device in devices]
    return list(dict.fromkeys(device_ids))


def _say(address: Any) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
