"""When tuning pays against advice, which costs none."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Trial:
    """One layer as advised, as a library runs it untuned, and as it runs it tuned; timed in one run.

    Parameters
    ----------
    advised_ms, untuned_ms, tuned_ms : float
        Device time of a call.
    untuned_call_s, tuned_call_s : float
        Wall time of the first call; that of the tuned one includes the tuning.
    """

    advised_ms: float
    untuned_ms: float
    tuned_ms: float
    untuned_call_s: float
    tuned_call_s: float

    @property
    def tuning_s(self) -> float:
        """Seconds that the tuned first call took beyond a later call."""
        return max(0.0, self.tuned_call_s - self.tuned_ms / 1e3)

    @property
    def untuned_s(self) -> float:
        """Seconds that the untuned first call took beyond a later call."""
        return max(0.0, self.untuned_call_s - self.untuned_ms / 1e3)

    @property
    def calls_to_pay(self) -> float:
        """Calls after which the tuning has paid against advice; infinite where it never does."""
        gain_s = (self.advised_ms - self.tuned_ms) / 1e3
        return math.ceil(self.tuning_s / gain_s) if gain_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Worth:
    """When tuning pays, over many layers.

    Parameters
    ----------
    n_layers : int
    share_never : float
        Share of the layers on which the tuned choice is no faster than the advised one.
    calls : float or None
        Calls after which tuning has paid, median over the other layers; None where there are none.
    tuning_s : float
        Median over the layers of the first call that tunes, less one later call.
    total_s : float
        What tuning takes on all layers.
    untuned_s : float
        Median of the untuned first call, less one later call: what tuning_s includes beside the tuning.
    """

    n_layers: int
    share_never: float
    calls: float | None
    tuning_s: float
    total_s: float
    untuned_s: float


def worth(trials: Iterable[Trial]) -> Worth | None:
    """Summarise; None where there is no layer."""
    trials = list(trials)
    if not trials:
        return None
    finite = [calls for trial in trials if math.isfinite(calls := trial.calls_to_pay)]
    tuning_s = [trial.tuning_s for trial in trials]
    return Worth(
        n_layers=len(trials),
        share_never=1 - len(finite) / len(trials),
        calls=median(finite) if finite else None,
        tuning_s=median(tuning_s),
        total_s=math.fsum(tuning_s),
        untuned_s=median(trial.untuned_s for trial in trials),
    )
