"""A process of its own for the device: what brings it down costs a restart, and is known by name."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.rivals.layer import OPERANDS, Order, measure_layer
from benchmarks.rivals.rows import Row
from conv_advisor.data.errors import ConvAdvisorError, DeadlineExceeded, LaunchFailed, WorkerDied, WorkerError

START_S: Final = 180.0
"""Longest start: PyTorch, CuPy and both cuDNN APIs are loaded."""
_CLOSE_S: Final = 5.0


class Worker:
    """A process that measures one layer after the other; it is started when first needed, and again after it died.

    Parameters
    ----------
    device_id : str
    opener, peer_opener : str
        ``module:function`` that open the device, and PyTorch on it; tests name fakes.
    """

    def __init__(self, device_id: str, opener: str, peer_opener: str) -> None:
        self._arguments = (device_id, opener, peer_opener)
        self._process: Any = None
        self._pipe: Connection | None = None
        self.in_hand = ""
        """What the process was doing last: the name of a candidate, of a mode of PyTorch, or `OPERANDS`."""

    def measure(self, order: Order, deadline_s: float) -> list[Row]:
        """The rows of one layer.

        Raises
        ------
        WorkerError, LaunchFailed
            The process is gone, by itself, past its deadline, or for an unusable context; `in_hand` says what it did.
        ConvAdvisorError
            As `benchmarks.rivals.layer.measure_layer`.
        """
        self.start()
        self.in_hand = OPERANDS
        self._send(order)
        rows: list[Row] = self._answer(deadline_s)
        return rows

    def close(self) -> None:
        """End the process; never hangs."""
        if self._process is not None:
            self._process.kill()
            self._process.join(_CLOSE_S)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Open the device in a process, where there is none yet.

        Raises
        ------
        ConvAdvisorError
        """
        if self._process is not None:
            return
        self.in_hand = ""
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._answer(START_S)
        except ConvAdvisorError:
            self.close()
            raise

    def _send(self, order: Order) -> None:
        assert self._pipe is not None  # noqa: S101 - `start` has set it
        try:
            self._pipe.send(order)
        except OSError:
            raise self._died() from None

    def _answer(self, deadline_s: float) -> Any:
        assert self._pipe is not None  # noqa: S101 - as above
        until = time.monotonic() + deadline_s
        while self._pipe.poll(max(0.0, until - time.monotonic())):
            try:
                kind, content = self._pipe.recv()
            except (EOFError, OSError):
                raise self._died() from None
            if kind == "in hand":
                self.in_hand = content
            elif kind == "done":
                return content
            else:
                if isinstance(content, LaunchFailed | WorkerError):
                    self.close()
                raise content
        self.close()
        raise DeadlineExceeded(f"{self.in_hand or 'the start'} took more than {deadline_s:g} s and was stopped")

    def _died(self) -> WorkerDied:
        process = self._process
        process.join(_CLOSE_S)
        self.close()
        return WorkerDied(f"the worker process ended (exit status {process.exitcode})")


def _serve(pipe: Connection, device_id: str, opener: str, peer_opener: str) -> None:
    """Open the device and PyTorch, then measure what is sent until the pipe closes."""

    def tell(name: str) -> None:
        pipe.send(("in hand", name))

    try:
        runner = _load(opener)(device_id)
        peer = _load(peer_opener)(runner, device_id)
        pipe.send(("done", runner.device))
        while True:
            order = pipe.recv()
            try:
                pipe.send(("done", measure_layer(runner, peer, order, tell)))
            except LaunchFailed:
                raise
            except ConvAdvisorError as error:
                pipe.send(("failed", error))
    except EOFError:
        return
    except ConvAdvisorError as error:
        pipe.send(("failed", error))
    except Exception as error:
        pipe.send(("failed", WorkerError(f"{type(error).__name__}: {error}")))
        raise


def _load(path: str) -> Callable[..., Any]:
    module, _, function = path.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
