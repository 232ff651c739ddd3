"""Costs: what attempts at one thing come to, and which problems count."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import NotEnoughData, UnknownDevice
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, relative_noise
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.models.costs import _ruled_out, device_of, from_table, is_tied, roofline_ms
from tests.data.arrow import measurements_to_table
from tests.models.synthetic import DEVICE, MEASURED_AT

PROBLEM = ConvProblem.parse("14-1-3-256-128")


def attempt(variant: str, *samples_ms: float, **changes: Any) -> Measurement:
    outcome = Outcome.MEASURED if samples_ms else Outcome.NOT_SUPPORTED
    plain = Measurement(PROBLEM, variant, DEVICE, outcome, samples_ms=samples_ms, measured_at=MEASURED_AT)
    return replace(plain, **changes)


def costs_of(*attempts: Measurement) -> dict[str, Any]:
    costs = from_table(measurements_to_table(attempts), DEVICE.id)
    assert costs.problems == (PROBLEM,)
    names = ("time_ms", "noise", "is_pruned", "is_refused", "is_known", "workspace_bytes")
    return {
        variant: {name: getattr(costs, name)[0, column] for name in names}
        for column, variant in enumerate(costs.variants)
    }


def test_median_noise_and_workspace_of_one_attempt() -> None:
    costs = costs_of(attempt("a", 1.0, 2.0, 4.0, workspace_bytes=512), attempt("b", 9.0))["a"]
    assert costs["time_ms"] == 2.0
    assert costs["noise"] == pytest.approx(relative_noise([1.0, 2.0, 4.0]))
    assert costs["workspace_bytes"] == 512
    assert costs["is_known"]


def test_of_several_attempts_the_median_of_the_measured_counts() -> None:
    pruned = attempt("a", 9.0, outcome=Outcome.PRUNED)
    others = pruned, attempt("a"), attempt("b", 9.0)
    costs = costs_of(attempt("a", 1.0), attempt("a", 2.0), attempt("a", 6.0), *others)["a"]
    assert costs["time_ms"] == 2.0
    assert not costs["is_pruned"]
    assert not costs["is_refused"]


def test_pruned_and_refused_and_never_asked_are_told_apart() -> None:
    costs = costs_of(
        attempt("timed", 1.0),
        attempt("pruned", 90.0, outcome=Outcome.PRUNED),
        attempt("refused"),
        attempt("ruled_out", outcome=Outcome.NOT_APPLICABLE),
    )
    assert [costs[name]["is_pruned"] for name in costs] == [True, False, False, False]
    assert [name for name in costs if costs[name]["is_refused"]] == ["refused"]
    assert [name for name in costs if np.isfinite(costs[name]["time_ms"])] == ["pruned", "timed"]


def test_a_launch_that_took_longer_than_a_larger_batch_says_nothing() -> None:
    larger = replace(PROBLEM, n=2 * PROBLEM.n)
    rows = [attempt(name, 1.0, problem=problem) for problem in (PROBLEM, larger) for name in ("best", "other")]
    rows += [attempt("busy", 9.0, outcome=Outcome.PRUNED), attempt("busy", 3.0, problem=larger)]
    rows += [attempt("slow", 9.0, outcome=Outcome.PRUNED), attempt("slow", 12.0, problem=larger)]
    rows += [attempt("behind", 9.0, outcome=Outcome.PRUNED, problem=larger), attempt("behind", 3.0)]
    costs = from_table(measurements_to_table(rows), DEVICE.id)
    smaller, column = costs.problems.index(PROBLEM), {name: place for place, name in enumerate(costs.variants)}
    assert [costs.is_known[smaller, column[name]] for name in ("busy", "slow", "behind")] == [False, True, True]
    assert np.isnan(costs.time_ms[smaller, column["busy"]])
    assert costs.is_pruned[:, column["busy"]].sum() == 0
    assert costs.is_pruned[:, column["slow"]].sum() == costs.is_pruned[:, column["behind"]].sum() == 1


@pytest.mark.parametrize(
    ("best_ms", "launch_ms", "is_known"),
    [(0.01, 51.0, False), (0.01, 49.0, True), (0.06, 59.0, True), (0.06, 61.0, False)],
    ids=["long and far behind", "not as long", "not as far behind", "barely"],
)
def test_a_launch_that_no_kernel_takes_says_nothing_nor_do_batches_left_out_behind_it(
    best_ms: float, launch_ms: float, is_known: bool
) -> None:
    larger, largest = (replace(PROBLEM, n=factor * PROBLEM.n) for factor in (2, 4))
    rows = [attempt(name, best_ms, problem=problem) for problem in (PROBLEM, larger, largest) for name in "abc"]
    rows.append(attempt("pruned", launch_ms, outcome=Outcome.PRUNED))
    rows += [attempt("pruned", outcome=Outcome.PRUNED, problem=problem) for problem in (larger, largest)]
    costs = from_table(measurements_to_table(rows), DEVICE.id)
    column = costs.variants.index("pruned")
    assert costs.is_known[:, column].tolist() == [is_known] * 3
    behind = [launch_ms, 10 * best_ms, 10 * best_ms] if is_known else [np.nan] * 3
    assert costs.time_ms[:, column] == pytest.approx(behind, nan_ok=True)


@pytest.mark.parametrize(("factor", "is_known"), [(10.0, True), (9.9, False)])
def test_a_larger_batch_is_left_out_behind_one_ten_times_slower_alone(factor: float, is_known: bool) -> None:
    larger = replace(PROBLEM, n=2 * PROBLEM.n)
    rows = [attempt(name, 1.0, problem=problem) for problem in (PROBLEM, larger) for name in "abc"]
    rows += [attempt("slow", factor), attempt("slow", outcome=Outcome.PRUNED, problem=larger)]
    costs = from_table(measurements_to_table(rows), DEVICE.id)
    assert costs.is_known[costs.problems.index(larger), costs.variants.index("slow")] == is_known


def test_cold_rows_and_other_devices_are_left_out() -> None:
    other = Device(id="other", name="Other", kind="cuda")
    left_out = attempt("a", 5.0, l2=L2State.COLD), attempt("c", 1.0, device=other)
    costs = costs_of(attempt("a", 1.0), attempt("b", 2.0), *left_out)
    assert list(costs) == ["a", "b"]
    assert costs["a"]["time_ms"] == 1.0


def test_a_problem_with_few_outcomes_does_not_count() -> None:
    lonely = ConvProblem.parse("7-1-1-8-8")
    rows = [attempt(name, 1.0) for name in "abc"] + [attempt("a", 1.0, problem=lonely)]
    assert from_table(measurements_to_table(rows), DEVICE.id).problems == (PROBLEM,)


def test_problems_with_an_epilogue_are_left_out() -> None:
    ended = replace(PROBLEM, epilogue=Epilogue(bias=True))
    rows = [attempt(name, 1.0, problem=problem) for problem in (ended, PROBLEM) for name in ("a", "b")]
    assert from_table(measurements_to_table(rows), DEVICE.id).problems == (PROBLEM,)


@pytest.mark.parametrize("variants", [["cuda.gemm"], ["cuda.gemm", "cuda.direct_naive"]], ids=["one", "one of two"])
def test_a_variant_that_was_measured_alone_is_not_the_fastest(variants: list[str]) -> None:
    rows = [attempt(name, 1.0, problem=replace(PROBLEM, n=n)) for n, name in enumerate(variants, 1)]
    with pytest.raises(NotEnoughData, match="at least half of the variants that apply"):
        from_table(measurements_to_table(rows), DEVICE.id)


def test_of_variants_that_do_not_apply_none_has_to_be_attempted() -> None:
    """What measures on demand leaves them out; a sweep records them, and counts as well."""
    swept = [attempt(name, 1.0 + place) for place, name in enumerate(VARIANTS) if name.startswith("cud")]
    names = [row.variant for row in swept]
    few = replace(PROBLEM, layout="nhwc")
    applicable = [name for name in names if VARIANTS[name].why_not(few, DEVICE) is None]
    assert len(applicable) < len(names) / 2

    def known_of(wanted: list[str]) -> tuple[ConvProblem, ...]:
        rows = [*swept, *(attempt(name, 1.0, problem=few) for name in wanted)]
        return from_table(measurements_to_table(rows), DEVICE.id).problems

    half = len(applicable) // 2
    assert set(known_of(applicable)) == {PROBLEM, few}
    assert set(known_of(applicable[: half + 1])) == {PROBLEM, few}
    assert known_of(applicable[: half - 1]) == known_of(applicable[:1]) == (PROBLEM,)


def test_that_a_variant_did_not_apply_counts_no_longer_where_its_rule_has_come_to_allow_it() -> None:
    allowed, refused = "cuda.implicit_gemm", "cuda.pointwise"
    assert VARIANTS[allowed].why_not(PROBLEM, DEVICE) is None
    assert VARIANTS[refused].why_not(PROBLEM, DEVICE)
    stale = [attempt(name, outcome=Outcome.NOT_APPLICABLE) for name in (allowed, refused)]
    costs = costs_of(attempt("a", 1.0), attempt("b", 2.0), *stale)
    assert not costs[allowed]["is_known"]
    assert costs[refused]["is_known"]
    again = costs_of(attempt("a", 1.0), attempt("b", 2.0), *stale, attempt(allowed, 0.5))
    assert again[allowed]["time_ms"] == 0.5


@pytest.mark.parametrize(
    ("n_swept", "tried", "counts"),
    [(100, "abc", True), (100, "bcd", False), (100, "a", False), (99, "abc", False)],
    ids=["the fastest ones", "others", "too few of them", "too little known"],
)
def test_a_problem_counts_where_the_variants_that_win_elsewhere_were_tried(
    n_swept: int, tried: str, counts: bool
) -> None:
    """Among seven variants a wins 94 of 100 problems and c the others, so b, and d to g, are not missed."""
    swept = [
        attempt(name, 1.0 + place if n % 16 or name != "c" else 0.5, problem=replace(PROBLEM, n=n))
        for n in range(1, n_swept + 1)
        for place, name in enumerate("abcdefg")
    ]
    few = ConvProblem.parse("7-1-1-8-8")
    rows = [*swept, *(attempt(name, 1.0, problem=few) for name in tried)]
    assert (few in from_table(measurements_to_table(rows), DEVICE.id).problems) is counts


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"layout": "nhwc"}, {"groups": 8}])
def test_who_wins_elsewhere_is_told_by_dtype_layout_and_groups(change: dict[str, Any]) -> None:
    swept = [
        attempt(name, 1.0 + place, problem=replace(PROBLEM, n=n))
        for n in range(1, 101)
        for place, name in enumerate("abc")
    ]
    few = ConvProblem.parse("7-1-1-8-8")
    rows = [*swept, attempt("a", 1.0, problem=few), attempt("a", 1.0, problem=replace(few, **change))]
    costs = from_table(measurements_to_table(rows), DEVICE.id).problems
    assert (few in costs, replace(few, **change) in costs) == (True, False)


def test_order_of_rows_does_not_matter() -> None:
    rows = [attempt(name, 1.0, problem=replace(PROBLEM, n=n)) for name in "ba" for n in (2, 1)]
    first, second = (from_table(measurements_to_table(each), DEVICE.id) for each in (rows, rows[::-1]))
    assert first.problems == second.problems
    assert first.variants == second.variants == ("a", "b")


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(NotEnoughData, match="fake-gpu"):
        from_table(measurements_to_table([attempt("a")]), DEVICE.id)


def test_the_newest_fingerprint_is_the_device() -> None:
    newer = replace(DEVICE, versions={"driver": "2"})
    rows = [attempt("a", 1.0, device=newer, measured_at=MEASURED_AT + timedelta(days=1)), attempt("a", 1.0)]
    assert device_of(measurements_to_table(rows), DEVICE.id) == newer
    with pytest.raises(UnknownDevice, match="known: fake-gpu"):
        device_of(measurements_to_table(rows), "no-such")


def test_log_slowdown_is_capped_and_refusals_are_at_the_cap() -> None:
    rows = [attempt("a", 1.0), attempt("b", 2.0), attempt("c", 1e6), attempt("d")]
    costs = from_table(measurements_to_table(rows), DEVICE.id)
    assert costs.log_slowdown(3.0)[0] == pytest.approx([0, np.log(2), 3, 3])


def test_tied_means_closer_than_the_noise() -> None:
    assert is_tied(1.0, 0.01, 1.02, 0.01)
    assert not is_tied(1.0, 0.001, 1.02, 0.001)


def test_roofline_takes_the_tightest_limit() -> None:
    assert roofline_ms(PROBLEM, (PROBLEM.flops, PROBLEM.bytes / 3, 2)) == 3
    assert roofline_ms(PROBLEM, (PROBLEM.flops / 5, PROBLEM.bytes, 2)) == 5
    assert roofline_ms(PROBLEM, (PROBLEM.flops, PROBLEM.bytes, 2)) == 2


def test_that_no_time_counts_is_not_said_to_be_that_nothing_was_measured() -> None:
    problem = ConvProblem.parse("14-1-3-16-8")
    row = Measurement(problem, "cuda.gemm", DEVICE, Outcome.UNSTEADY, "shared", (1.0, 1.1), measured_at=MEASURED_AT)
    with pytest.raises(NotEnoughData, match="none of its 1 times counts: the device was throttled or shared"):
        from_table(measurements_to_table([row]), DEVICE.id)
    cold = replace(row, outcome=Outcome.MEASURED, l2=L2State.COLD)
    with pytest.raises(NotEnoughData, match="nothing was measured with a warm L2 cache"):
        from_table(measurements_to_table([cold]), DEVICE.id)


@pytest.mark.parametrize("device", [DEVICE, Device(id="cpu", name="A CPU", kind="cpu")], ids=["gpu", "cpu"])
def test_rules_that_variants_share_say_of_each_what_its_own_says(device: Device) -> None:
    problems = [
        ConvProblem.parse(layer, dtype=dtype, layout=layout)
        for layer in (
            "14-1-3-256-128",
            "7-8-1-32-832",
            "28-2-5-96-16",
            "28x28-1-3x3-64-64-stride2x2-pad1x1-dilation1x1-groups2",
            "300-64-7-64-64",
        )
        for dtype in ("float32", "float16")
        for layout in ("nchw", "nhwc")
    ]
    variants = [*VARIANTS, "not in the catalogue"]
    alone = [
        [name in VARIANTS and VARIANTS[name].why_not(it, device) is not None for name in variants] for it in problems
    ]
    assert (_ruled_out(problems, variants, device) == np.array(alone)).all()
    assert _ruled_out([], variants, device).shape == (0, len(variants))
