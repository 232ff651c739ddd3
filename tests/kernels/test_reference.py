"""The float64 reference: against the definition written out, and what its metric and tolerance let pass."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.comparison import max_error, sample_outputs
from conv_advisor.kernels.reference import convolve, convolve_at, random_operands, take
from conv_advisor.kernels.tolerance import tolerance
from tests.shapes import EDGE_SHAPES, edge_problem


def definition(problem, x, weight):
    """The sum of products, index by index, in NCHW."""
    y = np.zeros((problem.n, problem.k, problem.p, problem.q))
    filters, depth = problem.gemm_n, problem.c // problem.groups
    for n, k, p, q in np.ndindex(y.shape):
        for c, r, s in product(range(depth), range(problem.r), range(problem.s)):
            row = p * problem.stride_h - problem.pad_h + r * problem.dilation_h
            column = q * problem.stride_w - problem.pad_w + s * problem.dilation_w
            if 0 <= row < problem.h and 0 <= column < problem.w:
                y[n, k, p, q] += x[n, k // filters * depth + c, row, column] * weight[k, c, r, s]
    return y


@st.composite
def small_problems(draw):
    groups = draw(st.integers(1, 3))
    pair = {"h": st.integers(1, 7), "r": st.integers(1, 3), "stride_h": st.integers(1, 3)}
    pair |= {"pad_h": st.integers(0, 2), "dilation_h": st.integers(1, 3)}
    sizes = {name: draw(values) for name, values in pair.items()}
    sizes |= {name.replace("h", "w").replace("r", "s", name == "r"): draw(values) for name, values in pair.items()}
    try:
        return ConvProblem(
            n=draw(st.integers(1, 2)),
            c=groups * draw(st.integers(1, 2)),
            k=groups * draw(st.integers(1, 2)),
            groups=groups,
            layout=draw(st.sampled_from(Layout)),
            **sizes,
        )
    except InvalidProblem:
        assume(False)


@settings(max_examples=60, deadline=None)
@given(small_problems())
def test_it_is_the_definition(problem):
    x, weight = random_operands(problem, seed=0)
    order = (0, 1, 2, 3) if problem.layout is Layout.NCHW else (0, 3, 1, 2)
    expected = definition(problem, x.transpose(order).astype(np.float64), weight.transpose(order).astype(np.float64))
    y = convolve(problem, x, weight)
    assert y.shape == problem.y_shape
    assert y.dtype == np.float64
    np.testing.assert_allclose(y.transpose(order), expected, atol=1e-13)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", EDGE_SHAPES)
def test_chosen_outputs_are_those_of_the_whole(name, layout, monkeypatch):
    problem = edge_problem(name, DType.FLOAT32, layout)
    monkeypatch.setattr(reference, "_GATHER_ELEMENTS", 100 * problem.gemm_k)
    x, weight = random_operands(problem, seed=1)
    outputs = sample_outputs(problem, count=250)
    expected = take(problem, convolve(problem, x, weight), outputs)
    np.testing.assert_allclose(convolve_at(problem, x, weight, outputs), expected, atol=1e-12)


def test_sampled_outputs_hold_all_corners_and_all_borders():
    problem = ConvProblem(n=3, c=1, h=30, w=40, k=5, r=3, s=3, pad_h=1, pad_w=1)
    outputs = sample_outputs(problem, count=200, seed=4)
    chosen = set(map(tuple, outputs.tolist()))
    assert outputs.shape == (200, 4)
    assert outputs.dtype == np.int64
    assert len(chosen) == 200
    assert set(product((0, 2), (0, 4), (0, 29), (0, 39))) <= chosen
    for axis, end in ((2, 0), (2, 29), (3, 0), (3, 39)):
        assert (outputs[:, axis] == end).sum() > 20
    inside = ((outputs[:, 2:] > 0) & (outputs[:, 2:] < (29, 39))).all(axis=1)
    assert inside.sum() > 60
    assert (outputs >= 0).all()
    assert (outputs < (3, 5, 30, 40)).all()


def test_sampled_outputs_depend_on_the_seed_alone():
    problem = ConvProblem.parse("224-8-3-64-64")
    assert (sample_outputs(problem, seed=1) == sample_outputs(problem, seed=1)).all()
    assert (sample_outputs(problem, seed=1) != sample_outputs(problem, seed=2)).any()


def test_a_small_output_is_sampled_whole():
    problem = ConvProblem.parse("4-2-3-3-1")
    outputs = sample_outputs(problem, count=96)
    assert sorted(map(tuple, outputs.tolist())) == list(np.ndindex(2, 3, 4, 4))


def test_infinite_weight_over_padding_is_nan():
    problem = ConvProblem.parse("3-1-3-1-1")
    weight = np.ones(problem.weight_shape, np.float32)
    weight[0, 0, 0, 0] = np.inf
    y = convolve(problem, np.ones(problem.x_shape, np.float32), weight)[0, 0]
    assert np.isnan(y[0]).all()
    assert np.isnan(y[:, 0]).all()
    assert (y[1:, 1:] == np.inf).all()
    outputs = sample_outputs(problem)
    np.testing.assert_array_equal(convolve_at(problem, np.ones(problem.x_shape), weight, outputs), y.ravel())


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("y", "expected", "error"),
    [
        ([1.0, -4.5], [1.0, -4.0], 0.125),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, INF], [1.0, 2.0], INF),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.5, -INF], [1.0, -INF], 0.5),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([1.0, 2.0], [1.0, INF], INF),
        ([1.0, NAN], [1.0, INF], INF),
        ([NAN, INF], [NAN, INF], 0.0),
        ([1.0, INF], [1.0, 1e39], 0.0),
        ([1.0, 1e38], [1.0, 1e39], INF),
    ],
)
def test_max_error(y, expected, error):
    assert max_error(np.array(y, np.float32), np.array(expected)) == error


@pytest.mark.parametrize("dtype", DType)
def test_operands_are_rounded_to_the_dtype(dtype):
    problem = ConvProblem.parse("8-2-3-4-5", dtype=dtype, layout="nhwc")
    x, weight = random_operands(problem, seed=3)
    assert x.shape == problem.x_shape
    assert weight.shape == problem.weight_shape
    assert x.dtype == weight.dtype == reference.HOST_DTYPE[dtype]
    assert x.nbytes == problem.x_bytes
    assert x.min() < -0.9
    assert x.max() > 0.9
    assert np.abs(x).max() <= 1
    assert (random_operands(problem, seed=3)[0] == x).all()
    assert (random_operands(problem, seed=4)[0] != x).any()


@pytest.mark.parametrize(
    ("dtype", "depth"),
    [
        *product((DType.FLOAT32, DType.TF32, DType.FLOAT16), (1, 16, 128, 1024)),
        *product((DType.BFLOAT16,), (1, 16, 128)),
    ],
)
def test_a_lost_tap_is_caught(dtype, depth):
    problem = ConvProblem(n=1, c=depth, h=14, w=14, k=8, r=3, s=3, pad_h=1, pad_w=1, dtype=dtype)
    x, weight = random_operands(problem, seed=5)
    expected = convolve(problem, x, weight)
    weight[:, depth // 2, 1, 1] = 0
    assert max_error(convolve(problem, x, weight).astype(x.dtype), expected) > tolerance(problem)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("depth", [1, 1024])
def test_rounding_the_result_is_let_pass(dtype, depth):
    problem = ConvProblem.parse(f"14-1-1-8-{depth}", dtype=dtype)
    x, weight = random_operands(problem, seed=6)
    y = convolve(problem, x, weight)
    assert max_error(y.astype(x.dtype), y) <= tolerance(problem)


@pytest.mark.parametrize("depth", [1, 64, 512])
def test_winograd_of_4x4_tiles_in_float32_is_let_pass(depth):
    problem = ConvProblem(n=1, c=depth, h=18, w=18, k=8, r=3, s=3)
    x, weight = random_operands(problem, seed=7)
    assert max_error(winograd_4x4(x, weight), convolve(problem, x, weight)) <= tolerance(problem)


def winograd_4x4(x, weight):
    """F(4×4, 3×3) in float32, valid outputs only (Lavin and Gray, arXiv:1509.09308)."""
    bt = np.array(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        np.float32,
    )
    g24 = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float32)
    g = g24 / np.float32(24)
    at = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
    tiles = np.lib.stride_tricks.sliding_window_view(x, (6, 6), axis=(2, 3))[:, :, ::4, ::4]
    m = np.einsum("nctuij,kcij->nktuij", bt @ tiles @ bt.T, g @ weight @ g.T, optimize=True)
    y = at @ m @ at.T
    n, k, rows, columns = y.shape[:4]
    return y.transpose(0, 1, 2, 4, 3, 5).reshape(n, k, 4 * rows, 4 * columns)
