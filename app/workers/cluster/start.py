"""Starts the processes of a cluster: its scheduler, and workers that own a device each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from conv_advisor.app.workers.cluster.link import Link
from conv_advisor.app.workers.engine import DEFAULT_OPENER
from conv_advisor.data.errors import WorkerError

if TYPE_CHECKING:
    from distributed import Nanny

    from conv_advisor.app.workers.cluster.node import OwnDevice

_LOOPBACK: Final = "127.0.0.1:0"
"""Address of Dask's own HTTP pages, on loopback: they have no authentication."""
_JOIN_TIMEOUT_S: Final = 30.0

CONFIG: Final[dict[str, Any]] = {
    "distributed.scheduler.allowed-failures": 0,  # a task that killed its worker is not given to another
    "distributed.scheduler.worker-ttl": "60 s",  # a worker that hangs counts as gone
    "distributed.scheduler.work-stealing": False,  # the coordinator places jobs
    "distributed.worker.profile.enabled": False,  # it stops all threads every 10 ms
    # Dask's default is one BLAS thread per worker: variants that use all cores would be measured on one.
    "distributed.nanny.pre-spawn-environ": {},
}


def serve_scheduler(link: Link, on_ready: Callable[[str], None]) -> None:
    """Run a scheduler until a signal to end comes.

    Parameters
    ----------
    link : Link
        Its address is the one to listen on; port 0: any free one.
    on_ready : callable (address)

    Raises
    ------
    WorkerError
        It cannot listen there.
    """
    asyncio.run(_serve_scheduler(link, on_ready))


def serve_workers(
    link: Link,
    device_ids: Sequence[str],
    on_ready: Callable[[str], None],
    *,
    host: str | None = None,
    start_timeout_s: float = 60.0,
    opener: str = DEFAULT_OPENER,
) -> None:
    """Run one worker per device until a signal to end comes, or the scheduler is gone.

    Parameters
    ----------
    link : Link
    device_ids : sequence of str
    on_ready : callable (address)
        Called once per worker.
    host : str, optional
        Address to listen on; without it, the one from which the scheduler is reached.
    start_timeout_s : float
        Longest start of the child that owns the device.
    opener : str
        See `app.workers.engine.Engine`.

    Raises
    ------
    WorkerError
        The scheduler cannot be reached, or is gone.
    """
    asyncio.run(_serve_workers(link, device_ids, on_ready, host, start_timeout_s, opener))


async def _serve_scheduler(link: Link, on_ready: Callable[[str], None]) -> None:
    import dask
    from distributed import Scheduler

    dask.config.set(CONFIG)
    where = {"host": link.host, "port": link.port, "protocol": link.protocol, "dashboard_address": _LOOPBACK}
    try:
        scheduler = await Scheduler(security=link.security(), **where)
    except (OSError, RuntimeError) as error:
        raise WorkerError(f"no scheduler can listen at {link.address}: {error}") from error
    async with scheduler:
        on_ready(scheduler.address)
        await _first(_signal(), scheduler.finished())


async def _serve_workers(
    link: Link,
    device_ids: Sequence[str],
    on_ready: Callable[[str], None],
    host: str | None,
    start_timeout_s: float,
    opener: str,
) -> None:
    import dask

    from conv_advisor.app.workers.cluster.node import OwnDevice

    dask.config.set(CONFIG)
    async with AsyncExitStack() as stack:
        nannies = []
        for device_id in device_ids:
            try:
                nanny = _nanny(link, OwnDevice(device_id, start_timeout_s, opener), device_id, host)
                nannies.append(await stack.enter_async_context(nanny))
            except Exception as error:  # of Dask, of TLS, of the network
                raise WorkerError(f"no worker can join {link.address}: {error or type(error).__name__}") from error
            on_ready(str(nanny.worker_address))
        if await _first(_signal(), *(nanny.finished() for nanny in nannies)):
            raise WorkerError(f"the scheduler at {link.address} is gone")


def _nanny(link: Link, plugin: OwnDevice, device_id: str, host: str | None) -> Nanny:
    """A process that keeps a Dask worker running: one that was killed is started anew."""
    from distributed import Nanny

    return Nanny(
        link.address,
        nthreads=1,
        resources={"CPU" if device_id == "cpu" else "GPU": 1},
        memory_limit=0,  # no limit: the Dask worker holds little, and the child's memory is not its concern
        plugins=(plugin,),
        security=link.security(),
        protocol=link.protocol,
        host=host,
        dashboard_address=_LOOPBACK,
        death_timeout=_JOIN_TIMEOUT_S,
    )


async def _first(*awaited: Awaitable[Any]) -> int:
    """Wait for the first to finish, and return its index."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaited]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return min(tasks.index(task) for task in done)


async def _signal() -> None:
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    await signalled.wait()
