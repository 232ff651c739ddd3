"""Features: finite, ordered, rounded as scikit-learn rounds, and worked by hand once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.models.costs import roofline_ms
from conv_advisor.models.tree.features import DTYPES, FEATURES, Quantities, code_of, feature_matrix, features
from tests.shapes import EDGE_SHAPES, edge_problem


def test_a_layer_worked_by_hand() -> None:
    problem = ConvProblem.parse("14-2-3-96-20", dtype="float16", layout="nhwc")
    found = dict(zip(FEATURES, features(problem), strict=True))
    expected = {
        "dtype": 2,
        "is_nhwc": 1,
        "log2_n": 1,
        "log2_k": math.log2(96),
        "stride": 1,
        "log2_pixels": math.log2(196),
        "log2_gemm_m": math.log2(392),
        "log2_gemm_n": math.log2(96),
        "log2_gemm_k": math.log2(180),
        "log2_flops": math.log2(2 * 392 * 96 * 180),
        "log2_x_bytes": math.log2(2 * 20 * 196 * 2),
        "log2_tiles_64": math.log2(7 * 2),
        "log2_tiles_128": math.log2(4 * 1),
        "log2_steps": math.log2(6 / 14),
        "fill_m": 392 / 512,
        "fill_n_64": 96 / 128,
        "fill_winograd": 1,
        "fill_fft": (14 / 30) ** 2,
        "aligned_c": 2,
        "aligned_k": 5,
        "aligned_pixels": 2,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("channels", "expected"), [(1, 0), (6, 1), (8, 3), (24, 3), (96, 5), (64, 6), (384, 6)])
def test_alignment_is_told_up_to_64_and_as_before_up_to_8(channels: int, expected: int) -> None:
    found = features(ConvProblem.parse(f"7-1-1-{channels}-8"))[FEATURES.index("aligned_k")]
    assert found == expected
    assert 2 ** min(found, 3) == math.gcd(channels, 8)


def test_every_dtype_has_its_code() -> None:
    assert set(DTYPES) == set(DType)
    codes = [features(ConvProblem.parse("7-1-1-8-8", dtype=dtype))[FEATURES.index("dtype")] for dtype in DTYPES]
    assert codes == [0, 1, 2, 3]


@pytest.mark.parametrize("name", EDGE_SHAPES)
def test_edge_shapes_have_finite_float32_features(name: str) -> None:
    problem = edge_problem(name, DType.BFLOAT16, Layout.NHWC)
    values = features(problem)
    assert len(values) == len(FEATURES)
    assert all(math.isfinite(value) and value == float(np.float32(value)) for value in values)


def test_matrix_has_the_same_values() -> None:
    problems = [edge_problem(name, DType.TF32, Layout.NCHW) for name in EDGE_SHAPES]
    matrix = feature_matrix(problems)
    assert matrix.dtype == np.float32
    assert matrix.tolist() == [list(features(problem)) for problem in problems]
    alike = Quantities(sizes_of(problems), *code_of(DType.TF32, Layout.NCHW))
    assert alike.features().tolist() == matrix.tolist()
    assert alike.roofline_ms(2.0, 3.0, 1e9).tolist() == [roofline_ms(problem, (2.0, 3.0, 1e9)) for problem in problems]
    assert feature_matrix([]).shape == (0, len(FEATURES))
