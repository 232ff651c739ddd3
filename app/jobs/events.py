"""A job as server-sent events: what it is now, then each time it has changed, until it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.types import Message, Receive, Scope, Send

from conv_advisor.app.jobs.answers import job_answer
from conv_advisor.app.jobs.job import Job
from conv_advisor.app.jobs.table import Jobs
from conv_advisor.data.errors import ConvAdvisorError, QueueFull

log = logging.getLogger(__name__)

MAX_STREAMS: Final = 100
"""At once, in one process."""
MAX_OF_CALLER: Final = 25
"""Those of one token among them."""
LONGEST_S: Final = 3600.0
"""A stream that has lasted so long is ended; whoever still listens comes back with the last event's id."""
LOOK_EVERY_S: Final = 0.25
SEND_TIMEOUT_S: Final = 30.0
_KEEP_ALIVE_S: Final = 15.0
_RETRY_MS: Final = 1000


class EventStream(EventSourceResponse):
    """Events as they are written, to a client that reads them: one that takes none for long is given up.

    Parameters
    ----------
    content : async iterator of bytes
    on_end : callable ()
        Called once it is over, even if it has not begun.
    """

    def __init__(self, content: AsyncIterator[bytes], on_end: Callable[[], object] = lambda: None) -> None:
        super().__init__(content, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = False

        async def send_in_time(message: Message) -> None:
            nonlocal is_open
            is_open = message.get("more_body", message["type"] == "http.response.start")
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
            if is_open:  # its client has hung up, as listeners do: that is no response which broke off
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("%s: its client has read nothing for %g s", scope["path"], SEND_TIMEOUT_S)
        finally:
            self._on_end()


class Streams:
    """The streams that are open in this process.

    Notes
    -----
    An event is the whole job, its id the job's revision. So nothing is kept for a listener: one that is slow, or away,
    gets the job as it is when it is ready to, without what was in between, and never misses the end.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._is_ending = False

    def end(self) -> None:
        """Let every stream end within `LOOK_EVERY_S`: its listener comes back, to the server that follows this one."""
        self._is_ending = True

    def open(
        self, jobs: Jobs, job: Job, seen: int, caller: str, is_let_in: Callable[[], bool] = lambda: True
    ) -> EventStream:
        """Begin a stream, which counts from now on: many that are asked for at once are not more than may be open.

        Parameters
        ----------
        jobs : Jobs
        job : Job
            As it is now.
        seen : int
            The revision that the listener has seen last; -1: none.
        caller : str
            Name of the listener's token; empty where there are no tokens: then there is one caller, who may have all.
        is_let_in : callable () -> bool
            Whether the listener's token still counts; the stream ends where it does not.

        Raises
        ------
        QueueFull
        """
        if self._open.total() >= MAX_STREAMS:
            raise QueueFull(f"{self._open.total()} event streams are open already")
        if caller and self._open[caller] >= MAX_OF_CALLER:
            raise QueueFull(f"{self._open[caller]} event streams of the token {caller!r} are open already")
        self._open[caller] += 1
        content = events(jobs, job, seen, lambda: self._is_ending, is_let_in)
        return EventStream(content, lambda: self._close(caller))

    def _close(self, caller: str) -> None:
        self._open[caller] -= 1
        self._open += Counter()  # drops what is zero


async def events(
    jobs: Jobs,
    job: Job,
    seen: int,
    is_ending: Callable[[], bool] = lambda: False,
    is_let_in: Callable[[], bool] = lambda: True,
) -> AsyncIterator[bytes]:
    """The events of a job after the revision that was seen, until it ends; the last is then called ``end``.

    Who is not let in any more is told nothing more.
    """
    began = said_at = time.monotonic()
    yield format_sse_event(retry=_RETRY_MS)
    while is_let_in():
        if job.revision > seen:
            yield _event(job)
            seen, said_at = job.revision, time.monotonic()
        if job.state.is_final or is_ending() or time.monotonic() - began >= LONGEST_S:
            return
        if time.monotonic() - said_at >= _KEEP_ALIVE_S:
            yield KEEPALIVE_COMMENT
            said_at = time.monotonic()
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            job = await asyncio.to_thread(jobs.get, job.id)
        except ConvAdvisorError:  # the database is gone for now: the listener asks again, and is told so
            return


def _event(job: Job) -> bytes:
    name = "end" if job.state.is_final else "job"
    return format_sse_event(data_str=json.dumps(job_answer(job)), event=name, id=str(job.revision))
