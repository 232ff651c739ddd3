"""The code inside a Dask worker: it owns one device through a supervised child, and stops a job on request.

This is the one module that imports Dask at once. It uses of Dask only the plugin's start and end, and the events that
carry progress; the engine is the same as on one machine.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final

from distributed import Worker, WorkerPlugin, get_worker

from conv_advisor.app.workers.child import WorkerKilled
from conv_advisor.app.workers.engine import DEFAULT_OPENER, Engine
from conv_advisor.app.workers.lent import Lent
from conv_advisor.data.errors import ConvAdvisorError, WorkerError

log = logging.getLogger(__name__)

_STOPPED_KEPT: Final = 1000
"""Number of stopped jobs whose ids are kept, since the order to stop may come before the job."""

_LEFT: Final = "the worker was ended from outside during the job"


@dataclass(frozen=True)
class Ended:
    """How a job ended. Errors are values here: Dask would log a raised one, with all arguments."""

    value: Any = None
    error: ConvAdvisorError | None = None


class OwnDevice(WorkerPlugin):  # type: ignore[misc]  # Dask's types are not followed
    """Gives a Dask worker its device.

    Parameters
    ----------
    device_id : str
        ``cpu``, ``cuda:0`` ...
    start_timeout_s : float
    opener : str
        See `app.workers.engine.Engine`.
    """

    name = "conv-advisor-device"

    def __init__(self, device_id: str, start_timeout_s: float, opener: str = DEFAULT_OPENER) -> None:
        self._device_id = device_id
        self._start_timeout_s = start_timeout_s
        self._opener = opener

    def setup(self, worker: Worker) -> None:
        """Start the engine, without a spare child, whose start would disturb timings."""
        engine = Engine(self._device_id, start_timeout_s=self._start_timeout_s, has_spare=False, opener=self._opener)
        _Process.device = Owned(engine)

    async def teardown(self, worker: Worker) -> None:
        """Report that the running job is not to blame, and end the child."""
        if _Process.device:
            _Process.device.leave()
            await asyncio.to_thread(_Process.device.engine.close)


class Owned:
    """This worker's device, and the job that it runs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._running: tuple[str, Lent, Callable[[], None]] | None = None
        self._is_leaving = False
        self._stopped: deque[str] = deque(maxlen=_STOPPED_KEPT)

    def run(self, job_id: str, work: Callable[[Lent], Any], on_leave: Callable[[], None]) -> Ended:
        """Run a job to its end.

        Parameters
        ----------
        job_id : str
        work : callable (lent) -> value
        on_leave : callable
            Called if the worker is ended meanwhile.
        """
        lent = Lent(self.engine)
        with self._lock:
            if job_id in self._stopped:
                return Ended(error=WorkerError("it was stopped before it began"))
            self._running = (job_id, lent, on_leave)
        try:
            return Ended(work(lent))
        except ConvAdvisorError as error:
            return Ended(error=WorkerKilled(_LEFT) if self._is_leaving else error)
        except CancelledError:
            return Ended(error=WorkerKilled(_LEFT) if self._is_leaving else WorkerError("it was stopped"))
        except Exception as error:
            log.exception("a job failed")
            return Ended(error=WorkerError(f"{type(error).__name__} in the worker: {error}"))
        finally:
            with self._lock:
                self._running = None

    def leave(self) -> None:
        """Note that this worker is being ended from outside, not by the job that it runs."""
        with self._lock:
            self._is_leaving = True
            if self._running:
                self._running[2]()

    def stop(self, job_id: str) -> None:
        """Kill the process that runs this job, now or when it comes."""
        with self._lock:
            self._stopped.append(job_id)
            if self._running and self._running[0] == job_id:
                self._running[1].stop()


class _Process:
    """The device of this process; set once by the plugin."""

    device: Owned | None = None


def execute(call: bytes, job_id: str, topic: str, deadline_s: float | None) -> Ended:
    """Run one job; a Dask task.

    Parameters
    ----------
    call : bytes
        A pickled function and its arguments.
    job_id : str
    topic : str
        Topic of the events that report the job's beginning and progress.
    deadline_s : float or None
        The function runs in the child and is killed after this time. None: it runs here, takes an engine as its first
        and a progress callback as its last argument, and bounds its time itself.
    """
    device, worker = _Process.device, get_worker()
    if device is None:
        return Ended(error=WorkerError("this Dask worker has no device: start it by conv-advisor worker"))

    def report(fraction: float, message: str) -> None:
        worker.log_event(topic, {"job": job_id, "fraction": fraction, "message": message})

    def work(lent: Lent) -> Any:
        function, args = pickle.loads(call)  # noqa: S301 - from a client that Dask let in, which may run code anyway
        if deadline_s is None:
            return function(lent, *args, report)
        return lent.run(function, *args, deadline_s=deadline_s, on_progress=report)

    worker.log_event(topic, {"job": job_id})
    return device.run(job_id, work, lambda: worker.log_event(topic, {"job": job_id, "left": True}))


async def stop(job_id: str) -> None:
    """Stop a job of this worker."""
    if _Process.device:
        await asyncio.to_thread(_Process.device.stop, job_id)
