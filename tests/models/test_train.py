"""Training: the same tree from the same data, scikit-learn's own answers, and advice worth having."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from threadpoolctl import threadpool_limits

from conv_advisor.data.errors import NotEnoughData, UnknownDevice
from conv_advisor.data.problem import DType, Layout
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import from_table
from conv_advisor.models.evaluation.judging import Score, judge
from conv_advisor.models.training.graft import nodes_of
from conv_advisor.models.training.made_up import sample_like
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.teacher import saturate
from conv_advisor.models.training.train import data_digest, fit_beside, train, training_set
from conv_advisor.models.tree.features import Quantities, features
from conv_advisor.models.tree.file import CARD_FILE, TREE_FILE, TreeModel, read, walk, write
from tests.data.arrow import measurements_to_table, table_to_measurements
from tests.models import hand_made, synthetic
from tests.models.conftest import CREATED, QUICK
from tests.models.test_ending_fit import rows as with_and_without


def test_walking_gives_what_scikit_learn_predicts() -> None:
    from sklearn.tree import DecisionTreeRegressor

    sizes = sample_like(synthetic.all_problems(), 3_000, np.random.default_rng(1))
    x = Quantities(sizes, 0, False).features()
    y = np.random.default_rng(2).normal(size=(len(x), 3))
    tree = DecisionTreeRegressor(max_leaf_nodes=700, random_state=0).fit(x[:1500], y[:1500])
    model = hand_made.walkable(nodes_of(tree))
    values = tree.tree_.value[tree.tree_.feature < 0, :, 0]
    walked = np.array([values[model.arrays["next"][walk(model, row)]] for row in x.tolist()])
    assert np.array_equal(walked, tree.predict(x))


def test_walking_agrees_on_the_thresholds_themselves() -> None:
    from sklearn.tree import DecisionTreeRegressor

    x = np.linspace(0, 1, 4_000, dtype=np.float32)[:, None]
    tree = DecisionTreeRegressor(random_state=0).fit(x, np.sin(50 * x[:, 0]))
    model = hand_made.walkable(nodes_of(tree))
    inner = tree.tree_.threshold[tree.tree_.feature >= 0]
    probes = np.concatenate([inner, np.nextafter(inner, 2), np.nextafter(inner, -2)]).astype(np.float32)[:, None]
    values = tree.tree_.value[tree.tree_.feature < 0, 0, 0]
    walked = np.array([values[model.arrays["next"][walk(model, row)]] for row in probes.tolist()])
    assert np.array_equal(walked, tree.predict(probes))


@pytest.mark.parametrize("threads", [1, 2])
def test_same_data_and_seed_give_the_same_bytes(
    table: pa.Table, trained: TreeModel, quick: Options, tmp_path: Path, threads: int
) -> None:
    shuffled = table.take(np.random.default_rng(3).permutation(table.num_rows))
    with threadpool_limits(threads):
        again = train(shuffled, device_id=synthetic.DEVICE.id, options=quick, created=CREATED, n_threads=threads)
    for name, model in (("first", trained), ("second", again)):
        write(tmp_path / name, model)
    for file in (TREE_FILE, CARD_FILE):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_the_id_is_made_of_the_tree_and_the_card_of_the_data_whenever_it_was_trained(
    table: pa.Table, trained: TreeModel, quick: Options, tmp_path: Path
) -> None:
    again = train(table, device_id=synthetic.DEVICE.id, options=quick)
    assert again.card["created"] == again.card["data_until"] == synthetic.MEASURED_AT.isoformat()
    assert trained.card["created"] != again.card["created"]
    write(tmp_path, again)
    digest = hashlib.sha256((tmp_path / TREE_FILE).read_bytes()).hexdigest()
    assert again.id == trained.id == digest[:12]


def test_times_of_an_unsteady_device_teach_nothing(table: pa.Table, trained: TreeModel, quick: Options) -> None:
    slow = [
        replace(row, samples_ms=(0.1 * row.time_ms,) * 5, clock_start_mhz=1980, clock_end_mhz=1500)
        for row in table_to_measurements(table.slice(0, 40))
        if row.time_ms
    ]
    model = train(pa.concat_tables([table, measurements_to_table(slow)]), device_id=synthetic.DEVICE.id, options=quick)
    assert model.id == trained.id
    assert (model.card["n_unsteady"], trained.card["n_unsteady"]) == (len(slow), 0)


def test_times_with_an_epilogue_teach_the_tree_nothing_and_its_card_what_they_add(
    table: pa.Table, trained: TreeModel, quick: Options
) -> None:
    more = with_and_without(synthetic.DEVICE)
    plain = pa.concat_tables([table, measurements_to_table([row for row in more if not row.problem.epilogue])])
    whole = pa.concat_tables([table, measurements_to_table(more)])
    model = train(whole, device_id=synthetic.DEVICE.id, options=quick)
    assert model.card["data_sha256"] == data_digest(training_set(from_table(plain, synthetic.DEVICE.id)))
    assert model.card["endings"]["costs"]["fused"]["factor"] == pytest.approx(1.1)
    assert "endings" not in trained.card


def test_another_seed_gives_another_tree(table: pa.Table, trained: TreeModel, quick: Options) -> None:
    other = train(table, device_id=synthetic.DEVICE.id, seed=1, options=quick)
    assert other.id != trained.id
    assert other.card["data_sha256"] == trained.card["data_sha256"]


def test_the_card_says_what_it_was_made_of(table: pa.Table, trained: TreeModel) -> None:
    card = trained.card
    costs = from_table(table, synthetic.DEVICE.id)
    assert card["n_problems"] == len(costs.problems) == len(synthetic.all_problems())
    assert card["n_layers"] == 24
    assert card["n_times"] == int(np.isfinite(costs.time_ms).sum())
    assert card["options"]["max_leaves"] == 60
    assert set(card["versions"]) == {"python", "numpy", "scikit-learn"}
    assert card["data_until"] == synthetic.MEASURED_AT.isoformat()
    assert trained.device == synthetic.DEVICE
    assert list(trained.variants) == sorted(synthetic.LAWS)


def test_it_survives_its_file(trained: TreeModel, tmp_path: Path) -> None:
    write(tmp_path, trained)
    again = read(tmp_path)
    problems = synthetic.all_problems()
    assert [walk(again, features(problem)) for problem in problems] == [
        walk(trained, features(problem)) for problem in problems
    ]


def test_dtypes_never_measured_are_advised_like_their_neighbours(trained: TreeModel) -> None:
    base = synthetic.all_problems()[0]
    float16, bfloat16 = (replace(base, dtype=dtype) for dtype in (DType.FLOAT16, DType.BFLOAT16))
    assert walk(trained, features(float16)) == walk(trained, features(bfloat16))


def test_both_half_precisions_have_one_tree_where_both_were_measured(table: pa.Table, quick: Options) -> None:
    costs = from_table(table, synthetic.DEVICE.id)
    halves = (DType.FLOAT16, DType.BFLOAT16)
    problems = tuple(replace(problem, dtype=halves[row % 2]) for row, problem in enumerate(costs.problems))
    asked = problems[:2]
    with threadpool_limits(1):
        model, orders = fit_beside(
            replace(costs, problems=problems), synthetic.DEVICE, asked, options=quick, created=CREATED
        )
    assert set(orders) == set(asked)
    for problem in problems:
        one, other = (features(replace(problem, dtype=dtype)) for dtype in halves)
        assert walk(model, one) == walk(model, other)


def test_advice_on_what_was_measured_is_near_the_oracle(table: pa.Table, trained: TreeModel) -> None:
    costs = from_table(table, synthetic.DEVICE.id)
    score = Score.of(judge(costs, Advisor(trained, variants=synthetic.CATALOGUE).predict_order))
    assert score.geometric_mean < 1.1
    assert score.share_refused < 0.05


def test_predicted_times_are_of_the_right_size(table: pa.Table, trained: TreeModel) -> None:
    costs = from_table(table, synthetic.DEVICE.id)
    advisor = Advisor(trained, variants=synthetic.CATALOGUE)
    off = [
        abs(np.log(choice.time_ms / costs.time_ms[row, costs.variants.index(choice.variant)]))
        for row, problem in enumerate(costs.problems)
        for choice in advisor.advise(problem).ranking[:3]
    ]
    assert np.nanmedian(off) < 0.4


def test_the_best_of_a_leaf_takes_the_time_that_the_leaf_keeps(trained: TreeModel) -> None:
    assert (trained.ranked("log_slowdown").min(axis=1) == 0).all()


def test_what_the_library_refuses_is_predicted_as_such(trained: TreeModel) -> None:
    advisor = Advisor(trained, variants=synthetic.CATALOGUE)
    problems = [problem for problem in synthetic.all_problems() if problem.layout is Layout.NCHW]
    for is_pointwise in (True, False):
        listed = [
            "cudnn.winograd_nonfused" in advisor.predict_order(problem)
            for problem in problems
            if (problem.r == 1) is is_pointwise
        ]
        assert bool(np.mean(listed) > 0.5) is not is_pointwise


def test_too_little_data_and_unknown_devices_are_errors(table: pa.Table) -> None:
    few = synthetic.table(synthetic.all_problems()[:19])
    with pytest.raises(
        NotEnoughData,
        match="19 problems to train on with at least half of the variants that apply; allowed: at least 20",
    ):
        train(few, device_id=synthetic.DEVICE.id)
    with pytest.raises(UnknownDevice, match="known: fake-gpu"):
        train(table, device_id="no-such")


def test_costs_saturate() -> None:
    assert saturate(np.array([0.0, 0.1, 3.0])) == pytest.approx([0, 1 - np.exp(-0.3), 1], abs=2e-4)


def test_asking_the_teacher_changes_no_tree_and_ranks_what_was_measured_well(
    table: pa.Table, trained: TreeModel
) -> None:
    costs = from_table(table, synthetic.DEVICE.id)
    model, orders = fit_beside(costs, synthetic.DEVICE, costs.problems[::7], options=QUICK)
    assert model.id == trained.id
    assert list(orders) == list(costs.problems[::7])
    known = costs.take(range(0, len(costs.problems), 7))
    assert Score.of(judge(known, lambda problem: orders[problem])).geometric_mean < 1.1
