"""Accuracy of what is chosen: by the tree's laws before a measurement, against PyTorch's own convolution in one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.errors import InvalidInput, RunError
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.pareto import SAME_ERROR
from conv_advisor.models.ranking.accuracy import expected_error, laws_of
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from conv_advisor.torch.calls.checking import Operands
from conv_advisor.torch.calls.own import own_convolution
from conv_advisor.torch.choosing.candidates import MOST_SLOWDOWN, ONLY_ENDED, candidates
from conv_advisor.torch.options import Options

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts

WINOGRAD = ConvProblem.parse("56-1-3-64-64", dtype="float32", layout="nchw")
"""A layer some of whose fastest variants are farther from float64 than what PyTorch runs."""
EIGHT = ConvProblem.parse("56-8-3-64-64", dtype="float32", layout="nchw")
"""One whose fastest variant is, and whose next is nearer than half of that."""
HALF = ConvProblem.parse("28-32-3-512-256", dtype="float16", layout="nhwc")


@cache
def advisor() -> Advisor:
    return Advisor(read(SHIPPED / "nvidia-h200"))


def errors(problem: ConvProblem, options: Options) -> list[float]:
    laws = laws_of(advisor().model)
    return [
        expected_error(laws, choice.variant or "", problem)[0] for choice in candidates(advisor(), problem, options)
    ]


def test_a_tighter_bound_leaves_out_the_less_accurate() -> None:
    free = errors(EIGHT, Options(measure=0, max_error_ratio=inf))
    bound = errors(EIGHT, Options(measure=0, max_error_ratio=1))
    assert len(free) == len(bound) == 1
    assert bound[0] < free[0] / 2


def test_where_it_is_measured_a_law_has_room_to_be_wrong() -> None:
    own = advisor().advise(EIGHT).baselines.cudnn_heuristic.variant
    assert own is not None
    allowed = expected_error(laws_of(advisor().model), own, EIGHT)[0]
    (unmeasured,) = errors(EIGHT, Options(measure=0, max_error_ratio=1))
    measured = errors(EIGHT, Options(measure=40, max_error_ratio=1))
    assert unmeasured in measured
    assert unmeasured <= allowed < max(measured) <= SAME_ERROR * allowed


@pytest.mark.parametrize("measure", [1, 3])
def test_candidates_are_the_first_of_the_ranking_with_what_is_predicted(measure: int) -> None:
    chosen = candidates(advisor(), HALF, Options(measure=measure))
    ranking = advisor().advise(HALF).ranking
    assert [choice.variant for choice in chosen] == [choice.variant for choice in ranking[: len(chosen)]]
    assert 1 <= len(chosen) <= measure
    assert all(choice.time_ms <= MOST_SLOWDOWN * chosen[0].time_ms for choice in chosen)
    assert not any(choice.is_measured for choice in chosen)
    assert chosen[0].gain is not None
    assert "as predicted" in str(chosen[0])


LARGE = ConvProblem.parse("28-128-3-512-512", dtype="float16", layout="nhwc")
"""A layer that has a large tile for every multiprocessor."""


ENDS = Epilogue(bias=True, activation=Activation.RELU)


def test_cudnns_engine_that_fuses_is_timed_where_something_follows() -> None:
    engine = "cudnn.graph.eng39"
    assert engine == ONLY_ENDED
    ended = replace(ConvProblem.parse("28-1-1-512-128", dtype="float16", layout="nhwc"), epilogue=ENDS)
    for options in (Options(measure=3), Options(measure=3, only_cudnn=True)):
        assert engine in {choice.variant for choice in candidates(advisor(), ended, options)}
    for other in (replace(ended, epilogue=PLAIN), replace(ended, dtype=DType.TF32), replace(LARGE, epilogue=ENDS)):
        assert engine not in {choice.variant for choice in candidates(advisor(), other, Options(measure=3))}


def test_a_variant_that_is_among_the_first_anyway_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = advisor().advise(LARGE).ranking[0].variant
    monkeypatch.setattr("conv_advisor.torch.choosing.candidates.ONLY_ENDED", first)
    assert [choice.variant for choice in candidates(advisor(), LARGE, Options(measure=3))].count(first) == 1


def test_only_cudnns_where_no_other_may_run() -> None:
    chosen = candidates(advisor(), HALF, Options(only_cudnn=True))
    assert chosen
    assert all((choice.variant or "").startswith("cudnn.") for choice in chosen)


def test_candidates_keep_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits_seen, advise = [], Advisor.advise

    def remember(advisor: Advisor, problem: ConvProblem, **limits: Any) -> Any:
        limits_seen.append(limits)
        return advise(advisor, problem, **limits)

    monkeypatch.setattr(Advisor, "advise", remember)
    assert candidates(advisor(), WINOGRAD, Options(deterministic=True, max_workspace_bytes=0))
    assert limits_seen == [{"max_workspace_bytes": 0, "is_deterministic": True}]


def test_where_nothing_applies_there_is_no_candidate() -> None:
    assert candidates(Advisor(None, advisor().device), HALF, Options()) == []


class Convolves:
    """A variant on a CPU: PyTorch's own convolution, off by some share of the largest output."""

    def __init__(self, problem: ConvProblem, off: float) -> None:
        self._problem, self._off = problem, off

    def run_into(self, x: Any, weight: Any, y: Any, *ends: Any) -> None:
        y.copy_(own_convolution(x, weight, [1, 1], [1, 1], [1, 1], 1, self._problem.key))
        y += self._off * y.abs().max()


class LeavesOut(Convolves):
    """A variant that writes only the first image."""

    def run_into(self, x: Any, weight: Any, y: Any, *ends: Any) -> None:
        others = y[1:].clone()
        super().run_into(x, weight, y)
        y[1:] = others


SMALL = ConvProblem.parse("9-2-3-8-8", dtype="float32", layout="nhwc")


def test_an_error_is_held_against_that_of_pytorchs_own() -> None:
    operands = Operands(SMALL, "cpu", max_error_ratio=8)
    own_error = operands.own_error
    assert 0 < own_error < 1e-6
    assert operands.checked_error(Convolves(SMALL, 0.0)) == own_error
    assert operands.checked_error(Convolves(SMALL, 5e-7)) > own_error
    with pytest.raises(RunError, match="PyTorch's own shows"):
        operands.checked_error(Convolves(SMALL, 4e-6))
    assert Operands(SMALL, "cpu").checked_error(Convolves(SMALL, 4e-6)) > 3e-6


class Cuts(Convolves):
    """A variant that cuts operands to tf32; where it is not off, it rounds them to the nearest."""

    def run_into(self, x: Any, weight: Any, y: Any, *ends: Any) -> None:
        half = 0 if self._off else 0x1000
        operands = (((tensor.view(torch.int32) + half) & -0x2000).view(torch.float32) for tensor in (x, weight))
        y.copy_(own_convolution(*operands, [1, 1], [1, 1], [1, 1], 1, self._problem.key))


def test_errors_of_one_sign_are_not_borne_where_they_would_add_up() -> None:
    problem = ConvProblem.parse("9-2-3-8-8", dtype="tf32", layout="nhwc")
    operands = Operands(problem, "cpu", max_error_ratio=8)
    assert operands.checked_error(Cuts(problem, 0.0)) < 2**-10
    with pytest.raises(RunError, match=r"bias of its errors is -0\.0006"):
        operands.checked_error(Cuts(problem, 1.0))
    assert Operands(problem, "cpu").checked_error(Cuts(problem, 1.0)) < 2**-9


def test_an_image_that_was_not_written_is_an_error() -> None:
    with pytest.raises(RunError):
        Operands(SMALL, "cpu").checked_error(LeavesOut(SMALL, 0.0))


@pytest.mark.parametrize("ratio", [0.5, -1, True, "8", None, float("nan")])
def test_a_bound_is_a_number_from_1_on(ratio: Any) -> None:
    with pytest.raises(InvalidInput, match=r"options\.max_error_ratio"):
        Options(max_error_ratio=ratio)


def test_a_choice_under_another_bound_is_another_plan() -> None:
    assert (Options().limits, Options(max_error_ratio=2).limits) == ("", "error2")
