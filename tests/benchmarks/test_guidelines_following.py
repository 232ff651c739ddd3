"""What following a guideline costs, and the numbers the papers found, on tables worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.guidelines import findings
from benchmarks.guidelines.findings import Book
from benchmarks.guidelines.following import Followed, Verdict, follow, verdict_of
from benchmarks.guidelines.statements import STATEMENTS, about, at_least, at_most
from benchmarks.guidelines.study import GUIDELINES, Guideline
from tests.benchmarks.tables import costs_of

PLAIN, PRECOMPUTED, GEMM = "cudnn.implicit_gemm", "cudnn.implicit_precomp_gemm", "cudnn.gemm"
FFT, WINOGRAD, CUCONV = "cudnn.fft", "cudnn.winograd_nonfused", "cuda.cuconv"
FIRST: Guideline = GUIDELINES[0]
"""Implicit GEMM for 1x1 at batch 1."""


def test_a_guideline_followed() -> None:
    costs = costs_of(
        {
            "7-1-1-32-832": {PLAIN: 1.0, PRECOMPUTED: 2.0, "cuda.pointwise": 0.5},
            "7-1-1-48-832": {PLAIN: 1.04, PRECOMPUTED: 1.0},
            "7-1-1-64-832": {PLAIN: 4.0, PRECOMPUTED: 1.0},
            "7-1-1-96-832": {PRECOMPUTED: 1.0},
            "7-8-1-96-832": {PLAIN: 1.0, PRECOMPUTED: 9.0},
        }
    )
    assert FIRST.choose.__name__ == "one_image_1x1"
    fared = follow(costs, FIRST)
    assert fared == Followed(
        n_problems=4,
        share_run=0.75,
        share_best=0.25,
        share_close=0.5,
        slowdown=pytest.approx((1.0 * 1.04 * 4.0) ** (1 / 3)),
        slowdown_of_all=pytest.approx((2.0 * 1.04 * 4.0) ** (1 / 3)),
        instead=PRECOMPUTED,
        share_instead=0.75,
    )
    assert fared.verdict is Verdict.IN_PART


def test_what_never_runs_no_longer_holds_and_what_was_not_measured_is_not_judged() -> None:
    never = follow(costs_of({"7-1-1-32-832": {PRECOMPUTED: 1.0}}), FIRST)
    assert never is not None
    assert (never.share_run, never.share_close, never.verdict) == (0, 0, Verdict.NO_LONGER)
    assert math.isnan(never.slowdown)
    assert follow(costs_of({"14-1-3-256-128": {PRECOMPUTED: 1.0}}), FIRST) is None


def test_verdicts_include_their_bounds() -> None:
    assert [verdict_of(v, 0.75, 0.4) for v in (0.75, 0.74, 0.4, 0.39)] == [
        *(Verdict.HOLDS, Verdict.IN_PART),
        *(Verdict.IN_PART, Verdict.NO_LONGER),
    ]
    assert verdict_of(math.nan, 0.75, 0.4) is Verdict.UNKNOWN
    assert [at_least(2.0)(v) for v in (1.8, 1.0, 0.9)] == [Verdict.HOLDS, Verdict.IN_PART, Verdict.NO_LONGER]
    assert [at_most(1, 2)(v) for v in (1, 2, 3)] == [Verdict.HOLDS, Verdict.IN_PART, Verdict.NO_LONGER]
    assert [about(64)(v) for v in (64, 32, 128, 16, 256)] == [
        *(Verdict.HOLDS, Verdict.IN_PART, Verdict.IN_PART),
        *(Verdict.NO_LONGER, Verdict.NO_LONGER),
    ]


def test_shares_and_margins() -> None:
    costs = costs_of(
        {
            "7-1-1-32-832": {PLAIN: 1.0, PRECOMPUTED: 2.0, GEMM: 3.0},
            "7-8-1-32-832": {PLAIN: 3.0, PRECOMPUTED: 1.0, GEMM: 1.1},
            "7-8-3-32-832": {PLAIN: 3.0, WINOGRAD: 1.0},
        }
    )
    ones = np.array([True, True, False])
    assert findings.share_fastest(costs, [PRECOMPUTED], ones) == 0.5
    assert findings.share_fastest(costs, [WINOGRAD], ~ones) == 1
    assert findings.share_fastest(costs, [FFT], ones) == 0, "what does not run does not win"
    assert findings.share_behind(costs, [GEMM], ones, 1.2) == 0.5
    assert findings.margin_over_next(costs, PLAIN, ones) == 2.0
    assert math.isnan(findings.share_fastest(costs, [PLAIN], np.zeros(3, dtype=bool)))


def test_the_parameter_that_tells_most() -> None:
    costs = costs_of(
        {
            f"{size}-{batch}-{r}-32-64": {PLAIN: 1.0 if r == 1 else 4.0, WINOGRAD: 4.0 if r == 1 else 1.0}
            for size in (7, 14)
            for batch in (1, 8)
            for r in (1, 3)
        }
    )
    assert findings.slowdown_knowing(costs, "filter size") == pytest.approx(1.0)
    assert findings.slowdown_knowing(costs, "batch") == pytest.approx(2.0)
    assert findings.rank_of(costs, "filter size") == 1
    assert findings.rank_of(costs, "depth") == 2


def test_half_against_full() -> None:
    times = {"7-1-1-32-64": {PLAIN: 1.0}, "7-1-5-32-64": {PLAIN: 1.0}, "7-1-3-32-64": {PLAIN: 1.0}}
    half = {"7-1-1-32-64": {PLAIN: 0.5}, "7-1-5-32-64": {PLAIN: 1.5}}
    book = Book({("float32", "nchw"): costs_of(times), ("float16", "nchw"): costs_of(half, dtype="float16")})
    assert findings.half_against_full(book, (1, 3, 5)) == 0.5
    assert findings.half_against_full(book, (5,)) == 0


def test_cuconv_against_the_best() -> None:
    costs = costs_of(
        {
            "7-1-1-32-832": {PLAIN: 2.0, CUCONV: 1.0},
            "7-1-1-48-832": {PLAIN: 1.0, CUCONV: 2.0},
            "7-1-1-64-832": {PLAIN: 1.0},
        }
    )
    speedups = findings.cuconv_speedups(Book({("float32", "nchw"): costs}))
    assert speedups.tolist() == [2.0, 0.5, 0.0]
    assert findings.mean_speedup(speedups) == 1.25
    assert findings.share(speedups > 1) == pytest.approx(1 / 3)


def test_the_course_s_sweep_of_the_filter() -> None:
    sweep = {16: (1.0, 2.0), 32: (4.0, 2.2), 64: (16.0, 2.4)}
    course = costs_of(
        {f"512-1-{r}-1-1": {"cuda.direct_naive": direct, "cuda.fft": fft} for r, (direct, fft) in sweep.items()}
    )
    book = Book({}, course)
    assert findings.crossover(book) == 32
    assert findings.spread_of_fft(book) == pytest.approx(1.2)


def test_the_workspace_above_the_limit() -> None:
    costs = costs_of({"7-1-1-32-832": {PLAIN: 1.0}, "7-8-1-32-832": {PLAIN: 1.0, FFT: 2.0}})
    needed = np.where(costs.is_refused, 2.0**31, 0.0)
    assert findings.share_above_workspace(replace(costs, workspace_bytes=needed)) == 0.25
    assert findings.share_above_workspace(costs) == 0, "refused for another reason"


def test_without_measurements_every_finding_is_unknown() -> None:
    values = [statement.value(Book({})) for statement in STATEMENTS]
    assert np.isnan(values).all()
    assert {statement.judge(math.nan) for statement in STATEMENTS} == {Verdict.UNKNOWN}
