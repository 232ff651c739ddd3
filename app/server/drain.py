"""uvicorn with a shutdown that drops no request: it stops accepting, and answers every accepted request."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from conv_advisor.app.server.patience import Patience, most_connections
from conv_advisor.app.server.protocol import Protocol

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

LAST_REQUESTS_S: Final = 1.0
"""How long an idle connection may still send a request, which is answered as the connection's last."""
_LEAST_S: Final = 0.1
"""Least wait for connections that begin; from then to `LAST_REQUESTS_S` the server waits while any are open."""
LAST_WORK_S: Final = 5.0
"""How long work may go on after that; unfinished work is then answered with 503."""
HANDSHAKE_S: Final = 5.0
"""Time limit of the TLS handshake: `Patience` does not know a connection before."""
_LAST_ANSWERS_S: Final = 3.0
"""Time to send those answers; all together less than the ten seconds that container engines wait."""
_LOOK_AGAIN_S: Final = 0.01
_ALLOCATIONS: Final = 20_000
"""Allocations between two garbage collections: a list of layers makes thousands of objects, none in a cycle."""

_SO_ATTACH_FILTER: Final = 26
_SYN: Final = 0x02
_LOAD_FLAGS, _IF_SET, _RETURN = 0x30, 0x45, 0x06
_DROP, _KEEP = 0, 0xFFFFFFFF


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_void_p))


class Server(uvicorn.Server):
    """uvicorn with a shutdown that closes no socket to which a client may just have written.

    Parameters
    ----------
    config : uvicorn.Config
    on_stop : callable ()
        Called when the shutdown begins: the service is no longer ready.
    on_late : callable ()
        Called `LAST_WORK_S` later, on a thread: it gives up all running work, whose answers say so.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None], on_late: Callable[[], None]) -> None:
        super().__init__(config)
        self.server_state = self._patience = Patience(most_connections())
        self._on_stop = on_stop
        self._on_late = on_late

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and exempt the present objects from garbage collection, which takes 50 ms at a time."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        try:
            self.servers = [await self._listen()]
        except OSError as error:
            log.error("%s", self._why_not_listening(error))  # noqa: TRY400 - it says all: no traceback
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        self._log_started_message(self.servers[0].sockets)
        self.started = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS)

    async def _listen(self) -> asyncio.Server:
        """Listen as uvicorn does, but with `HANDSHAKE_S` for the TLS handshake instead of a minute."""
        config, loop = self.config, asyncio.get_running_loop()
        protocol: Any = config.http_protocol_class
        make = partial(protocol, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        tls: dict[str, Any] = {"ssl": config.ssl, "ssl_handshake_timeout": HANDSHAKE_S} if config.ssl else {}
        return await loop.create_server(make, config.host, config.port, backlog=config.backlog, **tls)

    def _why_not_listening(self, error: OSError) -> str:
        if error.errno != errno.EADDRINUSE:
            return str(error)
        taken = f"port {self.config.port} of {self.config.host} is taken"
        return f"{taken}: --port, or CONV_ADVISOR_PORT, names another, and 0 takes any that is free"

    async def on_tick(self, counter: int) -> bool:
        """Once a second, close connections whose clients took too long; uvicorn ticks ten times a second."""
        if counter % 10 == 0:
            self._patience.give_up()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer every accepted request, within `LAST_REQUESTS_S`, `LAST_WORK_S` and a little more."""
        self._on_stop()
        for listener in [*(sockets or []), *(opened for server in self.servers for opened in server.sockets)]:
            refuse_new(listener.fileno())
        self._announce_end()
        await asyncio.sleep(_LEAST_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_REQUESTS_S - _LEAST_S):
                while self.server_state.connections:
                    await asyncio.sleep(_LOOK_AGAIN_S)
        late = asyncio.create_task(self._give_up_late())
        await super().shutdown(sockets)
        late.cancel()

    def _announce_end(self) -> None:
        """Make every answer that has not begun close its connection."""
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        for connection in self.server_state.connections:
            cycle: Any = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_started:
                cycle.keep_alive = False

    async def _give_up_late(self) -> None:
        await asyncio.sleep(LAST_WORK_S)
        log.warning("%d requests are not answered yet; their work is given up", len(self.server_state.tasks))
        await asyncio.to_thread(self._on_late)


def run(app: FastAPI, **options: Any) -> None:
    """Serve an application until a signal ends it, as `uvicorn.run` does.

    Parameters
    ----------
    app : FastAPI
        As `app.main.create_app` makes it.
    **options
        Options of `uvicorn.Config`.
    """
    grace_s = int(LAST_WORK_S + _LAST_ANSWERS_S)
    config = uvicorn.Config(app, http=Protocol, ws="none", timeout_graceful_shutdown=grace_s, **options)

    def on_stop() -> None:  # the service exists once the server has started
        app.state.service.stop_soon()

    def on_late() -> None:
        app.state.service.give_up()

    server = Server(config, on_stop, on_late)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def refuse_new(descriptor: int) -> bool:
    """Let no new connection begin on a listening TCP socket; those that have begun can still be accepted.

    Returns
    -------
    bool
        Whether the system supports this: only Linux. Elsewhere a connection of the last moment may be reset.

    Notes
    -----
    Closing the socket would reset connections that are established but not accepted yet, with the requests in them. So
    a socket filter drops only the first packet, SYN, of new ones: their clients retry, and find the socket closed.
    Source: Linux, Documentation/networking/filter.rst.
    """
    if sys.platform != "linux":
        return False
    instructions = (_Instruction * 4)(
        _Instruction(_LOAD_FLAGS, 0, 0, 13),  # offset in the TCP header
        _Instruction(_IF_SET, 0, 1, _SYN),
        _Instruction(_RETURN, 0, 0, _DROP),
        _Instruction(_RETURN, 0, 0, _KEEP),
    )
    program = _Program(len(instructions), ctypes.addressof(instructions))
    try:
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            duplicate.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    except OSError as error:
        log.info("connections that begin now may be reset: %s", error)
        return False
    return True
