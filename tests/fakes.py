"""What tests give a real worker process: tasks that misbehave, and a device that replays recorded measurements."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conv_advisor.app.workers.tasks import report_progress
from conv_advisor.data.errors import (
    CompileFailed,
    LaunchFailed,
    NotEnoughData,
    NotSupported,
    OutOfMemory,
    RunError,
    WorkspaceExceeded,
)
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import reference
from conv_advisor.kernels.runner import FirstRun, Operands, Samples
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Launch, Variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from conv_advisor.models.retraining.retrain import Trained
    from conv_advisor.models.tree.file import TreeModel


def add(a: int, b: int) -> int:
    """A task that succeeds."""
    return a + b


def pid() -> int:
    """Which process runs this."""
    return os.getpid()


def parent_pid() -> int:
    """Which process has started the one that runs this."""
    return os.getppid()


def sleep(seconds: float, path: Path | None = None) -> int:
    """A task that takes long; says in a file that it runs."""
    if path:
        path.write_text(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()


def wait_for(path: Path) -> None:
    """A task that ends once this file is there."""
    while not path.exists():
        time.sleep(0.01)


def spin(seconds: float) -> None:
    """Keep the interpreter busy, deaf to polite signals, as a kernel in C is."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def environment(name: str) -> str | None:
    """A variable of the process that runs this."""
    return os.environ.get(name)


def total(array: np.ndarray) -> int:
    """Take a large argument."""
    return int(array.sum())


def crash() -> None:
    """End as a segmentation fault does."""
    os.kill(os.getpid(), signal.SIGSEGV)


def poison() -> None:
    """Make the context unusable."""
    raise LaunchFailed("an illegal memory access was encountered")


def refuse() -> None:
    """Fail as a library does."""
    raise NotSupported("no engine for it")


def divide_by_zero() -> None:
    """Fail in a way nobody foresaw."""
    _ = 1 / 0


def unpicklable() -> Any:
    """Return what cannot be sent."""
    return lambda: None


def count_to(steps: int) -> int:
    """Report progress."""
    for step in range(steps):
        report_progress((step + 1) / steps, f"step {step + 1}")
    return steps


@dataclass(frozen=True)
class Nothing:
    """What no device gives."""

    device: Device


def open_nothing(device_id: str) -> Nothing:
    """Open no device, fast."""
    return Nothing(Device(device_id, "nothing", "cpu"))


def open_bare(_device_id: str) -> Bare:
    """Open a device that says what it is, and does nothing."""
    return Bare()


def open_other(_device_id: str) -> Bare:
    """Open another one."""
    return Bare(replace(SMALL_DEVICE, id="other-cpu", name="Another CPU"))


def open_slowly(device_id: str) -> str:
    """Open a device that does not answer."""
    time.sleep(3600)
    return device_id


def exit_early() -> None:
    """End politely, but without an answer."""
    os._exit(3)


def zeros(nbytes: int) -> np.ndarray:
    """A result of that many bytes."""
    return np.zeros(nbytes, np.uint8)


def shout() -> None:
    """Write on standard output, from Python and past it."""
    sys.stdout.write("HELLO\n")
    os.write(1, b"HELLO\n")


def job_once_interrupted(request: dict[str, Any]) -> dict[str, Any]:
    """Take for ever on the first attempt, which says so in a file; succeed on the next."""
    mark = Path(request["path"])
    if not mark.exists():
        report_progress(0.5, "half way")
        sleep(60, mark)
    return {"done": True}


def job_of_seconds(request: dict[str, Any]) -> dict[str, Any]:
    """Take so long."""
    time.sleep(request["seconds"])
    return {}


def job_that_dies(_request: dict[str, Any]) -> dict[str, Any]:
    """Bring the worker down on every attempt."""
    os._exit(9)


def job_that_fails(_request: dict[str, Any]) -> dict[str, Any]:
    """Fail with an error of the project's own."""
    raise NotEnoughData("3 measurements; at least 100 are needed")


def job_done(request: dict[str, Any]) -> dict[str, Any]:
    """Succeed, giving back the request, after two reports of which the second comes too soon to be noted."""
    report_progress(0.25, "a quarter")
    report_progress(1.0, "done")
    return {"request": request}


REPLAY = "tests.fakes:open_replay"
"""Opener of a device that replays: its device id is the Parquet file of the recording."""


def open_replay(path: str) -> ReplayRunner:
    """A runner that replays the measurements in a Parquet file."""
    ReplayRunner.note = hangs(Path(path))
    return ReplayRunner(_recorded(path))


def hangs(recording: Path) -> Path:
    """Where a device that replays this says which process hangs."""
    return recording.with_suffix(".hangs")


SLOW_REPLAY = "tests.fakes:open_slow_replay"
"""Opener of one that takes its time, and notes beside the recording which process measures, and the parent of it."""


def open_slow_replay(path: str) -> ReplayRunner:
    """A runner that takes a fifth of a second for each problem."""
    SlowRunner.seen = Path(path).with_name(f"measured-{os.getppid()}-{os.getpid()}")
    return SlowRunner(_recorded(path))


def _recorded(path: str) -> list[Measurement]:
    # Imported here: half of a worker's start, and most that tests start replay nothing.
    from conv_advisor.data import parquet
    from tests.data import arrow

    return arrow.table_to_measurements(parquet.read(Path(path), parquet.SCHEMA))


class ReplayRunner:
    """A device whose times and failures are those of a recording, behind the interface of a real one.

    What it computes is right: y comes from the float64 reference. What brought the recorded worker down brings this one
    down too.
    """

    floor_ms = 0.0005
    note = Path(os.devnull)

    def __init__(self, recording: list[Measurement]) -> None:
        self.device = recording[0].device
        self._recorded = {(row.problem, row.variant): row for row in recording}

    def recorded(self) -> list[Measurement]:
        """The recording."""
        return list(self._recorded.values())

    def make_operands(self, problem: ConvProblem, seed: int) -> Operands:
        made = (*reference.random_operands(problem, seed), *reference.random_ends(problem, seed))
        named = dict(zip(("x", "weight", "bias", "residual"), made, strict=True))
        return self.upload(problem, {name: array for name, array in named.items() if array is not None})

    def upload(self, problem: ConvProblem, inputs: Mapping[str, np.ndarray]) -> Operands:
        y, outputs = np.zeros(problem.y_shape, inputs["x"].dtype), np.zeros((0, 4), np.int64)
        return Operands(y=y, outputs=outputs, reference=np.zeros(0), **inputs)

    def download(self, _problem: ConvProblem, operands: Operands) -> np.ndarray:
        return operands.y

    def prepare(
        self, variant: Variant, problem: ConvProblem, workspace_limit_bytes: int, _plan: dict[str, Any] | None = None
    ) -> Launch:
        row = self._recorded.get((problem, variant.id))
        if row is None:
            raise NotSupported("not in the recording")
        if row.outcome is Outcome.TIMED_OUT:
            self.note.write_text(str(os.getpid()))
        _fail_as(row, workspace_limit_bytes)

        def run(x: np.ndarray, weight: np.ndarray, y: np.ndarray, *ends: np.ndarray | None) -> None:
            y[...] = reference.convolve(problem, x, weight, *ends)

        return Launch(run, row.workspace_bytes or 0, row.plan | {"replayed": variant.id})

    def plans(self, problem: ConvProblem) -> list[tuple[str, dict[str, Any]]]:
        return [(row.variant, row.plan) for (of, _), row in self._recorded.items() if of == problem and row.plan]

    def first_run(self, problem: ConvProblem, launch: Launch, operands: Operands) -> FirstRun:
        launch.run(*operands.tensors)
        row = self._row(problem, launch)
        return FirstRun(row.max_error or 0.0, row.time_ms or 0.0)

    def sample(
        self, problem: ConvProblem, launch: Launch, _o: Operands, _launch_ms: float, _rule: StopRule, _l2: L2State
    ) -> Samples:
        row = self._row(problem, launch)
        return Samples(row.samples_ms, row.clock_start_mhz, row.clock_end_mhz)

    def picks(self, problem: ConvProblem, _workspace_limit_bytes: int) -> list[Pick]:
        times = [(row.time_ms, row.variant) for (of, _), row in self._recorded.items() if of == problem and row.time_ms]
        return [Pick(problem, self.device, "replayed", min(times)[1])] if times else []

    def release(self) -> None:
        return

    def _row(self, problem: ConvProblem, launch: Launch) -> Measurement:
        return self._recorded[problem, launch.plan["replayed"]]


class SlowRunner(ReplayRunner):
    """One that takes its time."""

    seen: Path

    def make_operands(self, problem: ConvProblem, seed: int) -> Operands:
        self.seen.touch()
        time.sleep(0.2)
        return super().make_operands(problem, seed)


SMALL_DEVICE = Device("test-cpu", "A CPU for tests", "cpu", processors=2)


@dataclass(frozen=True)
class Bare:
    """A device that can say what it is."""

    device: Device = SMALL_DEVICE


def small_measurements(scale_ms: float) -> list[Measurement]:
    """Thirty problems of a made-up CPU, on which ``cpu.direct`` is ahead where the batch is small."""
    variants = ("cpu.direct", "cpu.gemm")
    return [
        Measurement(
            ConvProblem.parse(f"{size}-{n}-3-16-16"),
            variant,
            SMALL_DEVICE,
            Outcome.MEASURED,
            samples_ms=(size * n * scale_ms * (1 + place),) * 3,
            workspace_bytes=0,
            measured_at=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for size in (6, 7, 8, 9, 10)
        for n in (1, 2, 3, 4, 5, 6)
        for place, variant in enumerate(variants if n < 4 else variants[::-1])
    ]


def small_tree(best_ms: float) -> TreeModel:
    """A stump for the same CPU, made by hand: ``cpu.direct`` up to batch 3, ``cpu.gemm`` above, one twice the other."""
    from conv_advisor.models.tree.arrays import LEAF
    from conv_advisor.models.tree.features import FEATURES
    from conv_advisor.models.tree.file import make

    arrays = {
        "feature": np.array([FEATURES.index("log2_n"), LEAF, LEAF], np.int32),
        "threshold": np.array([1.8, 0, 0]),
        "left": np.array([1, LEAF, LEAF], np.int32),
        "right": np.array([2, LEAF, LEAF], np.int32),
        "place": np.array([LEAF, 0, 1], np.int32),
        "log_slowdown": np.log(np.array([[1, 2], [2, 1]], np.float32)),
        "support": np.ones((2, 2), np.float32),
        "workspace": np.zeros((2, 2), np.float32),
        "log_best": np.full(2, np.log(best_ms), np.float32),
        "roofline": np.ones((2, 3), np.float32),
        "spread": np.full(2, 0.05, np.float32),
    }
    card = {"created": "2026-01-01T00:00:00+00:00", "scores": {}}
    return make(arrays, variants=("cpu.direct", "cpu.gemm"), device=SMALL_DEVICE, card=card)


def train_quickly(_store_url: str, _home: Path, request: dict[str, Any]) -> Trained:
    """What training gives, at once: a tree that is to be put in charge."""
    from conv_advisor.models.retraining.retrain import Trained

    tree = small_tree(0.02)
    return Trained(tree, {"device": request["device"], "model": tree.id, "promoted": True, "forced": True})


def train_for_long(_store_url: str, _home: Path, _request: dict[str, Any]) -> None:
    """Train until somebody ends it."""
    time.sleep(3600)


def ask_for_nothing(_measured: Sequence[ConvProblem], _device_id: str) -> None:
    """What a trainer needs that learns from nothing."""


def _fail_as(row: Measurement, workspace_limit_bytes: int) -> None:
    """Fail as the recorded attempt did, if it did."""
    errors: dict[Outcome, RunError] = {
        Outcome.NOT_SUPPORTED: NotSupported(row.detail),
        Outcome.OUT_OF_MEMORY: OutOfMemory(row.detail),
        Outcome.COMPILE_FAILED: CompileFailed(row.detail),
        Outcome.LAUNCH_FAILED: LaunchFailed(row.detail),
        Outcome.WORKSPACE_EXCEEDED: WorkspaceExceeded(row.workspace_bytes or 0, workspace_limit_bytes),
    }
    if row.outcome is Outcome.CRASHED:
        crash()
    if row.outcome is Outcome.TIMED_OUT:
        time.sleep(60)
    if row.outcome in errors:
        raise errors[row.outcome]
