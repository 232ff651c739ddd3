"""A job as server-sent events: its present state, then every change, until it ends."""

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
"""Streams at once, in one process."""
MAX_OF_CALLER: Final = 25
"""Streams at once of one token."""
LONGEST_S: Final = 3600.0
"""A stream is ended after this time; the client reconnects with the last event's id."""
LOOK_EVERY_S: Final = 0.25
SEND_TIMEOUT_S: Final = 30.0
_KEEP_ALIVE_S: Final = 15.0
_RETRY_MS: Final = 1000


class EventStream(EventSourceResponse):
    """Sends events as they are written; gives up a client that stops reading them.

    Parameters
    ----------
    content : async iterator of bytes
    on_end : callable ()
        Called once the stream is over, even if it has not begun.
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
            if is_open:  # the client has hung up, as listeners do: that is no aborted response
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("%s: its client has read nothing for %g s", scope["path"], SEND_TIMEOUT_S)
        finally:
            self._on_end()


class Streams:
    """The open streams of this process.

    Notes
    -----
    An event is the whole job, its id the job's revision. So nothing is buffered for a listener: one that is slow, or
    away, gets the present job once it is ready, without the states in between, and never misses the end.
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._is_ending = False

    def end(self) -> None:
        """End every stream within `LOOK_EVERY_S`: its listener reconnects to the server that follows this one."""
        self._is_ending = True

    def open(
        self, jobs: Jobs, job: Job, seen: int, caller: str, is_let_in: Callable[[], bool] = lambda: True
    ) -> EventStream:
        """Begin a stream. It counts from now on, so that simultaneous requests cannot exceed the limit.

        Parameters
        ----------
        jobs : Jobs
        job : Job
            The present state.
        seen : int
            The last revision that the listener has; -1: none.
        caller : str
            Name of the listener's token; empty where there are no tokens: then all listeners share the whole limit.
        is_let_in : callable () -> bool
            Whether the listener's token is still valid; the stream ends once it is not.

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
    """The events of a job after revision `seen`, until it ends; the last event is named ``end``.

    The events stop once `is_let_in` is false.
    """
    began = sent_at = time.monotonic()
    yield format_sse_event(retry=_RETRY_MS)
    while is_let_in():
        if job.revision > seen:
            yield _event(job)
            seen, sent_at = job.revision, time.monotonic()
        if job.state.is_final or is_ending() or time.monotonic() - began >= LONGEST_S:
            return
        if time.monotonic() - sent_at >= _KEEP_ALIVE_S:
            yield KEEPALIVE_COMMENT
            sent_at = time.monotonic()
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            job = await asyncio.to_thread(jobs.get, job.id)
        except ConvAdvisorError:  # the database is gone for now: the listener reconnects, and gets the error
            return


def _event(job: Job) -> bytes:
    name = "end" if job.state.is_final else "job"
    return format_sse_event(data_str=json.dumps(job_answer(job)), event=name, id=str(job.revision))
