"""The tasks of a worker process, on a replaying device and on the local CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.child import _BOOT
from conv_advisor.app.workers.engine import NO_DEVICE, Engine
from conv_advisor.data import parquet
from conv_advisor.data.errors import InvalidTensor, NotApplicable, NotSupported, UnknownDevice, UnknownVariant
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import reference
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.stopping import StopRule
from tests import fakes
from tests.data import arrow

GPU = Device("nvidia-h200", "NVIDIA H200", "cuda", "9.0")
PROBLEM = ConvProblem.parse("6-2-3-4-3")
VARIANT = "cudnn.implicit_gemm"
FAST = BenchOptions(stop=StopRule(min_samples=1, max_samples=2, budget_ms=1.0))


@pytest.fixture(scope="module")
def replay(tmp_path_factory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("worker") / "recording.parquet"
    row = Measurement(PROBLEM, VARIANT, GPU, Outcome.MEASURED, samples_ms=(0.5, 0.25, 0.75), max_error=0.0)
    parquet.write(arrow.measurements_to_table([row]), path)
    with Engine(str(path), opener=fakes.REPLAY, has_spare=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def cpu() -> Iterator[Engine]:
    with Engine("cpu", has_spare=False) as engine:
        yield engine


def test_the_device_describes_itself(replay, cpu):
    assert replay.run(tasks.describe_device, deadline_s=300) == GPU
    assert cpu.run(tasks.describe_device, deadline_s=300).kind == "cpu"


def test_measurements_carry_the_recorded_samples_and_the_run(replay):
    measured, unknown = replay.run(tasks.measure, PROBLEM, [VARIANT, "cudnn.gemm"], None, "a run", deadline_s=300)
    assert (measured.outcome, measured.samples_ms, measured.run_id) == (Outcome.MEASURED, (0.5, 0.25, 0.75), "a run")
    assert (unknown.outcome, unknown.detail) == (Outcome.NOT_SUPPORTED, "not in the recording")


def test_measuring_tells_how_far_it_is(replay):
    told = []
    wanted = [VARIANT, "cudnn.gemm"]
    replay.run(tasks.measure, PROBLEM, wanted, deadline_s=300, on_progress=lambda *each: told.append(each))
    assert told == [(0.0, VARIANT), (0.5, "cudnn.gemm"), (1.0, "")]


def test_a_convolution_gives_y(replay):
    x, weight = reference.random_operands(PROBLEM, 1)
    y, measurement = replay.run(tasks.convolve, PROBLEM, {"x": x, "weight": weight}, VARIANT, deadline_s=300)
    np.testing.assert_allclose(y, reference.convolve(PROBLEM, x, weight), rtol=1e-6)
    assert measurement.time_ms == 0.5


def test_picks_carry_the_run(replay):
    (pick,) = replay.run(tasks.picks, PROBLEM, None, "a run", deadline_s=300)
    assert (pick.variant, pick.run_id) == (VARIANT, "a run")


def test_errors_keep_their_class_and_fields(replay):
    x, weight = reference.random_operands(PROBLEM, 1)
    other = replace(PROBLEM, h=7)
    with pytest.raises(UnknownVariant) as unknown:
        replay.run(tasks.convolve, PROBLEM, {"x": x, "weight": weight}, "cuda.magic", deadline_s=300)
    assert unknown.value.name == "cuda.magic"
    with pytest.raises(InvalidTensor, match=r"x\.shape"):
        replay.run(tasks.convolve, other, {"x": x, "weight": weight}, VARIANT, deadline_s=300)
    with pytest.raises(NotSupported):
        replay.run(tasks.convolve, PROBLEM, {"x": x, "weight": weight}, "cudnn.gemm", deadline_s=300)


def test_the_cpu_computes_and_measures(cpu):
    x, weight = reference.random_operands(PROBLEM, 1)
    y, measurement = cpu.run(tasks.convolve, PROBLEM, {"x": x, "weight": weight}, "cpu.gemm", FAST, deadline_s=120)
    np.testing.assert_allclose(y, reference.convolve(PROBLEM, x, weight), rtol=1e-4, atol=1e-5)
    assert measurement.outcome is Outcome.MEASURED
    assert min(measurement.samples_ms) > 0
    (only,) = cpu.run(tasks.measure, PROBLEM, ["cpu.gemm"], FAST, deadline_s=120)
    assert (only.outcome, only.device.id) == (Outcome.MEASURED, "cpu")
    assert cpu.run(tasks.picks, PROBLEM, FAST, deadline_s=300) == []


def test_a_variant_that_does_not_apply_says_why(cpu):
    x, weight = reference.random_operands(PROBLEM, 1)
    inputs = {"x": x, "weight": weight[:, :, :1]}
    with pytest.raises(NotApplicable) as refused:
        cpu.run(tasks.convolve, replace(PROBLEM, r=1), inputs, "cpu.winograd", deadline_s=300)
    assert refused.value.variant == "cpu.winograd"


def test_a_device_that_is_not_there_is_unknown():
    with Engine("tpu:0", has_spare=False) as engine, pytest.raises(UnknownDevice):
        engine.run(tasks.describe_device, deadline_s=60)


def test_a_usable_device_is_found():
    with Engine(NO_DEVICE) as engine:
        assert engine.run(tasks.find_device, deadline_s=60) in ("cpu", "cuda:0")


def test_a_worker_whose_server_is_gone_before_it_has_started_ends_in_silence():
    ours, theirs = Pipe()
    with theirs:
        ours.close()
        command = [
            sys.executable,
            "-P",
            "-c",
            _BOOT,
            str(theirs.fileno()),
            NO_DEVICE,
            "conv_advisor.kernels.bench:open_runner",
        ]
        done = subprocess.run(command, pass_fds=(theirs.fileno(),), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_outside_a_worker_goes_nowhere():
    tasks.report_progress(0.5, "half")


def test_what_moved_is_said_in_a_process_that_may_load_scikit_learn() -> None:
    from conv_advisor.models.upgrades.moves import Question

    x = np.arange(40, dtype=np.float32)[:, None]
    nothing = np.full(40, np.nan)
    rows, known = np.arange(40) // 2, np.tile([0.0, 0.5], 20)
    question = Question(x, np.where(x[:, 0] < 20, 0.3, 0.0), x, rows, known, nothing)
    with Engine(NO_DEVICE, has_spare=False) as engine:
        said = engine.run(tasks.say_moves, question, deadline_s=60)
    assert said.mean[:10] == pytest.approx(0.3, abs=0.05)
    assert said.mean[-10:] == pytest.approx(0.0, abs=0.05)
    assert min(said.chance[:5]) > 0.5 > max(said.chance[-5:])
