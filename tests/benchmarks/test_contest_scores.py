"""Scores of a few rows, worked by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.contest.scores import H200, N_CONFIGURATIONS, TARGETS, batch_class, breakdown, missing, roofline, score
from conv_advisor.data.networks import problems
from conv_advisor.data.problem import ConvProblem
from tests.benchmarks.made_up import row


def test_the_score_of_four_layers() -> None:
    found = score(
        [
            row("14-1-3-256-128", 8.0, 1.0),
            row("7-1-1-32-832", 2.0, 1.0),
            row("14-8-3-256-128", 1.0, 4.0),
            row("14-16-3-256-128", 1.0, None),
            row("14-32-3-256-128", None, 1.0),
        ]
    )
    assert (found.rows, found.without_ours) == (4, 1)
    assert found.wins == 0.5
    assert found.gain == pytest.approx(16 ** (1 / 4))  # 8, 2, and twice 1: cuDNN itself is the better of both
    assert found.one_image == pytest.approx(4.0)
    assert found.one_image_best == 8.0
    assert found.one_image_wins == 1.0


def test_the_score_of_nothing_is_no_number() -> None:
    found = score([])
    assert found.rows == 0
    assert all(math.isnan(value) for value in (found.wins, found.gain, found.one_image, found.one_image_best))


def test_the_breakdown_is_by_filter_and_batch() -> None:
    rows = [row(layer, 1.0, 1.0) for layer in ("7-8-1-8-8", "7-1-3-8-8", "7-16-1-8-8", "7-256-1-8-8", "7-64-1-8-8")]
    assert {key: len(group) for key, group in breakdown(rows).items()} == {
        (1, "8-16"): 2,
        (1, "32-64"): 1,
        (1, "128-256"): 1,
        (3, "1"): 1,
    }
    assert [batch_class(n) for n in (1, 8, 16, 32, 64, 128, 256)] == [
        *("1", "8-16", "8-16", "32-64", "32-64", "128-256", "128-256")
    ]


def test_what_is_missing_is_told_by_dtype_and_layout() -> None:
    wanted = [ConvProblem.parse(f"7-{n}-1-32-832") for n in (1, 8)]
    wanted.append(ConvProblem.parse("7-1-1-32-832", dtype="float16"))
    assert missing([row("7-1-1-32-832", 1.0, 1.0)], wanted) == {
        ("float32", "nchw"): [wanted[1]],
        ("float16", "nchw"): [wanted[2]],
    }


def test_the_roofline_of_a_layer_is_its_slowest_resource() -> None:
    large = ConvProblem.parse("56-256-3-256-256")
    assert roofline(large).bound == "arithmetic"
    assert roofline(large).least_ms == pytest.approx(2 * 256 * 56 * 56 * 256 * 256 * 9 / 67e12 * 1e3)
    wide = ConvProblem.parse("56-256-1-64-64", dtype="float16")
    assert roofline(wide).bound == "memory"
    assert roofline(wide).least_ms == pytest.approx(2 * (2 * 256 * 64 * 56 * 56 + 64 * 64) / 4.3e12 * 1e3)
    assert roofline(ConvProblem.parse("7-1-1-32-832")).bound == "launch"
    assert H200.flops["tf32"] == H200.flops["float16"] / 2


def test_the_targets_are_those_of_the_602_configurations() -> None:
    assert len(problems("seeds")) == N_CONFIGURATIONS
    assert {column: (target.wins, target.gain, target.one_image) for column, target in TARGETS.items()} == {
        ("float32", "nchw"): (0.70, 1.5, 3.0),
        ("tf32", "nchw"): (0.60, 1.4, 2.0),
        ("float16", "nchw"): (0.60, 1.5, 2.0),
        ("bfloat16", "nchw"): (0.60, 1.5, 2.0),
        ("float16", "nhwc"): (0.65, 1.2, 1.5),
        ("bfloat16", "nhwc"): (0.65, 1.2, 1.5),
        ("tf32", "nhwc"): (None, 1.15, None),
        ("float32", "nhwc"): (None, 1.5, None),
    }
