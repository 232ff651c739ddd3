"""The nearest measured layers, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.neighbours import Neighbourhood, describe
from tests.models.test_advisor import summary

LAYERS = ("14-1-3-256-128", "14-1-3-128-128", "14-2-3-256-128", "14-1-5-256-128", "14-1-3-256-16")
PROBLEMS = [ConvProblem.parse(layer) for layer in LAYERS]
ASKED = ConvProblem.parse("14-1-3-256-120")


def of(problems: list[ConvProblem]) -> Neighbourhood:
    return Neighbourhood(problem.key for problem in problems)


def shorts(found: list[tuple[ConvProblem, float]]) -> list[str]:
    return [problem.short for problem, _ in found]


def test_neighbours_come_nearest_first_with_their_distance() -> None:
    found = of(PROBLEMS).nearest(ASKED, 5)
    assert shorts(found) == ["14-1-3-256-128", "14-2-3-256-128", "14-1-3-128-128", "14-1-3-256-16", "14-1-5-256-128"]
    assert found[0][1] == pytest.approx(0.0931, abs=1e-4)
    assert shorts(of(PROBLEMS).nearest(ASKED, 2)) == shorts(found)[:2]


def test_the_layer_itself_is_no_neighbour() -> None:
    found = of(PROBLEMS).nearest(PROBLEMS[0], 5)
    assert len(found) == 4
    assert PROBLEMS[0] not in [problem for problem, _ in found]


def test_a_layer_that_differs_in_padding_alone_is_a_neighbour_at_some_distance() -> None:
    valid = replace(PROBLEMS[0], pad_h=0, pad_w=0, pad_h_end=0, pad_w_end=0)
    assert of(PROBLEMS).nearest(valid, 1) == [(PROBLEMS[0], pytest.approx(math.sqrt(2)))]
    assert of([valid]).nearest(replace(valid, pad_w=1, pad_w_end=1), 1) == [(valid, pytest.approx(1.0))]


def test_layers_with_an_epilogue_or_uneven_padding_are_nobodys_neighbours() -> None:
    ended = replace(PROBLEMS[1], epilogue=Epilogue(bias=True))
    uneven = replace(PROBLEMS[1], pad_h_end=0)
    assert of([ended, uneven]).nearest(PROBLEMS[0], 3) == []
    assert of([*PROBLEMS, ended, uneven]).nearest(PROBLEMS[0], 9) == of(PROBLEMS).nearest(PROBLEMS[0], 9)
    assert of(PROBLEMS).nearest(ended, 1)[0][0] == of(PROBLEMS).nearest(PROBLEMS[1], 1)[0][0]


def test_neighbours_are_of_the_same_precision_and_layout() -> None:
    others = [ConvProblem.parse(layer, dtype="float16") for layer in LAYERS[:2]]
    found = of(PROBLEMS + others).nearest(ConvProblem.parse("14-1-3-256-120", dtype="float16"), 5)
    assert [problem for problem, _ in found] == others
    assert of(PROBLEMS).nearest(ConvProblem.parse(LAYERS[0], layout="nhwc"), 5) == []
    assert of([]).nearest(ASKED, 5) == []


def test_of_each_the_fastest_is_told_and_how_the_advised_one_did() -> None:
    nearest = [(PROBLEMS[0], 0.1), (PROBLEMS[1], 1.0), (PROBLEMS[2], 1.5)]
    known = {
        PROBLEMS[0].key: {
            "cuda.plain": summary("cuda.plain", 2.0),
            "cuda.big": summary("cuda.big", 1.0),
            "cuda.shy": summary("cuda.shy", 0.5, outcome=Outcome.PRUNED),
        },
        PROBLEMS[1].key: {"cuda.big": summary("cuda.big", 3.0), "cuda.plain": summary("cuda.plain")},
        PROBLEMS[2].key: {"cuda.plain": summary("cuda.plain")},
    }
    first, second = describe(nearest, known, "cuda.plain")
    assert (first.layer, first.distance, first.variant, first.time_ms) == (LAYERS[0], 0.1, "cuda.big", 1.0)
    assert (first.n_measured, first.advised_slowdown) == (2, 2.0)
    assert (second.variant, second.advised_slowdown) == ("cuda.big", None)
