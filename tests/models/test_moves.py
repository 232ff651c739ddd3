"""Refreshing made-up times, of which it is known what has changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType, Layout
from conv_advisor.models.costs import Costs
from conv_advisor.models.upgrades.compare import Line
from conv_advisor.models.upgrades.moves import REGRESSED
from conv_advisor.models.upgrades.refresh import Findings, Refresh, has_moved

VARIANTS = ("cuda.gemm", "cudnn.gemm", "cudnn.graph.eng1", "cudnn.implicit_gemm")
MOVED = "cudnn.gemm"
FLOPS_PER_MS, BYTES_PER_MS, LEAST_MS = 5e10, 5e8, 0.002


@pytest.fixture(scope="module")
def before() -> Costs:
    """Four variants by a roofline each, which noise keeps apart."""
    problems = tuple(dict.fromkeys(networks.problems("seeds", batches=(1, 8, 32, 128), dtypes=DType, layouts=Layout)))
    drawn = np.random.default_rng(0)
    floor = [max(problem.flops / FLOPS_PER_MS, problem.bytes / BYTES_PER_MS, LEAST_MS) for problem in problems]
    time_ms = np.array(floor)[:, None] * np.exp(drawn.uniform(0.2, 1.2, (len(problems), len(VARIANTS))))
    time_ms[:, VARIANTS.index(MOVED)] *= 0.6
    nothing, unknown = np.zeros(time_ms.shape, bool), np.full(time_ms.shape, np.nan)
    return Costs(VARIANTS, problems, time_ms, np.full_like(unknown, 1e-3), nothing, nothing, ~nothing, unknown)


@pytest.fixture(scope="module")
def after(before: Costs) -> Costs:
    """One variant takes half as long again where bytes bound it, and the others are off by a little."""
    is_bound = [problem.bytes / BYTES_PER_MS > problem.flops / FLOPS_PER_MS for problem in before.problems]
    ratio = np.exp(np.random.default_rng(1).normal(0, 0.003, before.time_ms.shape))
    ratio[:, VARIANTS.index(MOVED)] *= np.where(is_bound, 1.5, 1.0)
    return replace(before, time_ms=before.time_ms * ratio)


def measured(refresh: Refresh, after: Costs, most: int | None = None) -> Findings:
    n_asked = 0
    for wanted in refresh.rounds():
        for problem, name in wanted[: None if most is None else most - n_asked]:
            n_asked += 1
            at = after.problems.index(problem), after.variants.index(name)
            refresh.take(problem, name, float(after.time_ms[at]), float(after.noise[at]))
        if n_asked == most:
            break
    return refresh.findings()


def test_what_moved_and_what_regressed_is_found_in_a_fiftieth(before: Costs, after: Costs) -> None:
    found = measured(Refresh(before), after)
    assert found.n_measured == int(0.02 * before.time_ms.size)
    assert found.share <= 0.02
    assert found.moved == (MOVED,)
    ratios = after.best_ms / before.best_ms
    regressed = {problem.key for problem, ratio in zip(before.problems, ratios, strict=True) if ratio > 1 + REGRESSED}
    named = {each.problem for each in found.regressed}
    assert len(regressed & named) >= 0.9 * len(regressed)
    assert len(regressed & named) >= 0.6 * len(named)
    assert found.off_after < found.off_before


def test_times_of_what_moved_are_corrected_and_no_others(before: Costs, after: Costs) -> None:
    refresh = Refresh(before)
    found = measured(refresh, after)
    corrected = refresh.corrected(found.moved)
    is_same = np.isclose(corrected.time_ms, before.time_ms, rtol=0.02)
    others = [place for place, name in enumerate(VARIANTS) if name != MOVED]
    assert is_same[:, others].all()
    column = VARIANTS.index(MOVED)
    is_near = before.time_ms[:, column] < 1.5 * before.best_ms
    off = np.abs(np.log(corrected.time_ms / after.time_ms))[is_near, column]
    assert np.mean(off) < 0.6 * np.mean(np.abs(np.log(before.time_ms / after.time_ms))[is_near, column])


def test_a_repair_is_judged_by_layers_it_has_not_seen_in_any_dtype_layout_or_batch(before: Costs) -> None:
    """Where each layer changes in its own way, no other layer tells how."""
    layers = list(dict.fromkeys(problem.layer for problem in before.problems))
    logs = dict(zip(layers, np.random.default_rng(2).normal(0, 0.4, len(layers)), strict=True))
    refresh, column = Refresh(before), VARIANTS.index(MOVED)
    for problem, time_ms in zip(before.problems, before.time_ms[:, column], strict=True):
        refresh.take(problem, MOVED, float(time_ms * np.exp(logs[problem.layer])), 1e-3)
    found = refresh.findings()
    assert found.moved == (MOVED,)
    assert found.off_after > 0.8 * found.off_before


def test_where_nothing_changed_nothing_is_named(before: Costs) -> None:
    found = measured(Refresh(before), before)
    assert found.moved == ()
    assert found.regressed == ()
    assert found.expected == 0
    assert found.off_after == found.off_before == 0


def test_what_is_measured_follows_from_the_seed(before: Costs, after: Costs) -> None:
    assert measured(Refresh(before), after).to_dict() == measured(Refresh(before), after).to_dict()
    assert next(Refresh(before).rounds()) != next(Refresh(before, seed=1).rounds())


def test_layers_that_are_never_measured_are_judged_all_the_same(before: Costs, after: Costs) -> None:
    never = set(sorted({problem.layer for problem in before.problems}, key=lambda layer: layer.key)[::7])
    refresh = Refresh(before, never=never)
    asked = set()
    for wanted in refresh.rounds():
        asked |= {problem.layer for problem, _ in wanted}
        for problem, name in wanted:
            at = after.problems.index(problem), after.variants.index(name)
            refresh.take(problem, name, float(after.time_ms[at]), 1e-3)
    assert not asked & never
    named = {each.problem for each in refresh.findings().regressed}
    assert {problem.key for problem in before.problems if problem.layer in never} & named


def test_what_runs_no_more_counts_for_nothing_and_is_said(before: Costs, after: Costs) -> None:
    refresh = Refresh(before)
    for problem in before.problems[:40]:
        refresh.take(problem, MOVED, None)
    for problem in before.problems[:40]:
        refresh.take(problem, "cuda.gemm", float(before.time_ms[before.problems.index(problem), 0]), 1e-3)
    (lost,) = (line for line in refresh.findings().variants if line.n_lost)
    assert (lost.name, lost.n_lost, lost.n_problems) == (MOVED, 40, 0)
    assert has_moved(lost)
    assert np.isnan(refresh.corrected((MOVED,)).time_ms[:40, VARIANTS.index(MOVED)]).all()


def test_what_was_not_known_before_is_passed_over(before: Costs) -> None:
    refresh = Refresh(before)
    refresh.take(before.problems[0], "cpu.gemm", 1.0)
    refresh.take(replace(before.problems[0], n=77), MOVED, 1.0)
    assert refresh.n_measured == 0


@pytest.mark.parametrize("share", [0, -0.01, 0.021, float("nan")])
def test_no_more_than_a_fiftieth_may_be_asked_for(before: Costs, share: float) -> None:
    with pytest.raises(InvalidInput, match=r"allowed: above 0, and at most 0\.02"):
        Refresh(before, share=share)


def test_a_variant_has_moved_on_many_layers_or_on_one_that_others_bear_out() -> None:
    def line(n_problems: int, n_regressed: int) -> Line:
        return Line("a", n_problems, 1.0, n_regressed, 0, 0, 0, (), ())

    assert has_moved(line(10, 2))
    assert not has_moved(line(10, 1))
    assert not has_moved(line(40, 3)), "3 of 40 is below a tenth"
    assert has_moved(line(10, 1), predicted=0.2)
    assert not has_moved(line(10, 0), predicted=1.0)
