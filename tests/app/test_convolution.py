"""What is kept of the attempts of one convolution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from conv_advisor.app.convolve.convolution import Attempt, _add
from conv_advisor.data.measurement import Outcome
from tests.app.serving import SMALL, recording

MEASURED = recording(SMALL)[0]


def attempt(time_ms: float, outcome: Outcome = Outcome.MEASURED) -> Attempt:
    samples = () if outcome is Outcome.NOT_SUPPORTED else (time_ms,)
    y = None if outcome is Outcome.NOT_SUPPORTED else np.full(1, time_ms)
    return Attempt(replace(MEASURED, outcome=outcome, samples_ms=samples), y)


def test_only_the_best_attempt_keeps_its_y() -> None:
    attempts: list[Attempt] = []
    for tried in (
        attempt(1.0, Outcome.WRONG_RESULT),
        attempt(3.0, Outcome.NOT_SUPPORTED),
        attempt(2.0),
        attempt(4.0),
        attempt(1.5),
        attempt(1.5),
    ):
        _add(attempts, tried)
        (kept,) = [each for each in attempts if each.y is not None] or [None]
        assert kept is min(attempts, key=lambda each: each.rank)
    assert [each.measurement.time_ms for each in attempts] == [1.0, None, 2.0, 4.0, 1.5, 1.5]
    assert [each.y is not None for each in attempts] == [False, False, False, False, True, False]
