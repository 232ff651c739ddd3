"""Somebody's own operands: over which outputs the error is taken, and what an infinity is."""

from __future__ import annotations

import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.cpu.runner import CpuRunner
from conv_advisor.kernels.variant import Launch

FEW = ConvProblem(2, 8, 20, 20, 16, 3, 3, pad_h=1, pad_w=1)
MANY = ConvProblem(1, 256, 64, 64, 1024, 3, 3, pad_h=1, pad_w=1)
"""3.8 million outputs, of 9.7 billion products."""


def error_of(problem: ConvProblem, x: np.ndarray, weight: np.ndarray, y: np.ndarray) -> float:
    """What the runner says of a launch that gives this y."""
    runner = CpuRunner()
    operands = runner.upload(problem, {"x": x, "weight": weight})
    return runner.first_run(problem, Launch(lambda _x, _weight, out: np.copyto(out, y)), operands).max_error


def right(problem: ConvProblem, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return reference.convolve(problem, x, weight).astype(x.dtype)


@pytest.mark.parametrize("layout", Layout)
def test_an_error_at_any_one_place_is_found(layout: Layout) -> None:
    problem = ConvProblem(2, 8, 20, 20, 16, 3, 3, pad_h=1, pad_w=1, layout=layout)
    x, weight = reference.random_operands(problem, seed=1)
    expected = right(problem, x, weight)
    assert error_of(problem, x, weight, expected) < 1e-6
    random = np.random.default_rng(0)
    for place in random.integers(0, expected.size, 20):
        y = expected.copy()
        y.ravel()[place] += np.abs(expected).max()
        assert error_of(problem, x, weight, y) == pytest.approx(1.0, rel=1e-4)
    assert comparison.n_compared(problem, is_given=True) == expected.size
    assert comparison.n_compared(problem, is_given=False) == comparison.SAMPLES


def test_where_not_all_are_compared_those_that_cancel_most_are() -> None:
    problem = MANY
    x, weight = reference.random_operands(problem, seed=1)
    x[0, :, 30:33, 40:43] *= 1e4
    outputs = comparison.given_outputs(problem, x, weight)
    assert len(outputs) == comparison.n_compared(problem, is_given=True) == comparison.GIVEN_SAMPLES
    assert len({tuple(each) for each in outputs.tolist()}) == comparison.GIVEN_SAMPLES
    strongest = int(np.square(weight).sum(axis=(1, 2, 3)).argmax())
    assert [0, strongest, 31, 41] in outputs.tolist()
    assert [0, 1023, 63, 63] in outputs.tolist(), "a corner"


def test_a_cancellation_at_one_place_is_seen() -> None:
    x, weight = reference.random_operands(FEW, seed=2)
    x[1, :, 7, 9], weight[3] = 3e4, 0
    weight[3, 0, 1, 1], weight[3, 1, 1, 1] = 1e4, -1e4
    expected = reference.convolve(FEW, x, weight)
    assert abs(expected[1, 3, 7, 9]) < 1
    y = expected.astype(np.float32)
    y[1, 3, 7, 9] += 0.169 * np.abs(expected).max()
    assert error_of(FEW, x, weight, y) == pytest.approx(0.169, rel=1e-3)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_an_overflow_that_is_right_is_right(dtype: DType) -> None:
    problem = ConvProblem(2, 8, 20, 20, 16, 3, 3, pad_h=1, pad_w=1, dtype=dtype)
    x, weight = reference.random_operands(problem, seed=3)
    x[0, :, 5, 5] = np.finfo(x.dtype).max
    weight[2, :, 1, 1] = 1.0
    y = right(problem, x, weight)
    assert np.isinf(y).any()
    assert error_of(problem, x, weight, y) < 1e-3
    wrong = y.copy()
    wrong[np.isinf(y)] *= -1
    assert error_of(problem, x, weight, wrong) == np.inf
    wrong = y.copy()
    wrong[1, 0, 0, 0] = np.inf
    assert error_of(problem, x, weight, wrong) == np.inf
    wrong[1, 0, 0, 0] = np.nan
    assert error_of(problem, x, weight, wrong) == np.inf


@pytest.mark.parametrize("layout", Layout)
def test_an_infinity_that_is_not_among_those_compared_is_looked_at(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_MOST_OUTPUTS", 100)
    problem = ConvProblem(2, 8, 20, 20, 16, 3, 3, pad_h=1, pad_w=1, dtype=DType.FLOAT16, layout=layout)
    x, weight = reference.random_operands(problem, seed=3)
    x[0, 5, 5, :] = 6e4
    weight[...] = np.abs(weight)
    y = right(problem, x, weight)
    assert np.isinf(y).any()
    assert error_of(problem, x, weight, y) < 1e-3
    compared = {tuple(each) for each in comparison.given_outputs(problem, x, weight).tolist()}
    every = np.stack(np.unravel_index(np.arange(y.size), (2, 16, 20, 20)), axis=1).tolist()
    other = np.array([next(each for each in every if tuple(each) not in compared and each[0] == 1)])
    index = tuple(other[0] if layout is Layout.NCHW else other[0][[0, 2, 3, 1]])
    y[index] = np.inf
    assert error_of(problem, x, weight, y) == np.inf
