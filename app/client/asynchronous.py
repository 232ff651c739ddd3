"""``conv_advisor.AsyncClient``: a server's answers in an asynchronous Python program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from typing_extensions import Unpack

from conv_advisor.app.client import calls
from conv_advisor.app.client.attempts import INCOMPLETE, Attempts, following
from conv_advisor.app.client.calls import Call, Convolved
from conv_advisor.app.client.connection import (
    DEFAULT_DEADLINE_S,
    DEFAULT_URL,
    GRACE_S,
    STREAM_SILENCE_S,
    meaning,
    one_border,
    options,
    request,
)
from conv_advisor.app.client.events import Events, ended, ignore, is_over, unended
from conv_advisor.app.client.parameters import (
    AdviceKeywords,
    AnyLayer,
    AnyModel,
    CalibrateKeywords,
    ConvolutionKeywords,
    JobsKeywords,
    LongKeywords,
    ManyKeywords,
    PlanKeywords,
    RefreshKeywords,
    RetrainKeywords,
    SweepKeywords,
    VariantsKeywords,
)
from conv_advisor.data.errors import Refused, Unreachable
from conv_advisor.data.extras import require

if TYPE_CHECKING:
    import httpx
    import numpy as np

    from conv_advisor.app.advice.answer import LayerAdvice
    from conv_advisor.app.convolve.answers import ConvolutionAnswer
    from conv_advisor.app.jobs.answers import JobAnswer, JobsAnswer
    from conv_advisor.app.plans.answers import PlanAnswer
    from conv_advisor.app.wire.answers.advice import BestAnswer
    from conv_advisor.app.wire.answers.catalogue import KnownDeviceAnswer, VariantAnswer
    from conv_advisor.app.wire.answers.models import ModelAnswer

T = TypeVar("T")


class AsyncClient:
    """A server, asked from an asynchronous Python program.

    Its methods are those of `conv_advisor.Client`, where they are described, as coroutines; `watch` is an asynchronous
    iterator.

    Parameters
    ----------
    url : str
    token : str, optional
    deadline_s : float
    transport : httpx.AsyncBaseTransport, optional

    Raises
    ------
    NotInstalled, InvalidInput

    Examples
    --------
    >>> import asyncio, conv_advisor
    >>> async def ask() -> None:
    ...     async with conv_advisor.AsyncClient("http://127.0.0.1:8000") as client:
    ...         print(await client.advise("14-1-3-256-128", dtype="float16", layout="nhwc"))
    >>> asyncio.run(ask())  # doctest: +SKIP
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        require("httpx")
        import httpx

        self.url, self.deadline_s = url, deadline_s
        self._http = httpx.AsyncClient(**options(url, token), transport=transport)

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Client.close`."""
        await self._http.aclose()

    async def ready(self, *, deadline_s: float | None = None) -> None:
        """As `Client.ready`."""
        await self._ask(calls.ready(), deadline_s)

    async def advise(self, layer: AnyLayer, **asked: Unpack[AdviceKeywords]) -> LayerAdvice:
        """As `Client.advise`."""
        return await self._ask(calls.advise(layer, asked))

    async def advise_many(self, layers: Iterable[AnyLayer], **asked: Unpack[ManyKeywords]) -> list[BestAnswer]:
        """As `Client.advise_many`."""
        return await self._ask(calls.advise_many(layers, asked))

    async def plan(
        self, model: AnyModel, *, deadline_s: float | None = None, **asked: Unpack[PlanKeywords]
    ) -> list[PlanAnswer]:
        """As `Client.plan`."""
        call = await asyncio.to_thread(calls.plan, model, asked)  # which may read a file
        return await self._ask(call, deadline_s)

    async def variants(self, layer: AnyLayer | None = None, **asked: Unpack[VariantsKeywords]) -> list[VariantAnswer]:
        """As `Client.variants`."""
        return await self._ask(calls.variants(layer, asked))

    async def devices(self) -> list[KnownDeviceAnswer]:
        """As `Client.devices`."""
        return await self._ask(calls.devices())

    async def convolve(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        *,
        deadline_s: float | None = None,
        **asked: Unpack[ConvolutionKeywords],
    ) -> Convolved:
        """As `Client.convolve`."""
        return await self._ask(calls.convolve(x, weight, asked), deadline_s)

    async def measure(
        self, layer: AnyLayer, *, deadline_s: float | None = None, **asked: Unpack[ConvolutionKeywords]
    ) -> ConvolutionAnswer:
        """As `Client.measure`."""
        return await self._ask(calls.measure(layer, asked), deadline_s)

    async def submit_sweep(self, *, key: str | None = None, **asked: Unpack[SweepKeywords]) -> JobAnswer:
        """As `Client.submit_sweep`."""
        return await self._ask(calls.submit("sweep", asked, key))

    async def submit_measure(
        self, layers: Iterable[AnyLayer], *, key: str | None = None, **asked: Unpack[LongKeywords]
    ) -> JobAnswer:
        """As `Client.submit_measure`."""
        return await self._ask(calls.submit_measure(layers, asked, key))

    async def submit_retrain(self, *, key: str | None = None, **asked: Unpack[RetrainKeywords]) -> JobAnswer:
        """As `Client.submit_retrain`."""
        return await self._ask(calls.submit("retrain", asked, key))

    async def submit_calibrate(self, *, key: str | None = None, **asked: Unpack[CalibrateKeywords]) -> JobAnswer:
        """As `Client.submit_calibrate`."""
        return await self._ask(calls.submit("calibrate", asked, key))

    async def submit_refresh(self, *, key: str | None = None, **asked: Unpack[RefreshKeywords]) -> JobAnswer:
        """As `Client.submit_refresh`."""
        return await self._ask(calls.submit("refresh", asked, key))

    async def job(self, job_id: str) -> JobAnswer:
        """As `Client.job`."""
        return await self._ask(calls.job(job_id))

    async def jobs(self, **asked: Unpack[JobsKeywords]) -> JobsAnswer:
        """As `Client.jobs`."""
        return await self._ask(calls.jobs(asked))

    async def cancel(self, job_id: str) -> JobAnswer:
        """As `Client.cancel`."""
        return await self._ask(calls.cancel(job_id))

    async def watch(self, job_id: str, *, deadline_s: float | None = None) -> AsyncIterator[JobAnswer]:
        """As `Client.watch`."""
        attempts, seen = following(deadline_s, self.deadline_s), -1
        job: JobAnswer | None = None
        while True:
            try:
                async with aclosing(self._events(job_id, seen, attempts)) as events:
                    async for job in events:
                        attempts.begin_again()
                        yield job
                        seen = job["revision"]
                        if is_over(job):
                            return
            except (Refused, Unreachable) as error:
                await asyncio.sleep(attempts.wait_s(unended(error, job)))

    async def wait(
        self, job_id: str, *, deadline_s: float | None = None, on_change: Callable[[JobAnswer], object] = ignore
    ) -> JobAnswer:
        """As `Client.wait`."""
        async for job in self.watch(job_id, deadline_s=deadline_s):
            on_change(job)
        return ended(job)

    async def models(self) -> list[ModelAnswer]:
        """As `Client.models`."""
        return await self._ask(calls.models())

    async def activate(self, device: str, model: str) -> ModelAnswer:
        """As `Client.activate`."""
        return await self._ask(calls.activate(device, model))

    async def _ask(self, call: Call[T], deadline_s: float | None = None) -> T:
        attempts = Attempts(self.deadline_s if deadline_s is None else deadline_s)
        while True:
            try:
                async with self._answer(call, attempts, attempts.left_s) as response:
                    return meaning(call, response, await _in_time(response.aread(), self.url, attempts))
            except (Refused, Unreachable) as error:
                await asyncio.sleep(attempts.wait_s(error))

    async def _events(self, job_id: str, seen: int, attempts: Attempts) -> AsyncGenerator[JobAnswer, None]:
        call, event = calls.events(job_id, seen), Events()
        async with self._answer(call, attempts, STREAM_SILENCE_S) as response:
            if response.status_code == HTTPStatus.OK:
                lines = response.aiter_lines()
                while (line := await _in_time(anext(lines, None), self.url, attempts)) is not None:
                    attempts.check(self.url)
                    attempts.hear()
                    if job := event.take(line):
                        yield job
                raise Unreachable(self.url, "the stream of events has ended before the job")
            answer = await _in_time(response.aread(), self.url, attempts)
        yield await self._ask(calls.job(job_id), min(self.deadline_s, attempts.check(self.url)))
        meaning(call, response, answer)

    @asynccontextmanager
    async def _answer(self, call: Call[Any], attempts: Attempts, silence_s: float) -> AsyncIterator[httpx.Response]:
        with one_border(self.url):
            sent = request(self._http, call, min(silence_s, attempts.left_s))
            response = await _in_time(self._http.send(sent, stream=True), self.url, attempts)
            try:
                yield response
            finally:
                await response.aclose()


async def _in_time(awaited: Awaitable[T], url: str, attempts: Attempts) -> T:
    """What is awaited, if it comes before the deadline: httpx limits each read, and not all of them together.

    Raises
    ------
    Unreachable
    """
    try:
        async with asyncio.timeout(attempts.left_s + GRACE_S):
            return await awaited
    except TimeoutError:
        raise Unreachable(url, INCOMPLETE) from None
