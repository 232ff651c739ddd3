"""Whether enough was measured: the number that a request is told is the one that training needs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from conv_advisor import app
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import from_table
from conv_advisor.models.retraining.challenge import hold_out
from conv_advisor.models.training.enough import ENOUGH_MEASURED, MIN_PROBLEMS, check_enough, held_out_of, teaches
from tests.data.arrow import measurements_to_table
from tests.models import synthetic

LAYERS = [ConvProblem.parse(f"7-1-3-{k}-64") for k in range(8, 8 + ENOUGH_MEASURED)]


def test_what_is_told_is_what_training_is_left_with() -> None:
    table = synthetic.table(LAYERS[:25])
    left = sum(teaches(problem) for problem in hold_out(from_table(table, synthetic.DEVICE.id))[0].problems)
    assert left == 25 - len(held_out_of(LAYERS[:25]))
    few = LAYERS[: MIN_PROBLEMS - 1]
    n_left = len(few) - len(held_out_of(few))
    with pytest.raises(NotEnoughData, match=f"here: 19 problems were measured, and {n_left} are left to train on"):
        check_enough(few, "here")


def test_as_many_as_people_are_told_are_enough() -> None:
    check_enough(LAYERS, "here")
    templates = Path(app.__file__).parent / "web" / "templates"
    told = [int(n) for page in templates.glob("*.html") for n in re.findall(r"about (\d+) layers", page.read_text())]
    assert told == [ENOUGH_MEASURED] * 3


def test_no_more_is_looked_at_than_is_enough() -> None:
    more = iter(LAYERS * 1000)
    check_enough(more, "here")
    assert len(list(more)) >= 1000 * len(LAYERS) - 2 * ENOUGH_MEASURED


def test_layers_none_of_which_is_a_judge_give_one_up() -> None:
    judges = held_out_of(LAYERS)
    others = [layer for layer in LAYERS if layer not in judges][:MIN_PROBLEMS]
    with pytest.raises(NotEnoughData, match="here: 20 problems were measured, and 19 are left to train on"):
        check_enough(others, "here")
    check_enough([*others, next(iter(judges))], "here")


def test_layers_that_teach_nothing_do_not_count() -> None:
    judges = sorted(held_out_layers(), key=lambda layer: layer.key)
    with pytest.raises(NotEnoughData, match="and 0 are left"):
        check_enough(judges[:60], "here")
    with pytest.raises(NotEnoughData, match="0 problems were measured"):
        check_enough([], "here")


def test_one_is_said_as_one() -> None:
    with pytest.raises(NotEnoughData, match="here: 2 problems were measured, and 1 is left to train on"):
        check_enough(LAYERS[:2], "here")
    with pytest.raises(NotEnoughData, match="here: 1 problem was measured, and 0 are left to train on"):
        check_enough(LAYERS[:1], "here")


def test_who_measured_too_few_variants_is_told_what_to_measure() -> None:
    names = itertools.cycle(["cudnn.implicit_precomp_gemm", "cuda.gemm", "cuda.direct_naive"])
    narrow = measurements_to_table(
        Measurement(problem, name, synthetic.DEVICE, Outcome.MEASURED, "", (1.0, 1.1), 0, 1e-7)
        for problem, name in zip(LAYERS, names, strict=False)
    )
    with pytest.raises(
        NotEnoughData, match=f"at least half of .* Measure all variants of some {ENOUGH_MEASURED} layers"
    ):
        from_table(narrow, synthetic.DEVICE.id)
