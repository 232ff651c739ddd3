"""The time of blocks that run on a multiprocessor in waves of as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def in_waves(before_us: Any, waves: Any, remaining: Any, resident: Any, wave_us: Callable[[Any], Any]) -> Any:
    """Time of whole waves one after the other, a last partial wave, and a fixed time before them.

    Parameters
    ----------
    before_us : float or float array
        Time before the first wave.
    waves : int or int array
        Number of whole waves.
    remaining : int or int array
        Blocks of a multiprocessor in the last, partial wave; 0 where there is none.
    resident : int or int array
        Blocks of a whole wave on a multiprocessor.
    wave_us : callable (blocks) -> float or float array
        Time that ``blocks`` blocks of a multiprocessor take together.
    """
    return before_us + waves * wave_us(resident) + np.where(remaining, wave_us(remaining), 0.0)


def stages_us(stages: Any, latency_us: Any, busy_us: Any, blocks: Any) -> Any:
    """Time of stages: each takes its latency, or the time in which the multiprocessor works off one for each block."""
    return stages * np.maximum(latency_us, blocks * busy_us)
