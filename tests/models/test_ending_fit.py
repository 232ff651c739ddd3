"""Costs that made-up times were made by are found again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking import endings
from conv_advisor.models.ranking.endings import EAGER, FORMAT, Cost, Endings, Work, endings_of
from conv_advisor.models.training.ending_fit import LEAST_TIMES, Pair, errors, fit, learn
from conv_advisor.models.tree.file import with_card
from tests.data import arrow
from tests.models import hand_made

TRUE = Cost(1.03, 0.0015, 2.5e-10, 0.0, 1.0, 0)


def made_up(kind: str, count: int = 60, noise: float = 0.0, kernels: int = 1, cost: Cost = TRUE) -> list[Pair]:
    draw = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        alone_ms, work = 10 ** draw.uniform(-3, 0), Work(kernels, round(10 ** draw.uniform(4, 8)))
        pairs.append(Pair(kind, work, alone_ms, cost.time_ms(alone_ms, work) * math.exp(draw.normal(0, noise))))
    return pairs


def test_prices_are_found_exactly_where_times_have_no_noise() -> None:
    costs = fit(made_up("appended"))["appended"]
    assert (costs.factor, costs.kernel_ms, costs.byte_ms) == pytest.approx((1.03, 0.0015, 2.5e-10), rel=1e-6)
    assert (costs.share, costs.n_times, costs.spread) == (1.0, 60, pytest.approx(0.0, abs=1e-9))


def test_noise_is_told_and_a_few_wild_times_move_nothing() -> None:
    pairs = made_up("appended", noise=0.02)
    wild = [Pair("appended", pair.work, pair.alone_ms, 5 * (pair.ended_ms or 0)) for pair in pairs[:3]]
    calm, costs = fit(pairs)["appended"], fit([*pairs[3:], *wild])["appended"]
    assert calm.spread == pytest.approx(0.02, rel=0.4)
    assert costs.byte_ms == pytest.approx(calm.byte_ms, rel=0.05)
    assert costs.factor == pytest.approx(calm.factor, abs=0.02)


def test_an_epilogue_never_makes_a_convolution_faster() -> None:
    faster = [Pair("fused", Work(0, 0), 1.0 + 0.1 * place, 0.97 * (1.0 + 0.1 * place)) for place in range(20)]
    costs = fit(faster)["fused"]
    assert (costs.factor, costs.kernel_ms, costs.byte_ms) == (1.0, 0.0, 0.0)
    assert costs.spread == pytest.approx(-math.log(0.97))


def test_kinds_are_fitted_apart_and_those_of_few_times_not_at_all() -> None:
    dear = Cost(2.0, 0.0, 0.0, 0.0, 1.0, 0)
    pairs = made_up("library", kernels=0, cost=dear) + made_up("appended") + made_up("fused", LEAST_TIMES - 1)
    costs = fit(pairs)
    assert costs.keys() == {"library", "appended"}
    assert costs["library"].factor == pytest.approx(2.0)


def test_a_kernel_that_nobody_timed_costs_what_pytorchs_do() -> None:
    costs = fit(made_up(EAGER))
    assert costs["appended"] == msgspec.structs.replace(costs[EAGER], factor=1.0)
    assert fit(made_up("fused", kernels=0)).keys() == {"fused"}


def test_what_is_refused_is_a_share_and_what_never_runs_is_known_not_to() -> None:
    refused = [Pair("library-residual", Work(0, 1), 1.0, None)] * 20
    costs = fit(made_up("library-residual", 60, kernels=0) + refused)
    assert costs["library-residual"].share == 0.75
    never = fit(refused)["library-residual"]
    assert (never.share, never.n_times) == (0.0, 0)


def test_what_runs_without_a_time_alone_counts_for_the_share() -> None:
    runs, refused = Pair("library", Work(0, 0), None, 1.0), Pair("library", Work(0, 0), 1.0, None)
    costs = fit([*made_up("library", 10, kernels=0), *[runs] * 20, *[refused] * 10])["library"]
    assert (costs.share, costs.n_times) == (0.75, 10)


def test_errors_are_those_of_what_was_timed() -> None:
    pairs = [*made_up("appended"), Pair("appended", Work(1, 1), 1.0, None), *made_up("fused", 3)]
    off = errors(pairs, {"appended": TRUE})
    assert off.keys() == {"appended"}
    assert off["appended"] == pytest.approx([0.0] * 60, abs=1e-12)


GPU = Device(id="toy-gpu", name="Toy GPU", kind="cuda", capability="9.0")
FUSED, APPENDED, LIBRARY = "cuda.implicit_gemm", "cuda.gemm", "cudnn.graph.eng0"


def measured(problem: ConvProblem, variant: str, ms: float | None, device: Device = GPU) -> Measurement:
    outcome = Outcome.NOT_SUPPORTED if ms is None else Outcome.MEASURED
    return Measurement(problem, variant, device, outcome, samples_ms=() if ms is None else (ms,) * 5)


def rows(device: Device = GPU, layers: Sequence[str] = ()) -> list[Measurement]:
    """Three variants of each layer, alone and with an end, which costs a tenth, a kernel, or does not run."""
    measurements = []
    for layer in layers or [f"{size}-1-3-64-48" for size in range(5, 15)]:
        plain = ConvProblem.parse(layer)
        ended = replace(plain, epilogue=Epilogue(bias=True, activation=Activation.RELU))
        times = {FUSED: (1.0, 1.1), APPENDED: (2.0, 2.5), LIBRARY: (3.0, None)}
        for variant, (alone_ms, ended_ms) in times.items():
            measurements += [measured(plain, variant, alone_ms, device), measured(ended, variant, ended_ms, device)]
    return measurements


def test_measurements_of_a_device_teach_its_costs() -> None:
    other = [
        measured(row.problem, row.variant, 9.0, replace(GPU, id="other", versions={"driver": "3"})) for row in rows()
    ]
    upgraded = rows(replace(GPU, versions={"driver": "2", "cudnn": "9.19.0"}), layers=["20-1-3-64-48"])
    before = rows(replace(GPU, versions={"driver": "1"}))
    costs = learn(arrow.measurements_to_table([*before, *upgraded, *other]), GPU.id)
    assert costs is not None
    assert (costs.device_id, costs.n_layers) == (GPU.id, 11)
    assert costs.software == "cudnn 9.19.0 driver 2; driver 1"
    assert costs.costs["fused"].factor == pytest.approx(1.1)
    work = Work(1, 2 * ConvProblem.parse("9-1-3-64-48").y_bytes)
    assert costs.costs["appended"].time_ms(2.0, work) == pytest.approx(2.5, rel=0.01)
    assert costs.costs["library-float32"].share == 0


def test_measurements_without_epilogues_or_of_layers_that_judge_trees_teach_none() -> None:
    plain = [row for row in rows() if not row.problem.epilogue]
    assert learn(arrow.measurements_to_table(plain), GPU.id) is None
    table = arrow.measurements_to_table(plain)
    assert learn(table.drop_columns(["epilogue"]), GPU.id) is None
    assert learn(arrow.measurements_to_table(rows()), "other") is None
    judging = [each.short for each in list(held_out_layers())[:10]]
    assert learn(arrow.measurements_to_table(rows(layers=judging)), GPU.id) is None


def test_a_tree_keeps_what_was_learned_and_advice_counts_it_before_what_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = learn(arrow.measurements_to_table(rows()), GPU.id)
    assert learned is not None
    model = with_card(hand_made.model(), endings=msgspec.to_builtins(learned))
    assert endings_of(GPU.id, model) == learned
    ended = ConvProblem.parse("9-1-3-64-48-bias-relu")
    assert Advisor(model).counts(ended)
    assert not Advisor(hand_made.model()).counts(ended)
    shipped = Endings(FORMAT, GPU.id, "ships", 1, {"eager": TRUE, "fused": TRUE})
    monkeypatch.setattr(endings, "_files", lambda: {GPU.id: Path("ships")})
    monkeypatch.setattr(endings, "read", lambda _path: shipped)
    assert endings_of(GPU.id, model) == msgspec.structs.replace(learned, costs={"eager": TRUE} | learned.costs)
    assert endings_of(GPU.id, hand_made.model()) == shipped


@pytest.mark.parametrize(
    "card", [{"format": 1}, {"format": 2, "device_id": "", "software": "", "n_layers": 0, "costs": {}}]
)
def test_a_card_that_says_something_else_is_refused(card: dict[str, object]) -> None:
    with pytest.raises(ModelRejected, match="endings"):
        Advisor(with_card(hand_made.model(), endings=card))
