"""Evaluation: slowdowns worked by hand, and layers kept apart."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput, NotEnoughData
from conv_advisor.data.measurement import Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.evaluation import evaluate as evaluation
from conv_advisor.models.evaluation.evaluate import evaluate
from conv_advisor.models.evaluation.judging import (
    ORACLE,
    SINGLE_BEST,
    TEACHER,
    TREE,
    Result,
    Score,
    TimeError,
    comparable,
    even_weights,
    first_then,
    judge,
    quantile,
    single_best_order,
    time_errors,
)
from conv_advisor.models.evaluation.peers import Peers
from conv_advisor.models.evaluation.report import Found, Report, scores_of
from conv_advisor.models.evaluation.tuning import Trial, Worth
from conv_advisor.models.retraining.challenge import hold_out
from conv_advisor.models.training import fits
from conv_advisor.models.training import train as training
from conv_advisor.models.training.grow import Orders
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.train import train
from conv_advisor.models.tree.file import TreeModel
from tests.data.arrow import measurements_to_table, picks_to_table
from tests.models import synthetic

DEVICE_ID = synthetic.DEVICE.id
PROBLEMS = [ConvProblem.parse(layer) for layer in ("7-1-1-8-8", "7-1-1-8-9", "7-1-1-9-9")]
TIMES_MS = [{"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 3.0, "b": 1.0, "c": None}, {"a": 2.0, "b": 2.0, "c": 8.0}]


def three_rows() -> Costs:
    """Three problems, three variants; one refusal, and one tie."""
    rows = [
        Measurement(
            problem,
            variant,
            synthetic.DEVICE,
            Outcome.MEASURED if time_ms else Outcome.NOT_SUPPORTED,
            samples_ms=(time_ms * 0.99, time_ms, time_ms * 1.01) if time_ms else (),
        )
        for problem, times in zip(PROBLEMS, TIMES_MS, strict=True)
        for variant, time_ms in times.items()
    ]
    return from_table(measurements_to_table(rows), DEVICE_ID)


def test_regret_of_a_three_row_table_worked_by_hand() -> None:
    score = Score.of(judge(three_rows(), lambda _problem: ["c", "a", "b"]))
    slowdowns = [4.0, 3.0, 4.0]  # row 2: c is refused, so a is run: 3 against b's 1
    assert score.n_problems == 3
    assert score.geometric_mean == pytest.approx(math.prod(slowdowns) ** (1 / 3))
    assert score.p95 == pytest.approx(np.quantile(slowdowns, 0.95))
    assert score.worst == pytest.approx(4.0)
    assert score.share_refused == pytest.approx(1 / 3)
    assert score.share_tied == 0
    assert score.accuracy == 0


def test_ties_and_accuracy() -> None:
    score = Score.of(judge(three_rows(), lambda _problem: ["b"]))
    assert score.geometric_mean == pytest.approx(2 ** (1 / 3))
    assert score.share_tied == pytest.approx(2 / 3)
    assert score.accuracy == pytest.approx(1 / 3)
    assert score.worst_problem == PROBLEMS[0].key


def test_the_oracle_has_no_slowdown() -> None:
    costs = three_rows()
    best = {
        problem: costs.variants[int(np.nanargmin(row))]
        for problem, row in zip(costs.problems, costs.time_ms, strict=True)
    }
    score = Score.of(judge(costs, lambda problem: [best[problem]]))
    assert (score.geometric_mean, score.worst, score.accuracy, score.share_tied) == (1, 1, 1, 1)


def test_a_rule_that_says_nothing_is_not_judged_and_one_that_fails_costs_the_slowest() -> None:
    costs = three_rows()
    assert judge(costs, lambda _problem: None) == []
    results = judge(costs, lambda _problem: ["c"])
    assert [result.slowdown for result in results] == pytest.approx([4, 3, 4])
    assert [result.is_refused for result in results] == [False, True, False]
    assert [result.slowdown for result in judge(costs, lambda _problem: [])] == pytest.approx([4, 3, 4])


def test_choices_that_were_never_tried_are_passed_over() -> None:
    results = judge(three_rows(), lambda _problem: ["never", "b"])
    assert [result.is_refused for result in results] == [False, False, False]
    assert [result.slowdown for result in results] == pytest.approx([2, 1, 1])


def given_up() -> Costs:
    """The three rows, but on the first of them c was given up on after one launch of 250 times the best."""
    costs = three_rows()
    pruned = replace(costs, time_ms=costs.time_ms.copy(), is_pruned=costs.is_pruned.copy())
    pruned.time_ms[0, 2], pruned.is_pruned[0, 2] = 250.0, True
    return pruned


def test_no_score_rests_on_a_launch() -> None:
    """cuDNN's heuristic was said to be 250.4 times behind where its choice is 2.91 times behind once it is sampled."""
    costs = given_up()
    results = judge(costs, lambda _problem: ["c", "a"])
    assert [result.is_timed for result in results] == [False, True, True]
    assert math.isnan(results[0].slowdown)
    with pytest.raises(ValueError, match="first launch"):
        Score.of(results)
    judged = {"launched": results, "other": judge(costs, lambda _problem: ["b"])}
    shared = comparable(judged)
    assert {rule: [each.problem for each in found] for rule, found in shared.items()} == dict.fromkeys(
        judged, PROBLEMS[1:]
    )
    assert Score.of(shared["launched"]).worst == 4.0
    refused = judge(costs, lambda _problem: [])
    assert [each.slowdown for each in refused] == pytest.approx([2, 3, 4]), "nor does the slowest that stands in"


def test_a_problem_that_one_rule_cannot_be_scored_on_is_left_out_for_everybody_and_counted() -> None:
    costs = given_up()
    rankers = {
        TREE: lambda _problem: ["a"],
        "launched": lambda _problem: ["c", "a"],
        "silent": lambda problem: None if problem == PROBLEMS[1] else ["b"],
        "nothing": lambda _problem: None,
    }
    judged = {rule: judge(costs, ranker) for rule, ranker in rankers.items()}
    part = Found([({"all": PROBLEMS, "first": PROBLEMS[:1]}, judged)]).part()
    assert {rule: score.n_problems for rule, score in part.overall.items()} == {TREE: 1, "launched": 1, "silent": 1}
    assert part.overall["launched"].worst == 4.0
    assert (part.n_left_out, part.n_silent) == ({"launched": 1}, {"silent": 1})
    assert part.trees["overall"][TREE].n_problems == 3
    assert list(part.by_network) == ["all"]


def test_over_all_every_dtype_and_layout_counts_the_same() -> None:
    problems = [PROBLEMS[0], PROBLEMS[1], PROBLEMS[2], replace(PROBLEMS[0], dtype="float16")]
    weights = even_weights(problems)
    assert weights == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    results = [Result(problem, 4.0 if problem.dtype == "float16" else 1.0, False, False, False) for problem in problems]
    assert Score.of(results).geometric_mean == pytest.approx(4 ** (1 / 4))
    assert Score.of(results, weights).geometric_mean == pytest.approx(2)
    part = Found([({}, {TREE: results})]).part()
    assert part.overall[TREE].geometric_mean == pytest.approx(2)


def test_a_quantile_of_equal_weights_is_the_plain_one() -> None:
    values = [3.0, 1.0, 2.0, 7.0, 4.0]
    for share in (0.0, 0.5, 0.95, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share))
        assert quantile(values, share, np.full(5, 0.2)) == pytest.approx(np.quantile(values, share))
    assert quantile([5.0], 0.95) == 5.0
    assert quantile([1.0, 2.0], 0.5, np.array([0.9, 0.1])) == pytest.approx(1.5)
    assert quantile([1.0, 2.0, 3.0], 0.5, np.array([0.8, 0.1, 0.1])) == pytest.approx(1 + 10 / 17)


def test_on_what_all_rules_have_in_common_one_oracle_counts() -> None:
    """It is the variant that was fastest beside the peers; where that has no time here the problem is left out."""
    first, second, third = PROBLEMS
    peers = Peers(
        {"theirs": {each: Result(each, 1.5, False, False, False) for each in PROBLEMS}},
        oracle={first: "b", second: "c", third: "a"},
    )
    costs = three_rows()
    rankers = {
        "always c": lambda _problem: ["c", "a"],
        "says little": lambda problem: ["a"] if problem != third else None,
    }
    judged = {rule: judge(costs, ranker) for rule, ranker in rankers.items()}
    found = evaluation._in_common(costs, rankers, judged, peers)
    assert [(rule, result.problem, result.slowdown) for rule, result in found] == [
        ("always c", first, 2.0),
        ("says little", first, 0.5),
        ("oracle", first, 1.0),
        ("theirs", first, 1.5),
    ]
    assert evaluation._in_common(costs, rankers, judged, Peers()) == []


def test_single_best_counts_refusals() -> None:
    assert single_best_order(three_rows()) == ["b", "a", "c"]


def test_single_best_is_not_held_to_problems_where_it_was_never_tried() -> None:
    costs = three_rows()
    gap = replace(costs, time_ms=costs.time_ms.copy(), is_known=costs.is_known.copy())
    gap.time_ms[2, 1], gap.is_known[2, 1] = np.nan, False
    assert single_best_order(gap)[0] == "b"
    gap.time_ms[1, 1], gap.is_known[1, 1] = np.nan, False
    assert single_best_order(gap)[-1] == "b"  # tried on a third of them


def test_leave_one_network_out(table: pa.Table, quick: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_on: list[set[ConvProblem]] = []
    fit = fits.fit_beside

    def spy(costs: Costs, *args: object, **options: object) -> tuple[TreeModel, Orders]:
        trained_on.append({problem.layer for problem in costs.problems})
        return fit(costs, *args, **options)

    monkeypatch.setattr(fits, "fit_beside", spy)
    chosen = {name: [ConvProblem.parse(layer, n=99) for layer in synthetic.LAYERS[name]] for name in ("small", "odd")}
    chosen["elsewhere"] = [ConvProblem.parse("3-1-1-7-7")]
    shares: list[float] = []
    report = evaluate(
        table,
        synthetic.picks(synthetic.all_problems()),
        device_id=DEVICE_ID,
        network_layers=chosen,
        options=quick,
        variants=synthetic.CATALOGUE,
        jobs=1,
        on_progress=shares.append,
    )
    assert shares == [0.5, 1.0]
    assert report.never_trained is None
    assert list(report.by_network) == ["small", "odd"]
    for layers, name in zip(trained_on, ("small", "odd"), strict=True):
        assert not layers & {problem.layer for problem in chosen[name]}
        assert len(layers) == 18
    assert set(report.by_precision) == {"float16/nchw", "float16/nhwc", "float32/nchw", "float32/nhwc"}
    scores = report.overall
    assert list(scores) == ["tree", "teacher", "cudnn.heuristic_v7", "single best", "oracle"]
    assert scores["tree"].n_problems == 12 * 4 * 4
    assert scores["oracle"].geometric_mean == 1
    assert scores["tree"].geometric_mean < scores["single best"].geometric_mean
    assert scores["tree"].geometric_mean < 1.3
    assert scores["teacher"].n_problems == scores["tree"].n_problems
    assert scores["teacher"].geometric_mean < scores["single best"].geometric_mean
    assert scores["cudnn.heuristic_v7"].share_refused > 0.5
    assert json.loads(json.dumps(report.to_dict()))["overall"]["tree"]["worst"] == scores["tree"].worst


def never_trained_report(
    table: pa.Table, quick: Options, jobs: int, model: TreeModel | None = None, *, trains: bool | None = None
) -> Report:
    """Judges networks left out and networks never trained on, the latter with two layers that both have."""
    named = {name: [ConvProblem.parse(layer) for layer in layers] for name, layers in synthetic.LAYERS.items()}
    problem = ConvProblem.parse("7-1-1-256-832", dtype="float16")
    trial = Trial(advised_ms=2.0, untuned_ms=4.0, tuned_ms=1.0, untuned_call_s=0.004, tuned_call_s=0.501)
    beside = {"pytorch.default": {problem: Result(problem, 1.5, False, False, False)}}
    peers = Peers(beside, oracle={problem: "cudnn.implicit_precomp_gemm"}, trials={problem: trial})
    return evaluate(
        table,
        device_id=DEVICE_ID,
        network_layers={"small": named["small"]},
        never_trained={"odd": named["odd"], "odd and large": [*named["odd"][:2], *named["large"]]},
        peers=peers,
        model=model,
        trains=trains,
        options=quick,
        variants=synthetic.CATALOGUE,
        jobs=jobs,
    )


@pytest.fixture(scope="module")
def report(table: pa.Table, quick: Options) -> Report:
    return never_trained_report(table, quick, jobs=1)


def test_networks_never_trained_on_are_judged_by_one_tree_and_each_layer_once(report: Report) -> None:
    never = report.never_trained
    assert never is not None
    assert list(never.by_network) == ["odd", "odd and large"]
    counts = [never.by_network[name]["tree"].n_problems for name in never.by_network]
    assert counts == [6 * 16, 8 * 16]
    assert never.overall["tree"].n_problems == 12 * 16
    assert set(never.time_error) == {"overall", *never.by_precision}
    assert 0 < never.time_error["overall"].median < never.time_error["overall"].p90
    assert "pytorch.default" not in report.overall, "it was timed on one of these problems alone"
    assert never.in_common == {}
    assert set(report.in_common) == {"overall", "float16/nchw"}
    common = report.in_common["overall"]
    assert list(common) == [TREE, TEACHER, SINGLE_BEST, ORACLE, "pytorch.default"]
    assert (common["pytorch.default"].geometric_mean, common[ORACLE].geometric_mean) == (1.5, 1.0)
    assert report.tuning == {name: Worth(1, 0.0, 500, 0.5, 0.5, 0.0) for name in ("overall", "float16/nchw")}


def test_trees_trained_side_by_side_are_those_trained_one_by_one(
    table: pa.Table, quick: Options, report: Report
) -> None:
    assert never_trained_report(table, quick, jobs=2) == report


def test_a_tree_is_judged_as_it_is_and_nothing_is_trained(
    table: pa.Table, quick: Options, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree that was trained without these layers has the scores that evaluating it by training has."""
    costs = from_table(table, DEVICE_ID)
    unseen = {ConvProblem.parse(layer) for layer in [*synthetic.LAYERS["odd"], *synthetic.LAYERS["large"]]}
    model = training.fit(costs.where(lambda problem: problem.layer not in unseen), synthetic.DEVICE, options=quick)
    monkeypatch.setattr(evaluation, "fit_each", None)
    found, never = never_trained_report(table, quick, 1, model), report.never_trained
    assert found.never_trained is not None
    assert never is not None
    assert found.never_trained.overall == {rule: each for rule, each in never.overall.items() if rule != TEACHER}
    assert found.never_trained.time_error == never.time_error
    assert found.trees == {}
    assert found.overall[SINGLE_BEST] == report.overall[SINGLE_BEST]
    assert set(scores_of(found)) == {"never_trained"}


def test_a_tree_that_ships_is_judged_itself_beside_the_trees_of_networks_left_out(
    table: pa.Table, quick: Options, report: Report
) -> None:
    """A tree that knows two layers is worse than the one that was trained for the evaluation."""
    two = {ConvProblem.parse(layer) for layer in synthetic.LAYERS["small"][:2]}
    few = from_table(table, DEVICE_ID).where(lambda problem: problem.layer in two)
    model = training.fit(few, synthetic.DEVICE, options=quick)
    found, never = never_trained_report(table, quick, 1, model, trains=True), report.never_trained
    assert (found.overall, found.trees) == (report.overall, report.trees)
    assert found.never_trained is not None
    assert never is not None
    assert found.never_trained.overall[TREE].geometric_mean > never.overall[TREE].geometric_mean
    assert found.never_trained.overall[TEACHER] == never.overall[TEACHER]
    assert set(scores_of(found)) == set(scores_of(report))


def test_nothing_is_trained_on_layers_that_judge_every_tree(table: pa.Table, quick: Options) -> None:
    layer = ConvProblem.parse("28-1-3-32-128")
    assert layer in networks.held_out_layers()
    judging = synthetic.table(synthetic.problems([layer.short]))
    both = pa.concat_tables([table, judging])
    model = train(both, device_id=DEVICE_ID, options=quick)
    assert model.id == train(table, device_id=DEVICE_ID, options=quick).id
    assert layer in {problem.layer for problem in from_table(both, DEVICE_ID).problems}
    assert layer not in {problem.layer for part in hold_out(from_table(both, DEVICE_ID)) for problem in part.problems}
    with pytest.raises(NotEnoughData):
        hold_out(from_table(judging, DEVICE_ID))


def test_fewer_than_one_job_is_refused(table: pa.Table) -> None:
    with pytest.raises(InvalidInput, match="jobs is 0; allowed: an integer of at least 1"):
        list(fits.fit_each([from_table(table, DEVICE_ID)], synthetic.DEVICE, asked=[()], jobs=0))


def test_errors_of_predicted_times_by_hand() -> None:
    costs = three_rows()

    class Says:
        def predict(self, problem: ConvProblem) -> tuple[str, float] | None:
            return {PROBLEMS[0]: ("a", 1.1), PROBLEMS[1]: ("c", 1.0), PROBLEMS[2]: ("b", 1.0)}[problem]

    errors = time_errors(costs, Says())  # the second is refused there
    assert [problem for problem, _ in errors] == [PROBLEMS[0], PROBLEMS[2]]
    assert [error for _, error in errors] == pytest.approx([0.1, 0.5])
    assert TimeError.of([error for _, error in errors]) == TimeError(2, pytest.approx(0.3), pytest.approx(0.46))


def test_a_pick_counts_for_its_own_problem_only(table: pa.Table) -> None:
    costs = from_table(table, DEVICE_ID)
    problem = costs.problems[0]
    picks = picks_to_table([Pick(problem, synthetic.DEVICE, "somebody", "cudnn.implicit_gemm")])
    (chosen,) = evaluation._picks(picks, DEVICE_ID).values()
    ranker = first_then(chosen, ["cudnn.gemm"])
    assert ranker(problem) == ["cudnn.implicit_gemm", "cudnn.gemm"]
    assert [result.problem for result in judge(costs, ranker)] == [problem]


def test_scores_for_the_card_are_the_tree_s_of_both_parts(report: Report) -> None:
    scores = scores_of(report)
    assert set(scores) == {"leave_one_network_out", "never_trained"}
    assert set(scores["never_trained"]) == {"overall", *report.by_precision}
    overall = scores["leave_one_network_out"]["overall"]
    assert overall["geometric_mean"] == pytest.approx(report.trees["overall"]["tree"].geometric_mean, abs=1e-4)
    assert overall["median_time_error"] == pytest.approx(report.time_error["overall"].median, abs=1e-4)
