"""The command that runs the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cluster.link import is_loopback, link_from
from app.settings import load_settings
from data.errors import InvalidInput


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.  [default: 8000]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda:0, cuda:1 ...  [default: auto]")] = None,
    home: Annotated[Path | None, typer.Option(help="Folder of what is written.  [default: var]")] = None,
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Accept a host that others can reach.")] = False,
) -> None:
    """Serve over HTTP. Every setting can also be given as CONV_ADVISOR_<NAME> in the environment."""
    settings = load_settings(host=host, port=port, device=device, home=home)
    if not allow_remote and not is_loopback(settings.host):
        raise InvalidInput(
            "host", settings.host, "a loopback address, or --allow-remote: the service asks nobody who they are"
        )
    if settings.scheduler:
        link_from(settings)  # what is wrong with it is said now, and not when the first job comes
    import logging

    from app.drain import run
    from app.main import create_app

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,  # uvicorn's loggers speak through the root's handler too
        access_log=False,  # app.access has the request's id and time beside it
        server_header=False,
    )
