"""How long the layers of a sweep take, roughly: enough to begin with the longest, so that none is left at the end."""

from __future__ import annotations

from typing import Final

from conv_advisor.app.sweep.attempt import Layer, Trial
from conv_advisor.data.measurement import Device
from conv_advisor.kernels import catalog

_ATTEMPT_MS: Final = 10.0
"""An attempt without its launches: its plan, its verification, and samples of the shortest launches."""
_LAUNCHES: Final = 20
"""Launches of an attempt where they are long: four verified ones, and what the stop rule allows."""
_FLOPS_PER_BYTE: Final = 15
"""Operations in float32 in the time of one byte: the peak over the bandwidth of an A100 is 12, of an H200 14."""
_LANES: Final = {"cuda": 128, "cpu": 16}
"""Multiply-adds of a processor in one cycle."""
_USUAL_MHZ: Final = 2000


def expected_ms(layer: Layer, device: Device) -> float:
    """Time of a layer's attempts by the roofline of the device's fingerprint, over the variants that apply."""
    return sum(_trial_ms(trial, device) for trial in layer)


def _trial_ms(trial: Trial, device: Device) -> float:
    problem = trial.problem
    lanes = max(1, device.processors) * _LANES.get(device.kind, 1)
    flops_per_ms = 2 * lanes * (device.max_clock_mhz or _USUAL_MHZ) * 1e3
    launch_ms = max(problem.flops, _FLOPS_PER_BYTE * problem.bytes) / flops_per_ms
    known = [catalog.VARIANTS[name] for name in trial.variant_ids if name in catalog.VARIANTS]
    n_apply = sum(variant.why_not(problem, device) is None for variant in known)
    return n_apply * (_ATTEMPT_MS + _LAUNCHES * launch_ms)
