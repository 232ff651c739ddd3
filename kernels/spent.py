"""Where a worker's time goes while it measures: seconds of preparing launches, and of measuring them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Spent:
    """Seconds of one process; what is in neither is the host's own work between them.

    Parameters
    ----------
    preparing_s : float
        Choosing configurations, compiling or loading kernels, building plans, allocating workspaces.
    measuring_s : float
        Making operands and their reference, the verified launches, and the timed ones.
    """

    preparing_s: float = 0.0
    measuring_s: float = 0.0

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Count the time inside as preparing, also where it ends with an error."""
        begin_s = time.perf_counter()
        try:
            yield
        finally:
            self.preparing_s += time.perf_counter() - begin_s

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time inside as measuring, also where it ends with an error."""
        begin_s = time.perf_counter()
        try:
            yield
        finally:
            self.measuring_s += time.perf_counter() - begin_s
