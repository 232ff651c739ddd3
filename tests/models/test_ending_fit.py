"""Costs that made-up times were made by are found again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conv_advisor.models.ending_fit import LEAST_TIMES, Pair, errors, fit
from conv_advisor.models.endings import Cost, Work

TRUE = Cost(1.03, 0.0015, 2.5e-10, 0.0, 1.0, 0)


def made_up(kind: str, count: int = 60, noise: float = 0.0, kernels: int = 1, cost: Cost = TRUE) -> list[Pair]:
    draw = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        alone_ms, work = 10 ** draw.uniform(-3, 0), Work(kernels, round(10 ** draw.uniform(4, 8)))
        pairs.append(Pair(kind, work, alone_ms, cost.time_ms(alone_ms, work) * math.exp(draw.normal(0, noise))))
    return pairs


def test_prices_are_found_exactly_where_times_have_no_noise() -> None:
    found = fit(made_up("appended"))["appended"]
    assert (found.factor, found.kernel_ms, found.byte_ms) == pytest.approx((1.03, 0.0015, 2.5e-10), rel=1e-6)
    assert (found.share, found.n_times, found.spread) == (1.0, 60, pytest.approx(0.0, abs=1e-9))


def test_noise_is_told_and_a_few_wild_times_move_nothing() -> None:
    pairs = made_up("appended", noise=0.02)
    wild = [Pair("appended", pair.work, pair.alone_ms, 5 * (pair.ended_ms or 0)) for pair in pairs[:3]]
    calm, found = fit(pairs)["appended"], fit([*pairs[3:], *wild])["appended"]
    assert calm.spread == pytest.approx(0.02, rel=0.4)
    assert found.byte_ms == pytest.approx(calm.byte_ms, rel=0.05)
    assert found.factor == pytest.approx(calm.factor, abs=0.02)


def test_an_epilogue_never_makes_a_convolution_faster() -> None:
    faster = [Pair("fused", Work(0, 0), 1.0 + 0.1 * place, 0.97 * (1.0 + 0.1 * place)) for place in range(20)]
    found = fit(faster)["fused"]
    assert (found.factor, found.kernel_ms, found.byte_ms) == (1.0, 0.0, 0.0)
    assert found.spread == pytest.approx(-math.log(0.97))


def test_kinds_are_fitted_apart_and_those_of_few_times_not_at_all() -> None:
    dear = Cost(2.0, 0.0, 0.0, 0.0, 1.0, 0)
    pairs = made_up("library", kernels=0, cost=dear) + made_up("appended") + made_up("fused", LEAST_TIMES - 1)
    found = fit(pairs)
    assert found.keys() == {"library", "appended"}
    assert found["library"].factor == pytest.approx(2.0)


def test_what_is_refused_is_a_share_and_what_never_runs_is_known_not_to() -> None:
    refused = [Pair("library-residual", Work(0, 1), 1.0, None)] * 20
    found = fit(made_up("library-residual", 60, kernels=0) + refused)
    assert found["library-residual"].share == 0.75
    never = fit(refused)["library-residual"]
    assert (never.share, never.n_times) == (0.0, 0)


def test_errors_are_those_of_what_was_timed() -> None:
    pairs = [*made_up("appended"), Pair("appended", Work(1, 1), 1.0, None), *made_up("fused", 3)]
    off = errors(pairs, {"appended": TRUE})
    assert off.keys() == {"appended"}
    assert off["appended"] == pytest.approx([0.0] * 60, abs=1e-12)
