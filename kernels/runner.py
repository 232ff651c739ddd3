"""The interface of a device that runs and times launches; one implementation per kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from conv_advisor.data.measurement import Device, L2State, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Launch, Variant


@dataclass
class Operands:
    """The tensors of one problem on the device, and the float64 reference outputs.

    Parameters
    ----------
    x, weight, y : array
        In the problem's memory order, on the device.
    outputs : int64 array of shape (n_compared, 4)
        Indices (n, k, p, q) of the compared outputs.
    reference : float64 array of shape (n_compared,)
    is_finite : bool
        Whether every output must be finite, as with random operands; a caller's operands may rightly overflow.
    bias, residual : array, optional
        On the device, where the epilogue adds them.
    scale : float
        The largest magnitude of a compared sum before the activation: errors are relative to it where it is larger than
        every output.
    """

    x: Any
    weight: Any
    y: Any
    outputs: np.ndarray
    reference: np.ndarray
    is_finite: bool = True
    bias: Any = None
    residual: Any = None
    scale: float = 0.0

    @property
    def tensors(self) -> tuple[Any, ...]:
        """A launch's arguments: x, weight and y; then, if it adds either, bias and residual, None for a missing one."""
        if self.bias is None and self.residual is None:
            return self.x, self.weight, self.y
        return self.x, self.weight, self.y, self.bias, self.residual


@dataclass(frozen=True)
class FirstRun:
    """One verified launch.

    Parameters
    ----------
    max_error : float
        max |y - y64| / max |y64| over the compared outputs; inf where an output was not written or not finite.
    launch_ms : float
        Time of one launch, host overhead included: an upper bound.
    """

    max_error: float
    launch_ms: float


@dataclass(frozen=True)
class Samples:
    """The samples of one launch in ms, and the clock before and after."""

    samples_ms: tuple[float, ...]
    clock_start_mhz: int | None
    clock_end_mhz: int | None


class Runner(Protocol):
    """One device, owned by this process."""

    @property
    def device(self) -> Device:
        """The fingerprint of the device."""

    @property
    def floor_ms(self) -> float:
        """Time of an empty launch under `sample`, ms."""

    def make_operands(self, problem: ConvProblem, seed: int) -> Operands:
        """Random operands, uniform in (-1, 1)."""

    def upload(self, problem: ConvProblem, inputs: Mapping[str, np.ndarray]) -> Operands:
        """Operands from host arrays in the problem's memory order, keyed by their names in its `shapes`."""

    def download(self, problem: ConvProblem, operands: Operands) -> np.ndarray:
        """The output as a host array."""

    def prepare(
        self,
        variant: Variant,
        problem: ConvProblem,
        workspace_limit_bytes: int,
        plan: Mapping[str, Any] | None = None,
    ) -> Launch:
        """Compile and allocate; given the plan of a measurement, rebuild exactly that plan. Raises RunError."""

    def plans(self, problem: ConvProblem) -> Sequence[tuple[str, dict[str, Any]]]:
        """Every plan that the device's library offers, with the id of its variant; empty where it offers none."""

    def first_run(self, problem: ConvProblem, launch: Launch, operands: Operands) -> FirstRun:
        """Poison y, launch and compare; then launch again to estimate the time."""

    def sample(
        self, problem: ConvProblem, launch: Launch, operands: Operands, launch_ms: float, rule: StopRule, l2: L2State
    ) -> Samples:
        """Time launches until the stop rule is met."""

    def picks(self, problem: ConvProblem, workspace_limit_bytes: int) -> Sequence[Pick]:
        """The choices of the device's own library."""

    def release(self) -> None:
        """Give back cached memory between problems."""
