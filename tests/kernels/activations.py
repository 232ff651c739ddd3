"""What an activation of epilogue.cuh is held to, however it was computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from conv_advisor.data.epilogue import Activation
from conv_advisor.kernels import reference

Applied = Callable[[Activation, np.ndarray], np.ndarray]
"""An activation of float32 values."""


def worst_error(applied: Applied, activation: Activation, most: float, count: int) -> float:
    """The largest error against float64, in units of the larger of 1 and |value|: up to `most`, and of large values."""
    large = np.array([0.0, 1e-30, 1e4, 65504.0, 1e13, 3e38], np.float32)
    values = np.concatenate([np.linspace(-most, most, count, dtype=np.float32), large, -large])
    expected = reference.activate(activation, values.astype(np.float64))
    errors = np.abs(applied(activation, values).astype(np.float64) - expected) / np.maximum(1, np.abs(values))
    return float(errors.max())


def assert_not_a_number_stays_so_and_infinity_is_no_error(applied: Applied, activation: Activation) -> None:
    not_a_number, infinite = applied(activation, np.array([np.nan, np.inf], np.float32))
    assert np.isnan(not_a_number)
    assert infinite == {Activation.RELU6: 6.0, Activation.SIGMOID: 1.0}.get(activation, np.inf)
