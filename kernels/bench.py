"""Verify, then time: takes one problem and many variants, and gives one measurement per variant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import (
    CompileFailed,
    InvalidTensor,
    NotApplicable,
    NotSupported,
    OutOfMemory,
    RunError,
    UnknownDevice,
    WorkspaceExceeded,
)
from conv_advisor.data.extras import require
from conv_advisor.data.measurement import L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.spent import Spent
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch, Variant

LEAST_PRUNED_MS = 0.5
"""A launch shorter than this is timed in full however slow it is: timing it costs less than it might teach."""


@dataclass(frozen=True)
class BenchOptions:
    """How variants are verified and timed.

    Parameters
    ----------
    l2 : L2State
    workspace_limit_bytes : int
    stop : StopRule
    prune_factor : float
        A variant whose first launch is this many times slower than the best so far is not timed further.
    seed : int
        Seed of the random operands.
    """

    l2: L2State = L2State.WARM
    workspace_limit_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES
    stop: StopRule = field(default_factory=StopRule)
    prune_factor: float = 5.0
    seed: int = 0


def open_runner(device: str) -> Runner:
    """Take possession of a device: ``cpu``, or ``cuda:0`` and so on.

    Raises
    ------
    UnknownDevice
        There is no such device, or its libraries cannot be used.
    NotInstalled
    """
    if device == "cpu":
        require("numba", "scipy", "threadpoolctl")
        from conv_advisor.kernels.cpu.runner import CpuRunner

        return CpuRunner()
    kind, _, ordinal = device.partition(":")
    if kind != "cuda" or not (ordinal or "0").isdigit():
        raise UnknownDevice(device, ["cpu", "cuda:0"])
    require("cupy", "pynvml")
    try:
        from conv_advisor.kernels.cuda.runner import CudaRunner
    except ImportError as error:
        raise UnknownDevice(device, ["cpu"], str(error)) from error
    return CudaRunner(int(ordinal or "0"))


def measure(
    runner: Runner,
    problem: ConvProblem,
    variants: Iterable[Variant],
    *,
    options: BenchOptions | None = None,
    run_id: str = "",
    best_ms: float | None = None,
    on_progress: Callable[[float, str], None] = lambda share, doing: None,
    spent: Spent | None = None,
) -> list[Measurement]:
    """Verify and time each variant on random operands.

    Parameters
    ----------
    runner : Runner
    problem : ConvProblem
    variants : iterable of Variant
        Timed in this order; the first ones set the mark for pruning.
    options : BenchOptions
    run_id : str
    best_ms : float, optional
        The least time of the variants measured before: the mark for pruning until one of these is faster.
    on_progress : callable (share, doing)
        Called before each variant with the share of variants done, 0 to 1, and its id; then once more with 1.
    spent : Spent, optional
        Gets the seconds of preparing and of measuring.

    Returns
    -------
    measurements : list of Measurement
        One per variant, in order; a failure is an outcome.

    Raises
    ------
    LaunchFailed
        The device's context is unusable: the process must end.
    """
    options, spent = options or BenchOptions(), spent or Spent()
    variants = list(variants)
    blank = Measurement(problem, "", runner.device, Outcome.NOT_APPLICABLE, l2=options.l2, run_id=run_id)
    if all(variant.why_not(problem, runner.device) for variant in variants):
        return [_attempt(runner, variant, None, blank, options, None, spent) for variant in variants]
    try:
        with spent.measuring():
            operands = runner.make_operands(problem, options.seed)
    except OutOfMemory as error:
        return [
            replace(blank, variant=variant.id, outcome=Outcome.OUT_OF_MEMORY, detail=str(error)) for variant in variants
        ]
    measurements: list[Measurement] = []
    for done, variant in enumerate(variants):
        on_progress(done / len(variants), variant.id)
        measurements.append(_attempt(runner, variant, operands, blank, options, best_ms, spent))
        time_ms = measurements[-1].time_ms
        if time_ms is not None:
            best_ms = time_ms if best_ms is None else min(best_ms, time_ms)
    on_progress(1.0, "")
    runner.release()
    return measurements


def convolve(
    runner: Runner,
    problem: ConvProblem,
    inputs: Mapping[str, np.ndarray],
    variant: Variant,
    *,
    options: BenchOptions | None = None,
    run_id: str = "",
) -> tuple[np.ndarray, Measurement]:
    """Compute y with one variant, and time it on these very operands.

    Parameters
    ----------
    inputs : mapping of str to array
        The tensors that the problem's `shapes` name: x, weight, and the bias and residual that its epilogue adds; in
        the problem's memory order and storage type.

    Returns
    -------
    y : array of shape problem.y_shape
    measurement : Measurement
        Outcome ``measured``, or ``wrong_result`` where y is off; y is returned in both cases.

    Raises
    ------
    InvalidTensor, NotApplicable, RunError
    """
    options = options or BenchOptions()
    for name, shape in problem.shapes.items():
        if name not in inputs:
            raise InvalidTensor(name, None, f"a tensor of shape {shape}, which the epilogue adds")
        if inputs[name].shape != shape:
            raise InvalidTensor(f"{name}.shape", inputs[name].shape, f"{shape}, as the parameters say")
    for name in inputs.keys() - problem.shapes.keys():
        raise InvalidTensor(name, inputs[name].shape, "nothing where the epilogue does not add it")
    reason = variant.why_not(problem, runner.device)
    if reason is not None:
        raise NotApplicable(variant.id, reason)
    blank = Measurement(
        problem, variant.id, runner.device, Outcome.MEASURED, l2=options.l2, floor_ms=runner.floor_ms, run_id=run_id
    )
    launch = runner.prepare(variant, problem, options.workspace_limit_bytes)
    operands = runner.upload(problem, inputs)
    measurement = _run(runner, launch, operands, blank, options, None)
    y = runner.download(problem, operands)
    runner.release()
    return y, measurement


def picks(runner: Runner, problem: ConvProblem, options: BenchOptions | None = None) -> list[Pick]:
    """The choices of the device's own library for the problem; empty where it makes none."""
    options = options or BenchOptions()
    return list(runner.picks(problem, options.workspace_limit_bytes))


def _attempt(
    runner: Runner,
    variant: Variant,
    operands: Operands | None,
    blank: Measurement,
    options: BenchOptions,
    best_ms: float | None,
    spent: Spent,
) -> Measurement:
    problem = blank.problem
    blank = replace(blank, variant=variant.id, measured_at=datetime.now(UTC))
    reason = variant.why_not(problem, runner.device)
    if reason is not None or operands is None:
        return replace(blank, detail=reason or "", workspace_bytes=None)
    blank = replace(blank, floor_ms=runner.floor_ms)
    try:
        with spent.preparing():
            launch = runner.prepare(variant, problem, options.workspace_limit_bytes)
        with spent.measuring():
            return _run(runner, launch, operands, blank, options, best_ms)
    except WorkspaceExceeded as error:
        return replace(blank, outcome=Outcome.WORKSPACE_EXCEEDED, detail=str(error), workspace_bytes=error.needed_bytes)
    except (NotSupported, OutOfMemory, CompileFailed) as error:
        return replace(blank, outcome=OUTCOMES[type(error)], detail=str(error))


OUTCOMES: Final[dict[type[RunError], Outcome]] = {
    WorkspaceExceeded: Outcome.WORKSPACE_EXCEEDED,
    NotSupported: Outcome.NOT_SUPPORTED,
    OutOfMemory: Outcome.OUT_OF_MEMORY,
    CompileFailed: Outcome.COMPILE_FAILED,
}
"""The outcome recorded for each error that leaves the context usable."""


def _run(
    runner: Runner,
    launch: Launch,
    operands: Operands,
    blank: Measurement,
    options: BenchOptions,
    best_ms: float | None,
) -> Measurement:
    problem = blank.problem
    first = runner.first_run(problem, launch, operands)
    run_fields: dict[str, Any] = {
        "workspace_bytes": launch.workspace_bytes,
        "plan": launch.plan,
        "max_error": first.max_error,
    }
    allowed = tolerance(problem)
    if not first.max_error <= allowed:
        detail = f"max error {first.max_error:.3g}, allowed {allowed:.3g}"
        return replace(blank, **run_fields, outcome=Outcome.WRONG_RESULT, detail=detail)
    if best_ms is not None and _is_hopeless(first, best_ms, options.prune_factor):
        detail = f"first launch took {first.launch_ms:.3g} ms, the best so far {best_ms:.3g} ms"
        return replace(blank, **run_fields, outcome=Outcome.PRUNED, detail=detail, samples_ms=(first.launch_ms,))
    samples = runner.sample(problem, launch, operands, first.launch_ms, options.stop, options.l2)
    return replace(
        blank,
        **run_fields,
        outcome=Outcome.MEASURED,
        samples_ms=samples.samples_ms,
        clock_start_mhz=samples.clock_start_mhz,
        clock_end_mhz=samples.clock_end_mhz,
    )


def _is_hopeless(first: FirstRun, best_ms: float, prune_factor: float) -> bool:
    return first.launch_ms > max(LEAST_PRUNED_MS, prune_factor * best_ms)
