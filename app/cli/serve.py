"""The command that runs the service."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Annotated

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.server.descriptors import ensure_descriptors
from conv_advisor.data.errors import InvalidInput

log = logging.getLogger(__name__)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.  [default: 8000]")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda:0, cuda:1 ...  [default: auto]")] = None,
    home: Annotated[
        Path | None, typer.Option(help="Folder for the store and trained models.  [default: the user's data folder]")
    ] = None,
) -> None:
    """Serve advice, convolutions and the page over HTTP.

    Listening beyond loopback needs tokens. Further settings are environment variables CONV_ADVISOR_<NAME>: see the
    command settings.
    """
    settings = load_settings(host=host, port=port, device=device, home=home)
    ensure_descriptors()
    _check_tls(settings.tls_certificate, settings.tls_key)
    if settings.scheduler:
        from conv_advisor.app.workers.cluster.link import link_from

        link_from(settings)  # reports a wrong setting now, not with the first job
    from conv_advisor.app.workers.opening import EarlyStart, open_engine

    opened = open_engine if settings.scheduler else EarlyStart(settings)
    from conv_advisor.app.main import create_app
    from conv_advisor.app.observe import logs
    from conv_advisor.app.server.drain import run
    from conv_advisor.app.workers.gpus import what_is_found

    app = create_app(settings, open_engine=opened)
    gc.freeze()  # imported objects stay: no collection need look at them again
    logs.configure(settings.log_level, settings.log_format)
    if sentence := what_is_found(settings.device):
        log.info(sentence)
    run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,  # uvicorn's loggers speak through the root's handler too
        access_log=False,  # app.access has the request's id and time beside it
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    """Check that the certificate and its key load: the error of OpenSSL would not name the file.

    Raises
    ------
    InvalidInput
    """
    if certificate is None:
        if key is not None:
            raise InvalidInput("tls_key", str(key), "only with tls_certificate: without it, this would be plain HTTP")
        return
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        files = f"{certificate}" if key is None else f"{certificate}, tls_key {key}"
        allowed = f"a PEM file of a certificate, and its key in it or in tls_key ({error.strerror or error})"
        raise InvalidInput("tls_certificate", files, allowed) from None
