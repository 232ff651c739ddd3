"""The time of blocks that come to a multiprocessor in waves of as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def in_waves(before_us: Any, waves: Any, rest: Any, resident: Any, wave_us: Callable[[Any], Any]) -> Any:
    """Time of whole waves one after the other and of what is left, with what comes before them.

    Parameters
    ----------
    before_us : float or float array
        Time of what comes before the first.
    waves : int or int array
        Whole ones.
    rest : int or int array
        Blocks of a multiprocessor that are left after them; 0 where none are.
    resident : int or int array
        Blocks of a whole wave on a multiprocessor.
    wave_us : callable (blocks) -> float or float array
        What so many blocks of a multiprocessor take together.
    """
    return before_us + waves * wave_us(resident) + np.where(rest, wave_us(rest), 0.0)


def stages_us(stages: Any, latency_us: Any, busy_us: Any, blocks: Any) -> Any:
    """Time of stages: each takes its latency, or as long as those of so many blocks keep the multiprocessor busy."""
    return stages * np.maximum(latency_us, blocks * busy_us)
