"""``conv_advisor.Client``: a server's answers in a Python program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from typing_extensions import Unpack

from conv_advisor.app.client import calls
from conv_advisor.app.client.attempts import Attempts, following
from conv_advisor.app.client.calls import Call, Convolved
from conv_advisor.app.client.connection import (
    DEFAULT_DEADLINE_S,
    DEFAULT_URL,
    STREAM_SILENCE_S,
    cut_off,
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


class Client:
    """A connection to a server for a Python program; safe to share between threads.

    A request to a server that is busy, starting or not there is sent again until its deadline, after the time that the
    server asks for; jobs carry an idempotency key, so that none starts twice. A convolution that is sent again is
    computed again. As a context manager the client closes its connections at the end.

    Parameters
    ----------
    url : str
        Where the server listens.
    token : str, optional
        What ``conv-advisor token`` printed.
    deadline_s : float
        How long a request may take, with all its attempts.
    transport : httpx.BaseTransport, optional
        Replaces the HTTP transport: for proxies, certificates or tests.

    Raises
    ------
    NotInstalled
        The extra ``client`` is not installed.
    InvalidInput
        The address or the token is not valid.

    Notes
    -----
    Every method raises `Refused` if the server answers with an error, and `Unreachable` if it does not answer in time.

    Examples
    --------
    >>> import conv_advisor
    >>> with conv_advisor.Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     print(client.advise("14-1-3-256-128", dtype="float16", layout="nhwc"))
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        require("httpx")
        import httpx

        self.url, self.deadline_s = url, deadline_s
        self._http = httpx.Client(**options(url, token), transport=transport)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ready(self, *, deadline_s: float | None = None) -> None:
        """Wait until the server can answer every kind of request; `Refused` says what is missing if it never can."""
        self._ask(calls.ready(), deadline_s)

    def advise(self, layer: AnyLayer, **asked: Unpack[AdviceKeywords]) -> LayerAdvice:
        """Which variant is fastest for a layer, how fast, how sure, and why the others are out.

        Parameters
        ----------
        layer : str or ConvProblem
        **asked
            `AdviceKeywords`: fields of the layer beside its short form, the device, and limits.

        Returns
        -------
        advice : LayerAdvice
            As `conv_advisor.advise` returns it.
        """
        return self._ask(calls.advise(layer, asked))

    def advise_many(self, layers: Iterable[AnyLayer], **asked: Unpack[ManyKeywords]) -> list[BestAnswer]:
        """The best variant for each of up to 10,000 layers; a layer without advice gives the reason as ``error``.

        Parameters
        ----------
        layers : iterable of str or ConvProblem
        **asked
            `ManyKeywords`; those of a layer hold for the layers that are given by name.
        """
        return self._ask(calls.advise_many(layers, asked))

    def plan(
        self, model: AnyModel, *, deadline_s: float | None = None, **asked: Unpack[PlanKeywords]
    ) -> list[PlanAnswer]:
        """Variant and layout of every convolution of a network, their times, and the gain.

        Parameters
        ----------
        model : str, path or bytes
            A shipped network by its name, such as ``resnet50``; or an ONNX model: its file, as a path or as text that
            ends in ``.onnx``, or its bytes. External weight files are not needed and not sent.
        deadline_s : float, optional
            Large models take long to upload.
        **asked
            `PlanKeywords`: batches, precision, the device, and limits.

        Returns
        -------
        plans : list of dict
            One for each batch, in the order of the request.

        Raises
        ------
        InvalidInput
            The file cannot be read.
        """
        return self._ask(calls.plan(model, asked), deadline_s)

    def variants(self, layer: AnyLayer | None = None, **asked: Unpack[VariantsKeywords]) -> list[VariantAnswer]:
        """Every variant; with a layer, also whether it runs the layer on the device and, if not, why not."""
        return self._ask(calls.variants(layer, asked))

    def devices(self) -> list[KnownDeviceAnswer]:
        """Every device that was measured, has a model, or belongs to the server."""
        return self._ask(calls.devices())

    def convolve(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        *,
        deadline_s: float | None = None,
        **asked: Unpack[ConvolutionKeywords],
    ) -> Convolved:
        """Run a convolution on the server's device.

        Parameters
        ----------
        x : array of shape (n, c, h, w)
            float32, float16 or bfloat16; with ``layout="nhwc"`` of shape (n, h, w, c).
        weight : array of shape (k, c / groups, r, s)
            Of the same type; with ``layout="nhwc"`` of shape (k, r, s, c / groups).
        deadline_s : float, optional
        **asked
            `ConvolutionKeywords`: stride, padding and the like, and the variant to run.

        Returns
        -------
        y : array of shape (n, k, p, q)
            In the memory order of x.
        measured : dict
            Variant, time in ms with every sample, error against float64.

        Raises
        ------
        InvalidTensor
            The tensors have a dtype that no convolution has.
        """
        return self._ask(calls.convolve(x, weight, asked), deadline_s)

    def measure(
        self, layer: AnyLayer, *, deadline_s: float | None = None, **asked: Unpack[ConvolutionKeywords]
    ) -> ConvolutionAnswer:
        """Measure a layer on random tensors on the server's device; ``variant="all"`` measures all that apply."""
        return self._ask(calls.measure(layer, asked), deadline_s)

    def submit_sweep(self, *, key: str | None = None, **asked: Unpack[SweepKeywords]) -> JobAnswer:
        """Queue a sweep: every variant on every layer of networks.

        Parameters
        ----------
        key : str, optional
            The same request with the same key is the same job; by default a new one.
        **asked
            `SweepKeywords`.
        """
        return self._ask(calls.submit("sweep", asked, key))

    def submit_measure(
        self, layers: Iterable[AnyLayer], *, key: str | None = None, **asked: Unpack[LongKeywords]
    ) -> JobAnswer:
        """Queue a long measurement of some layers; `key` as in `submit_sweep`."""
        return self._ask(calls.submit_measure(layers, asked, key))

    def submit_retrain(self, *, key: str | None = None, **asked: Unpack[RetrainKeywords]) -> JobAnswer:
        """Queue a retraining on the measurements of a device; `key` as in `submit_sweep`."""
        return self._ask(calls.submit("retrain", asked, key))

    def submit_calibrate(self, *, key: str | None = None, **asked: Unpack[CalibrateKeywords]) -> JobAnswer:
        """Queue a calibration of the server's GPU, whose tree is borrowed; `key` as in `submit_sweep`."""
        return self._ask(calls.submit("calibrate", asked, key))

    def submit_refresh(self, *, key: str | None = None, **asked: Unpack[RefreshKeywords]) -> JobAnswer:
        """Queue a refresh of the server's own device after an upgrade; `key` as in `submit_sweep`."""
        return self._ask(calls.submit("refresh", asked, key))

    def job(self, job_id: str) -> JobAnswer:
        """A job: its progress, and its result or error once it has ended."""
        return self._ask(calls.job(job_id))

    def jobs(self, **asked: Unpack[JobsKeywords]) -> JobsAnswer:
        """Jobs, newest first, a page at a time."""
        return self._ask(calls.jobs(asked))

    def cancel(self, job_id: str) -> JobAnswer:
        """Cancel a job; one that has ended stays as it is."""
        return self._ask(calls.cancel(job_id))

    def watch(self, job_id: str, *, deadline_s: float | None = None) -> Iterator[JobAnswer]:
        """A job as it is now, then after each change, until it has ended; `deadline_s` as in `wait`."""
        attempts, seen = following(deadline_s, self.deadline_s), -1
        job: JobAnswer | None = None
        while True:
            try:
                for job in self._events(job_id, seen, attempts):
                    attempts.begin_again()
                    yield job
                    seen = job["revision"]
                    if is_over(job):
                        return
            except (Refused, Unreachable) as error:
                time.sleep(attempts.wait_s(unended(error, job)))

    def wait(
        self, job_id: str, *, deadline_s: float | None = None, on_change: Callable[[JobAnswer], object] = ignore
    ) -> JobAnswer:
        """Wait until a job has ended, across broken connections and restarts of its server.

        Parameters
        ----------
        job_id : str
        deadline_s : float, optional
            How long to wait at most; infinity for no end. By default as long as the server answers, even if the job is
            queued for days: until the server has been silent for the client's own `deadline_s`.
        on_change : callable (job)
            Called with the job as it is now, and after each change; ``progress`` goes from 0 to 1.

        Returns
        -------
        job : dict
            The job succeeded, and has its ``result``; or it was cancelled.

        Raises
        ------
        Refused
            The job failed; this is its error.
        Unreachable
            The job has not ended in time, or the server is gone; the reason gives the last known state of the job.
        """
        for job in self.watch(job_id, deadline_s=deadline_s):
            on_change(job)
        return ended(job)

    def models(self) -> list[ModelAnswer]:
        """Every trained tree of every device, with its scores."""
        return self._ask(calls.models())

    def activate(self, device: str, model: str) -> ModelAnswer:
        """Put one of a device's trees in charge."""
        return self._ask(calls.activate(device, model))

    def _ask(self, call: Call[T], deadline_s: float | None = None) -> T:
        attempts = Attempts(self.deadline_s if deadline_s is None else deadline_s)
        while True:
            try:
                with self._answer(call, attempts, attempts.left_s) as response:
                    return meaning(call, response, _read(response, attempts))
            except (Refused, Unreachable) as error:
                time.sleep(attempts.wait_s(error))

    def _events(self, job_id: str, seen: int, attempts: Attempts) -> Iterator[JobAnswer]:
        """Changes of a job from one stream; it ends with an error, because the caller stops once the job has ended."""
        call, event = calls.events(job_id, seen), Events()
        with self._answer(call, attempts, STREAM_SILENCE_S) as response:
            if response.status_code == HTTPStatus.OK:
                for line in response.iter_lines():
                    attempts.check(self.url)
                    attempts.hear()
                    if job := event.take(line):
                        yield job
                attempts.check(self.url)  # it may have been cut off
                raise Unreachable(self.url, "the stream of events has ended before the job")
            answer = _read(response, attempts)
        # Too many streams are open, or the last event was received before.
        yield self._ask(calls.job(job_id), min(self.deadline_s, attempts.check(self.url)))
        meaning(call, response, answer)

    @contextmanager
    def _answer(self, call: Call[Any], attempts: Attempts, silence_s: float) -> Iterator[httpx.Response]:
        with one_border(self.url):
            response = self._http.send(request(self._http, call, min(silence_s, attempts.left_s)), stream=True)
            try:
                with cut_off(response, attempts):
                    yield response
            finally:
                response.close()


def _read(response: httpx.Response, attempts: Attempts) -> bytes:
    body = bytearray()
    for piece in response.iter_bytes():
        attempts.check(str(response.url))
        body += piece
    attempts.check(str(response.url))  # where the end of the connection ends the answer, it may have been cut off
    return bytes(body)
