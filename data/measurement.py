"""One attempt to run one variant on one problem, and the device it ran on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from statistics import median
from typing import Any, Final

from conv_advisor.data.problem import ConvProblem

LEAST_UNLAUNCHED_SLOWDOWN: Final = 10.0
"""Least slowdown against the best, at a smaller batch, of a pruned variant without a sample."""


class Outcome(StrEnum):
    """What happened to one attempt; a closed list."""

    MEASURED = "measured"
    """Verified against the reference, then timed."""
    PRUNED = "pruned"
    """So far behind the best that it was not timed further: its one sample is a verified launch; with no sample, it was
    far behind at a smaller batch already, as the detail says."""
    UNSTEADY = "unsteady"
    """Timed while the device was throttled or shared: its samples are kept, but its time does not count. The detail
    says what was seen; `data.steadiness` has the bounds."""
    NOT_APPLICABLE = "not_applicable"
    """The variant's own rule says no; detail has the reason."""
    NOT_SUPPORTED = "not_supported"
    """The library refused the problem."""
    WORKSPACE_EXCEEDED = "workspace_exceeded"
    """It needs more workspace than the limit; workspace_bytes says how much."""
    OUT_OF_MEMORY = "out_of_memory"
    COMPILE_FAILED = "compile_failed"
    WRONG_RESULT = "wrong_result"
    """max_error is above the tolerance, or some output was not finite or not written."""
    LAUNCH_FAILED = "launch_failed"
    """The device's context became unusable."""
    CRASHED = "crashed"
    """The worker process died."""
    TIMED_OUT = "timed_out"
    """The worker overran its deadline and was killed."""


class L2State(StrEnum):
    """What the L2 cache holds when a timed launch starts."""

    WARM = "warm"
    """The operands of the previous launch, which are the same."""
    COLD = "cold"
    """Other operands: launches rotate over buffers that together exceed the cache."""


@dataclass(frozen=True)
class Device:
    """The fingerprint of the hardware, driver and libraries that a measurement was taken with.

    Parameters
    ----------
    id : str
        The name people use, e.g. ``nvidia-h200``, ``cpu``.
    name : str
        The name the device gives itself.
    kind : str
        ``cuda`` or ``cpu``.
    capability : str
        Compute capability, e.g. ``9.0``; empty on a CPU.
    processors : int
        Multiprocessors of a GPU, logical cores of a CPU.
    memory_bytes, l2_bytes, shared_memory_per_block_bytes : int
        0 where unknown.
    max_clock_mhz : int
        Highest SM clock; 0 where unknown.
    versions : dict of str to str
        Driver and libraries, e.g. ``{"driver": "580.159.04", "cudnn": "9.19.0", "cupy": "14.2.0"}``.
    """

    id: str
    name: str
    kind: str
    capability: str = ""
    processors: int = 0
    memory_bytes: int = 0
    l2_bytes: int = 0
    shared_memory_per_block_bytes: int = 0
    max_clock_mhz: int = 0
    versions: dict[str, str] = field(default_factory=dict, hash=False)

    @cached_property
    def json(self) -> str:
        """Canonical JSON of all fields."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ when anything about the device or its libraries differs."""
        return hashlib.sha256(self.json.encode()).hexdigest()[:16]

    @property
    def software(self) -> str:
        """Its versions as text."""
        return " ".join(f"{name} {version}" for name, version in sorted(self.versions.items()))

    @classmethod
    def from_json(cls, text: str) -> Device:
        """Read what `json` wrote.

        Raises
        ------
        ValueError, TypeError
            The text is no JSON, or not of a device.
        """
        device = cls(**json.loads(text))
        for attribute in fields(cls):
            value, kind = getattr(device, attribute.name), _KINDS[str(attribute.type)]
            if not isinstance(value, kind):
                raise TypeError(f"{attribute.name} is {value!r}; allowed: {attribute.type}")
        return device


_KINDS: Final[dict[str, type]] = {"str": str, "int": int, "dict[str, str]": dict}


@dataclass(frozen=True)
class Measurement:
    """One attempt: what ran, where, what happened, and every sample.

    Parameters
    ----------
    problem : ConvProblem
    variant : str
        Stable variant id.
    device : Device
    outcome : Outcome
    detail : str
        Why, in words, where the outcome is not ``measured``.
    samples_ms : tuple of float
        Device time of one launch, one value per timed region, ms; empty unless measured, pruned or unsteady.
    workspace_bytes : int or None
        Scratch memory the variant used or asked for; None where it never said.
    max_error : float or None
        max |y - y64| / max |y64| over the compared outputs, y64 from float64.
    plan : dict
        What rebuilds the exact plan, together with the id, e.g. ``{"engine": 62, "knobs": {"2": 0}}``.
    l2 : L2State
    floor_ms : float or None
        Time of an empty kernel under the same harness, ms.
    clock_start_mhz, clock_end_mhz : int or None
        SM clock before and after the samples.
    measured_at : datetime
        UTC.
    run_id : str
        The sweep or request it belongs to.
    """

    problem: ConvProblem
    variant: str
    device: Device
    outcome: Outcome
    detail: str = ""
    samples_ms: tuple[float, ...] = ()
    workspace_bytes: int | None = None
    max_error: float | None = None
    plan: dict[str, Any] = field(default_factory=dict, hash=False)
    l2: L2State = L2State.WARM
    floor_ms: float | None = None
    clock_start_mhz: int | None = None
    clock_end_mhz: int | None = None
    measured_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    run_id: str = ""

    @property
    def time_ms(self) -> float | None:
        """Median of the samples; None where there are none."""
        return median(self.samples_ms) if self.samples_ms else None

    @property
    def noise(self) -> float | None:
        """Relative standard error of `time_ms`; None where there are no samples."""
        return relative_noise(self.samples_ms) if self.samples_ms else None


def relative_noise(samples_ms: Sequence[float]) -> float:
    """Relative standard error of the median of samples, from their median absolute deviation.

    Parameters
    ----------
    samples_ms : sequence of float
        At least one; a single sample says nothing about its spread, which counts as 1.

    Notes
    -----
    1.4826 turns the median absolute deviation of a normal sample into its standard deviation; sqrt(pi / 2) turns the
    standard error of the mean into that of the median.
    """
    if len(samples_ms) < 2:
        return 1.0
    middle = median(samples_ms)
    deviation = 1.4826 * median(abs(sample - middle) for sample in samples_ms)
    return math.sqrt(math.pi / 2) * deviation / (middle * math.sqrt(len(samples_ms)))


@dataclass(frozen=True)
class Pick:
    """What another library's rule chose for a problem, to compare advice with.

    Parameters
    ----------
    problem : ConvProblem
    device : Device
    source : str
        ``cudnn.heuristic_v7``, ``cudnn.graph.heuristic_a`` or ``cudnn.graph.heuristic_b``.
    variant : str
        The id of the variant it chose.
    plan : dict
        As in `Measurement`.
    run_id : str
    """

    problem: ConvProblem
    device: Device
    source: str
    variant: str
    plan: dict[str, Any] = field(default_factory=dict, hash=False)
    run_id: str = ""
