"""The code of a worker process: its loop, and the tasks that it runs."""

from __future__ import annotations

import ctypes
import importlib
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from conv_advisor.app.workers.messages import Packed, receive_packed, send, unpack
from conv_advisor.data.errors import ConvAdvisorError, LaunchFailed, NotInstalled, UnknownDevice, WorkerError
from conv_advisor.data.measurement import Device, Measurement, Pick
from conv_advisor.data.problem import ConvProblem

if TYPE_CHECKING:
    import numpy as np

    from conv_advisor.kernels.bench import BenchOptions
    from conv_advisor.kernels.runner import Runner
    from conv_advisor.kernels.spent import Spent
    from conv_advisor.models.retraining.retrain import Trained
    from conv_advisor.models.upgrades.moves import Question, Said

_PR_SET_PDEATHSIG = 1


class _Process:
    """Arguments of this process; set once by `main`."""

    pipe: Connection[Any, Any] | None = None
    device_id = "none"
    opener = "conv_advisor.kernels.bench:open_runner"


def main() -> None:
    """Take tasks from the pipe until it closes.

    Its arguments are the pipe's descriptor, the device's id, the opener, and ``warm`` for a warm start.
    """
    descriptor, _Process.device_id, _Process.opener, *warm = sys.argv[1:]
    _die_with_parent()
    _Process.pipe = pipe = Connection(int(descriptor))
    if _Process.device_id != "none":
        _warm_up(computes=bool(warm))
    _send(pipe, ("ready",))
    while True:
        try:
            message = receive_packed(pipe)
        except (EOFError, OSError):
            return
        _send(pipe, ("taken",))
        reply = _answer(message)
        del message
        _send(pipe, reply)
        if reply[0] == "fatal":
            return
        del reply  # it may be large, and the next task long in coming


def report_progress(fraction: float, message: str) -> None:
    """Report the running task's progress to the parent; does nothing outside a worker process."""
    if _Process.pipe is not None:
        send(_Process.pipe, ("progress", fraction, message))


def describe_device() -> Device:
    """The fingerprint of this worker's device."""
    return runner().device


def measure(
    problem: ConvProblem,
    variant_ids: list[str],
    options: BenchOptions | None = None,
    run_id: str = "",
    best_ms: float | None = None,
) -> list[Measurement]:
    """Verify and time variants on random operands; one measurement each, in order.

    Raises
    ------
    UnknownVariant, LaunchFailed
    """
    from conv_advisor.kernels import bench, catalog

    variants = [catalog.get(variant_id) for variant_id in variant_ids]
    return bench.measure(
        runner(), problem, variants, options=options, run_id=run_id, best_ms=best_ms, on_progress=report_progress
    )


def measure_timed(
    problem: ConvProblem, variant_ids: list[str], options: BenchOptions | None = None, run_id: str = ""
) -> tuple[list[Measurement], Spent]:
    """`measure` without progress, and the seconds of this process that it took; a task of sweeps."""
    from conv_advisor.kernels import bench, catalog
    from conv_advisor.kernels.spent import Spent

    variants, spent = [catalog.get(variant_id) for variant_id in variant_ids], Spent()
    return bench.measure(runner(), problem, variants, options=options, run_id=run_id, spent=spent), spent


def convolve(
    problem: ConvProblem,
    inputs: Mapping[str, np.ndarray],
    variant_id: str,
    options: BenchOptions | None = None,
    run_id: str = "",
) -> tuple[np.ndarray, Measurement]:
    """Compute y with one variant, and time it on these operands.

    Raises
    ------
    UnknownVariant, InvalidTensor, NotApplicable, RunError
    """
    from conv_advisor.kernels import bench, catalog

    return bench.convolve(runner(), problem, inputs, catalog.get(variant_id), options=options, run_id=run_id)


def picks(problem: ConvProblem, options: BenchOptions | None = None, run_id: str = "") -> list[Pick]:
    """The picks of the device's own library; empty on a CPU."""
    from conv_advisor.kernels import bench

    return [replace(pick, run_id=run_id) for pick in bench.picks(runner(), problem, options)]


def train(store_url: str, home: Path, request: dict[str, Any]) -> Trained:
    """Train a challenger and compare it with the champion; see `models.retraining.retrain.train`.

    Parameters
    ----------
    store_url : str
    home : Path
        Folder of the registry of models.
    request : dict
        ``device``: whose measurements; ``force``: replace the champion whatever the scores.
    """
    from conv_advisor.models.retraining import retrain as training

    return training.train(store_url, home, request["device"], is_forced=request["force"], on_progress=report_progress)


def say_moves(question: Question) -> Said:
    """What the times that were measured again say about the others; see `models.upgrades.moves.say`."""
    from conv_advisor.models.upgrades import moves

    return moves.say(question)


def find_device() -> str:
    """``cuda:0`` if it can be used here, else ``cpu``."""
    from conv_advisor.kernels.bench import open_runner

    try:
        _ = open_runner("cuda:0").device
    except (UnknownDevice, NotInstalled):  # no libraries
        return "cpu"
    except Exception as error:  # no driver, no device, or one in a bad state: auto means "where it can be used"
        sys.stderr.write(f"cuda:0 cannot be used: {error}\n")
        return "cpu"
    return "cuda:0"


@cache
def runner() -> Runner:
    """The runner of kernels on this worker's device, which is opened at the first call."""
    opened: Runner = _load(_Process.opener)(_Process.device_id)
    return opened


def _load(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _warm_up(*, computes: bool) -> None:
    """Do the slow imports that leave the device alone; the CPU kernels too where ``computes`` is set."""
    _load(_Process.opener)
    if _Process.device_id == "cpu":
        with suppress(NotInstalled):  # the first task on the device reports it
            runner()
            if computes:
                importlib.import_module("conv_advisor.kernels.cpu.prepare")


def _answer(message: Packed) -> tuple[Any, ...]:
    try:
        task, args = unpack(message)
        return ("done", task(*args))
    except LaunchFailed as error:
        return ("fatal", error)
    except ConvAdvisorError as error:
        return ("failed", error)
    except Exception as error:
        sys.stderr.write(format_exc())
        return ("failed", WorkerError(f"{type(error).__name__} in the worker: {error}"))


def _send(pipe: Connection[Any, Any], reply: tuple[Any, ...]) -> None:
    try:
        send(pipe, reply)
    except (BrokenPipeError, ConnectionResetError):  # the parent is gone
        return
    except Exception as error:
        send(pipe, ("failed", WorkerError(f"the result cannot be sent: {error}")))


def _die_with_parent() -> None:
    """End when the parent does, even if it is killed; without prctl, the closed pipe ends it between tasks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
