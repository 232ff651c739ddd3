"""Answers of /v1/convolutions, in JSON and as metadata beside a binary y."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import TypedDict

from conv_advisor.app.wire.answers.catalogue import DeviceAnswer, device_answer
from conv_advisor.app.wire.answers.problems import ProblemAnswer, problem_answer
from conv_advisor.app.wire.safetensors import to_lists
from conv_advisor.kernels.comparison import n_compared

if TYPE_CHECKING:
    from conv_advisor.app.convolve.convolution import Attempt, Convolution


_SUMMARY: Final = (
    *("variant", "chosen_by", "outcome", "detail", "time_ms", "max_error", "n_compared", "workspace_bytes"),
    *("is_stored", "why_not_stored"),
)


class AttemptAnswer(TypedDict):
    """One variant that was run; time_ms is the median of the samples, max_error max |y - y64| / max |y64|."""

    variant: str
    outcome: str
    detail: str
    time_ms: float | None
    samples_ms: list[float]
    workspace_bytes: int | None
    max_error: float | None


class ConvolutionAnswer(AttemptAnswer):
    """The variant whose y it is, everything else that was tried, and y where tensors were given.

    is_stored says whether the times are in the store, from which advice and training take them; if not,
    why_not_stored says why. n_compared says over how many outputs max_error was taken: of given tensors over all,
    unless that costs more than the convolution; then over some, half of them where most may cancel.
    """

    n_compared: int
    chosen_by: str
    is_stored: bool
    why_not_stored: str
    y: Any
    attempts: list[AttemptAnswer]
    problem: ProblemAnswer
    device: DeviceAnswer


def convolution_answer(convolution: Convolution) -> ConvolutionAnswer:
    """A convolution in JSON."""
    return _convolution(convolution, None if convolution.best.y is None else to_lists(convolution.best.y))


def convolution_metadata(convolution: Convolution) -> dict[str, str]:
    """A convolution beside its y in safetensors: strings as they are, everything else as JSON."""
    answer = {name: value for name, value in _convolution(convolution, None).items() if name != "y"}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in answer.items()}


def convolution_summary(convolution: Convolution) -> dict[str, str | float]:
    """The summary beside a y whose format has little room: known numbers and names."""
    answer = _convolution(convolution, None)
    return {name: value for name, value in answer.items() if name in _SUMMARY and isinstance(value, str | float | int)}


def _convolution(convolution: Convolution, y: Any) -> ConvolutionAnswer:
    measurement = convolution.best.measurement
    return {
        **_attempt(convolution.best),
        "n_compared": n_compared(measurement.problem, is_given=convolution.best.y is not None),
        "chosen_by": convolution.chosen_by,
        "is_stored": not convolution.why_not_stored,
        "why_not_stored": convolution.why_not_stored,
        "y": y,
        "attempts": [_attempt(attempt) for attempt in convolution.attempts],
        "problem": problem_answer(measurement.problem),
        "device": device_answer(measurement.device),
    }


def _attempt(attempt: Attempt) -> AttemptAnswer:
    measurement = attempt.measurement
    return {
        "variant": measurement.variant,
        "outcome": measurement.outcome,
        "detail": measurement.detail,
        "time_ms": _finite(measurement.time_ms),
        "samples_ms": list(measurement.samples_ms),
        "workspace_bytes": measurement.workspace_bytes,
        "max_error": _finite(measurement.max_error),
    }


def _finite(value: float | None) -> float | None:
    """The number if JSON can express it, else None."""
    return value if value is not None and math.isfinite(value) else None
