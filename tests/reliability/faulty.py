"""The command `serve` as it is, on a device that replays a recording, and that breaks when told to.

``python -m tests.reliability.faulty RECORDING serve ...``: what follows the recording is the command's own.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import conv_advisor.app.cli
import conv_advisor.app.main
import conv_advisor.app.server.protocol
import conv_advisor.app.service.ready
import conv_advisor.app.service.service
import conv_advisor.app.service.writing
import conv_advisor.app.wire.body
import conv_advisor.app.workers.opening
from conv_advisor.app.settings import Settings
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data import parquet
from conv_advisor.data.errors import LaunchFailed
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.runner import FirstRun, Operands
from conv_advisor.kernels.variant import Launch
from tests.app.serving import CRASHING, FAST, GPU, HANGING, recording
from tests.data import arrow
from tests.fakes import ReplayRunner, open_replay

POISONED = "cudnn.winograd_nonfused"
"""A variant whose launch leaves the context unusable, until its process ends."""
BROKEN = ".broken"
"""Beside the recording: a file by whose being there the device cannot be opened."""
PACE = "CONV_TEST_PACE_S"
"""How long one convolution takes on the device, which sleeps meanwhile, as a host does that waits for a GPU."""
HASTE = "CONV_TEST_HASTE"
"""How many times sooner than usual the server gives up: on slow clients, and on a database that others have locked."""
PROBE = "CONV_TEST_PROBE_S"
"""How long a probe of readiness waits for its checks."""

OPENER = "tests.reliability.faulty:open_faulty"

__all__ = ["BROKEN", "CRASHING", "FAST", "HANGING", "HASTE", "PACE", "POISONED", "PROBE", "write_recording"]


class FaultyRunner(ReplayRunner):
    """A device that takes its time."""

    pace_s = float(os.environ.get(PACE, "0"))

    def first_run(self, problem: ConvProblem, launch: Launch, operands: Operands) -> FirstRun:
        time.sleep(self.pace_s)
        return super().first_run(problem, launch, operands)


def open_faulty(path: str) -> FaultyRunner:
    """Open the device, unless it is broken."""
    if Path(path + BROKEN).exists():
        raise LaunchFailed("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
    return FaultyRunner(list(open_replay(path).recorded()))


def write_recording(path: Path, *problems: ConvProblem) -> None:
    """What the device does: variants that compute, crash, hang, poison the context."""
    rows = [row for problem in problems for row in recording(problem)]
    rows += [Measurement(problem, POISONED, GPU, Outcome.LAUNCH_FAILED, "as recorded") for problem in problems]
    parquet.write(arrow.measurements_to_table(rows), path)


def hasten(times: float) -> None:
    """Give up so many times sooner."""
    protocol, body = conv_advisor.app.server.protocol, conv_advisor.app.wire.body
    service, writing = conv_advisor.app.service.service, conv_advisor.app.service.writing
    protocol.LEAST_BYTES_PER_S = int(protocol.LEAST_BYTES_PER_S * times)
    for module, name in (
        *((protocol, name) for name in ("HEAD_S", "BODY_S", "READ_S")),
        (body, "LONGEST_PAUSE_S"),
        *((module, "WAIT_S") for module in (service, writing)),
    ):
        setattr(module, name, getattr(module, name) / times)


def main() -> None:
    """Run the command."""
    hasten(float(os.environ.get(HASTE, "1")))
    ready: Any = conv_advisor.app.service.ready
    ready.LONGEST_S = float(os.environ.get(PROBE, ready.LONGEST_S))
    path, *command = sys.argv[1:]

    def open_engine(settings: Settings) -> Engine:
        return Engine(path, max_queue=settings.max_queue, opener=OPENER, start_timeout_s=settings.start_timeout_s)

    conv_advisor.app.workers.opening.open_engine = open_engine
    conv_advisor.app.main.create_app = partial(
        conv_advisor.app.main.create_app, timings=Path(path).with_name("no timings")
    )
    sys.argv = ["conv-advisor", *command]
    conv_advisor.app.cli.main()


if __name__ == "__main__":
    main()
