"""The advisor: what is ranked, what is out and why, and what a measurement changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.summary import Summary
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Backend, Maker, Variant, unknown_workspace
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.ranking.candidates import Source
from conv_advisor.models.tree.file import with_card
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, LARGE, LEAST_MS, MIDDLE, POINTWISE, SMALL
from tests.models.synthetic import MEASURED_AT


@pytest.fixture
def advisor() -> Advisor:
    return Advisor(hand_made.model(), variants=CATALOGUE)


def summary(variant: str, time_ms: float | None = None, **changes: Any) -> Summary:
    outcome = Outcome.NOT_SUPPORTED if time_ms is None else Outcome.MEASURED
    noise = None if time_ms is None else 0.001
    return replace(
        Summary(variant, outcome, time_ms, noise, 5, None, 1e-6, {"engine": 7}, "status 9", MEASURED_AT), **changes
    )


def measured(**times_ms: float | None) -> dict[str, Summary]:
    return {f"cuda.{name}": summary(f"cuda.{name}", time_ms) for name, time_ms in times_ms.items()}


def order(advice: Advice) -> list[str]:
    return [choice.variant for choice in advice.ranking]


def reasons(advice: Advice) -> dict[str, str]:
    return {exclusion.variant: exclusion.reason for exclusion in advice.excluded}


def test_predictions_rank_and_tell_times(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL)
    assert order(advice) == ["cuda.big", "cuda.only_3x3", "cuda.plain", "cuda.loose", "cuda.shy"]
    assert advice.variant == advice.best.variant == "cuda.big"
    assert [choice.time_ms for choice in advice.ranking] == pytest.approx([1.0, 1.5, 2.0, 4.0, 8.0], rel=1e-6)
    assert [choice.slowdown for choice in advice.ranking] == pytest.approx([1.0, 1.5, 2.0, 4.0, 8.0], rel=1e-6)
    assert advice.best.time_ms == pytest.approx(2 * LEAST_MS)
    assert {choice.source for choice in advice.ranking} == {Source.PREDICTED}
    assert (advice.model_id, advice.device_id) == (hand_made.model().id, "toy-gpu")
    assert [str(step) for step in advice.path] == ["log2_h ≤ 4 (it is 2.807)"]


def test_a_rule_excludes_with_its_reason(advisor: Advisor) -> None:
    advice = advisor.advise(POINTWISE)
    assert "cuda.only_3x3" not in order(advice)
    assert reasons(advice) == {"cuda.only_3x3": "filter is 1x1, not 3x3"}


def test_one_maker_alone_is_advised_as_the_rest_is_left_out(advisor: Advisor) -> None:
    only = advisor.only(Maker.CUDNN)
    advice = only.advise(SMALL)
    assert order(advice) == ["cuda.shy"]  # which cuDNN made, whatever its name
    assert {name for name, reason in reasons(advice).items() if "only variants of cudnn" in reason} == {
        *CATALOGUE.keys() - {"cuda.shy"}
    }
    assert only.predict(SMALL) == ("cuda.shy", advice.best.time_ms)
    assert only.only(Maker.CUDNN) is only is advisor.only(Maker.CUDNN)
    assert advisor.only(None) is advisor
    assert not advice.trust.is_calibrated
    with pytest.raises(NoAdvice, match="only variants of cudnn"):
        only.advise(SMALL, measured=measured(shy=None))


def test_workspace_by_formula_and_by_prediction(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL, max_workspace_bytes=2 * SMALL.bytes)
    assert advice.variant == "cuda.only_3x3"
    assert advice.best.workspace_bytes == 2 * SMALL.bytes
    assert reasons(advice)["cuda.big"] == f"workspace is {2**20} bytes, above the limit of {2 * SMALL.bytes}"
    assert advisor.advise(SMALL, max_workspace_bytes=2 * SMALL.bytes - 1).variant == "cuda.plain"


def test_a_measured_workspace_counts_before_the_formula(advisor: Advisor) -> None:
    known = {"cuda.big": summary("cuda.big", 1.0, workspace_bytes=10)}
    assert advisor.advise(SMALL, max_workspace_bytes=10, measured=known).best.workspace_bytes == 10


def test_only_deterministic_variants_on_demand(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL, is_deterministic=True)
    assert all(choice.is_deterministic for choice in advice.ranking)
    assert reasons(advice) == {"cuda.loose": "not deterministic"}


def test_predicted_refusals_are_out_unless_measured(advisor: Advisor) -> None:
    assert reasons(advisor.advise(MIDDLE)) == {"cuda.shy": "predicted as not supported: it is 20 % likely to run"}
    assert advisor.advise(MIDDLE, measured=measured(shy=0.1, plain=1.0, only_3x3=1.0)).variant == "cuda.shy"


def test_where_a_complete_rule_says_yes_the_variant_is_in_the_ranking_however_seldom_it_ran(advisor: Advisor) -> None:
    ours = CATALOGUE | {"cuda.shy": replace(CATALOGUE["cuda.shy"], backend=Backend.CUDA)}
    complete = Advisor(hand_made.model(), variants=ours)
    assert "cuda.shy" in reasons(advisor.advise(MIDDLE))
    found = {choice.variant: choice for choice in complete.advise(MIDDLE).ranking}
    assert found["cuda.shy"].time_ms == pytest.approx(1.2 * found["cuda.plain"].time_ms)
    assert list(complete.predict_order(MIDDLE)) == list(found)


def test_of_a_precision_that_a_variant_came_to_take_after_the_training_nothing_is_predicted() -> None:
    ours = CATALOGUE | {"cuda.shy": replace(CATALOGUE["cuda.shy"], backend=Backend.CUDA)}
    laws = {"cuda.shy": {"float16": [-11.0, 0.0]}}
    advisor = Advisor(with_card(hand_made.model(), errors=laws), variants=ours)
    advice = advisor.advise(MIDDLE)
    assert reasons(advice)["cuda.shy"] == "not measured on this layer, and the model does not know it"
    assert "Nothing is known about another variant that may run" in advice.trusted
    assert list(advisor.predict_order(MIDDLE)) == [choice.variant for choice in advice.ranking]
    assert advisor.advise(MIDDLE, measured=measured(shy=0.1, plain=1.0)).variant == "cuda.shy"
    laws["cuda.shy"]["float32"] = [-24.0, 0.5]
    knowing = Advisor(with_card(hand_made.model(), errors=laws), variants=ours)
    assert "cuda.shy" in {choice.variant for choice in knowing.advise(MIDDLE).ranking}
    assert "cuda.shy" in knowing.predict_order(MIDDLE)


def test_alone_on_its_level_it_is_no_prediction_either() -> None:
    ours = {"cuda.shy": replace(CATALOGUE["cuda.shy"], backend=Backend.CUDA)}
    laws = {"cuda.shy": {"float16": [-11.0, 0.0]}}
    assert Advisor(with_card(hand_made.model(), errors=laws), variants=ours).predict(MIDDLE) is None
    laws["cuda.shy"]["float32"] = [-24.0, 0.5]
    found = Advisor(with_card(hand_made.model(), errors=laws), variants=ours).predict(MIDDLE)
    assert found is not None
    assert found[0] == "cuda.shy"


def shy_with_workspace(**arrays: Any) -> Advisor:
    """An advisor whose tree makes a workspace up, as a share of the problem, for a variant that never ran."""
    workspace = np.zeros((3, 5), np.float32)
    workspace[:, 4] = 1e6
    library = replace(CATALOGUE["cuda.shy"], workspace_bytes=unknown_workspace)
    return Advisor(hand_made.model(workspace=workspace, **arrays), variants=CATALOGUE | {"cuda.shy": library})


def test_a_variant_that_never_runs_says_so_and_not_what_workspace_is_made_up_for_it() -> None:
    support = np.ones((3, 5), np.float32)
    support[:, 4] = 0.0
    never = shy_with_workspace(support=support)
    assert reasons(never.advise(SMALL))["cuda.shy"] == "predicted as not supported: it is under 1 % likely to run"
    assert never.doubts(SMALL) == {"cuda.shy": "predicted as not supported: it is under 1 % likely to run"}


def test_what_was_refused_says_so_and_not_what_workspace_it_would_take() -> None:
    known = measured(shy=None)
    advisor = shy_with_workspace()
    assert "above the limit" in reasons(advisor.advise(SMALL))["cuda.shy"]
    assert reasons(advisor.advise(SMALL, measured=known))["cuda.shy"] == "not supported: status 9"
    assert advisor.doubts(SMALL, known) == {"cuda.shy": "not supported: status 9"}
    assert advisor.doubts(SMALL) == {}


def test_what_was_refused_for_its_workspace_alone_is_believed_to_run_with_more(advisor: Advisor) -> None:
    exceeded = summary("cuda.shy", outcome=Outcome.WORKSPACE_EXCEEDED, workspace_bytes=2**30)
    known = {"cuda.shy": exceeded}
    assert "cuda.shy" in order(advisor.advise(MIDDLE, max_workspace_bytes=2**30, measured=known))
    out = reasons(advisor.advise(MIDDLE, max_workspace_bytes=2**30 - 1, measured=known))
    assert out["cuda.shy"] == f"workspace is {2**30} bytes, above the limit of {2**30 - 1}"


def test_tied_is_what_counts_as_equally_fast(advisor: Advisor) -> None:
    tied = {choice.variant: choice.is_tied for choice in advisor.advise(MIDDLE).ranking}
    assert tied == {"cuda.plain": True, "cuda.only_3x3": False, "cuda.big": False, "cuda.loose": False}


def test_equal_times_go_by_workspace_then_determinism_then_name(advisor: Advisor) -> None:
    advice = advisor.advise(LARGE)
    assert order(advice) == ["cuda.only_3x3", "cuda.plain", "cuda.shy", "cuda.loose", "cuda.big"]
    assert all(choice.is_tied and choice.slowdown == 1 for choice in advice.ranking)


def test_a_measured_time_stands_in_for_the_predicted_one(advisor: Advisor) -> None:
    everything = measured(plain=0.3, big=0.4, only_3x3=0.5, loose=0.2, shy=0.9)
    advice = advisor.advise(SMALL, measured=everything)
    assert order(advice) == ["cuda.loose", "cuda.plain", "cuda.big", "cuda.only_3x3", "cuda.shy"]
    assert [choice.time_ms for choice in advice.ranking] == [0.2, 0.3, 0.4, 0.5, 0.9]
    assert {choice.source for choice in advice.ranking} == {Source.MEASURED}
    assert advice.best.plan == {"engine": 7}
    assert [choice.is_tied for choice in advice.ranking] == [True, False, False, False, False]


def test_measured_medians_closer_than_their_noise_are_tied(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL, measured=measured(plain=0.3, loose=0.3005, big=0.4))
    tied = {choice.variant for choice in advice.ranking if choice.is_tied}
    assert tied == {"cuda.plain", "cuda.loose"}


def test_of_measured_ties_the_one_with_less_workspace_is_advised(advisor: Advisor) -> None:
    known = measured(big=0.3, plain=0.3005, loose=0.3001, only_3x3=0.4, shy=0.5)
    advice = advisor.advise(SMALL, measured=known | {"cuda.big": summary("cuda.big", 0.3, workspace_bytes=2**20)})
    assert order(advice) == ["cuda.plain", "cuda.loose", "cuda.big", "cuda.only_3x3", "cuda.shy"]
    assert [choice.is_tied for choice in advice.ranking] == [True, True, True, False, False]
    assert advice.best.slowdown == pytest.approx(0.3005 / 0.3), "against the fastest"


def test_of_ties_that_cost_the_same_otherwise_the_more_accurate_is_advised(advisor: Advisor) -> None:
    errors = {"cuda.plain": 4e-6, "cuda.shy": 1e-6, "cuda.big": 1e-6, "cuda.only_3x3": 1e-7}
    known = {name: summary(name, 0.3, max_error=error) for name, error in errors.items()}
    known["cuda.only_3x3"] = summary("cuda.only_3x3", 0.3, max_error=1e-7, workspace_bytes=8)
    assert order(advisor.advise(SMALL, measured=known))[:4] == ["cuda.shy", "cuda.plain", "cuda.only_3x3", "cuda.big"]


def test_a_pruned_variant_is_never_tied_though_its_one_sample_says_nothing_of_its_noise(advisor: Advisor) -> None:
    pruned = summary("cuda.big", 3.0, outcome=Outcome.PRUNED, noise=1.0)
    advice = advisor.advise(SMALL, measured=measured(plain=0.3, loose=0.3005) | {"cuda.big": pruned})
    tied = {choice.variant: choice.is_tied for choice in advice.ranking}
    assert (tied["cuda.plain"], tied["cuda.loose"], tied["cuda.big"]) == (True, True, False)


def test_measured_times_scale_the_predicted_ones(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL, measured=measured(plain=20.0, only_3x3=15.0))
    times = {choice.variant: (choice.time_ms, choice.source) for choice in advice.ranking}
    assert times["cuda.big"] == (pytest.approx(10.0), Source.PREDICTED)
    assert advice.variant == "cuda.big"


def test_a_prediction_barely_ahead_does_not_displace_the_measured_best(advisor: Advisor) -> None:
    advice = advisor.advise(MIDDLE, measured=measured(only_3x3=1.0))
    assert advice.variant == "cuda.only_3x3"
    second = advice.ranking[1]
    assert (second.variant, second.source, second.slowdown, second.is_tied) == (
        "cuda.plain",
        Source.PREDICTED,
        1.0,
        True,
    )


def test_a_measured_refusal_excludes(advisor: Advisor) -> None:
    advice = advisor.advise(SMALL, measured=measured(big=None))
    assert advice.variant == "cuda.only_3x3"
    assert reasons(advice) == {"cuda.big": "not supported: status 9"}


def test_a_workspace_refusal_counts_only_below_what_it_needs(advisor: Advisor) -> None:
    known = {"cuda.plain": summary("cuda.plain", outcome=Outcome.WORKSPACE_EXCEEDED, workspace_bytes=4096)}
    assert "cuda.plain" in reasons(advisor.advise(SMALL, max_workspace_bytes=4095, measured=known))
    assert "cuda.plain" in order(advisor.advise(SMALL, max_workspace_bytes=4096, measured=known))


def test_a_variant_that_the_model_does_not_know_needs_a_measurement() -> None:
    newer: dict[str, Variant] = CATALOGUE | {"cuda.new": replace(CATALOGUE["cuda.plain"], id="cuda.new")}
    advisor = Advisor(hand_made.model(), variants=newer)
    assert "model does not know" in reasons(advisor.advise(SMALL))["cuda.new"]
    assert advisor.advise(SMALL, measured=measured(new=0.01)).variant == "cuda.new"


def test_a_variant_that_the_catalogue_does_not_know_is_never_advised() -> None:
    advisor = Advisor(hand_made.model(), variants={"cuda.plain": CATALOGUE["cuda.plain"]})
    assert order(advisor.advise(SMALL, measured=measured(big=0.01))) == ["cuda.plain"]
    assert advisor.choose(SMALL) == "cuda.plain"


def test_without_a_model_only_measured_variants_are_advised() -> None:
    advisor = Advisor(None, hand_made.DEVICE, variants=CATALOGUE)
    advice = advisor.advise(SMALL, measured=measured(plain=2.0, loose=1.0, big=None))
    assert order(advice) == ["cuda.loose", "cuda.plain"]
    assert (advice.model_id, advice.path) == (None, ())
    assert reasons(advice)["cuda.shy"] == "not measured on this layer, and there is no model of toy-gpu"
    with pytest.raises(NoAdvice, match="there is no model of toy-gpu"):
        advisor.advise(SMALL)
    with pytest.raises(NoAdvice, match="toy-gpu"):
        advisor.choose(SMALL)


def test_nothing_left_says_why(advisor: Advisor) -> None:
    with pytest.raises(NoAdvice, match=r"7-1-3-64-32-float32-nchw on toy-gpu.*above the limit of -1"):
        advisor.advise(SMALL, max_workspace_bytes=-1)
    with pytest.raises(NoAdvice):
        advisor.choose(SMALL, max_workspace_bytes=-1)


def test_neither_model_nor_device_is_an_error() -> None:
    with pytest.raises(NoAdvice, match="neither"):
        Advisor(None)


@pytest.mark.parametrize("problem", [SMALL, MIDDLE, LARGE, POINTWISE])
@pytest.mark.parametrize("limits", [{}, {"max_workspace_bytes": 0}, {"is_deterministic": True}])
def test_choose_is_the_first_of_advise(advisor: Advisor, problem: ConvProblem, limits: dict[str, Any]) -> None:
    advice = advisor.advise(problem, **limits)
    assert advisor.choose(problem, **limits) == advice.variant
    assert list(advisor.predict_order(problem, **limits)) == order(advice)


def test_by_default_the_catalogue_of_the_device_kind_is_asked() -> None:
    device = Device(id="cpu", name="Some CPU", kind="cpu")
    advice = Advisor(None, device).advise(SMALL, measured={"cpu.gemm": summary("cpu.gemm", 1.0)})
    assert advice.variant == "cpu.gemm"
    ids = {*order(advice), *reasons(advice)}
    assert ids == {name for name in VARIANTS if name.startswith("cpu.")}
