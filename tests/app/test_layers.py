"""What parameters of a layer mean: the same alone and in a list, and what the documentation says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.app.advice.asked import parse_list
from conv_advisor.app.wire.layers import named, problem_from, problems_from
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.table import row_of

NUMBERS = st.one_of(st.integers(0, 5), st.sampled_from([-1, 2**31 - 1, 2**31, 2**62]))
SIZES = st.fixed_dictionaries(dict.fromkeys("nchwkrs", NUMBERS))
MORE = st.dictionaries(
    st.sampled_from(["stride", "stride_h", "stride_w", "pad", "pad_h", "pad_w", "dilation", "dilation_w", "groups"]),
    NUMBERS,
)
KIND = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["float32", "float16", "tf32", "float64", ""]),
        "layout": st.sampled_from(["nchw", "nhwc", "hwcn"]),
    },
)
SHORT = st.sampled_from(["14-1-3-256-128", "7-1-1-32-832", "007-1-1-32-832", "0-1-1-1-1", "14-1-3", "8-1-2-3-4", ""])
NAMED = st.tuples(SIZES, MORE, KIND).map(lambda parts: parts[0] | parts[1] | parts[2])
OBJECT = st.tuples(SHORT, MORE, KIND).map(lambda parts: {"layer": parts[0]} | parts[1] | parts[2])
LONG = "28x28-1-3x3-13-28-stride{}x1-pad1x{}-dilation1x1-groups1"
LONGS = [LONG.format(stride, pad) for stride in (0, 1, 2) for pad in (0, 1)]
PLAIN = st.sampled_from(
    ["14-1-3-256-128", "8-1-2-3-4", "2000000-2000-3-1-1", "9999999999-1-3-1-1", "224-256-5-64-3", *LONGS]
)
BROKEN = st.sampled_from(["14-1-3-1-1\n14-1-3-1-1", "14-1-3-1-1\n", "14 1 3 1 1", "14-1-3-1-", "99999999999-1-3-1-1"])
LAYERS = st.one_of(
    st.lists(st.one_of(SHORT, NAMED, OBJECT, SIZES, MORE), min_size=1, max_size=6),
    st.lists(PLAIN, min_size=1, max_size=6),
    st.lists(st.one_of(PLAIN, BROKEN), min_size=1, max_size=6),
)


SAID = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups")
"""What a short form may say behind its sizes."""


def spelled_out(given: dict[str, Any]) -> dict[str, Any]:
    """Pairs as their two members, where those are not named."""
    found = dict(given)
    for pair in ("stride", "pad", "dilation"):
        if pair in found:
            value = found.pop(pair)
            found = {f"{pair}_h": value, f"{pair}_w": value} | found
    return found


def alone(common: dict[str, Any], layer: Any) -> ConvProblem | str:
    """What a layer means, by what the documentation says and nothing that is there to be fast."""
    own = {"layer": layer} if isinstance(layer, str) else layer
    given = spelled_out(common) | spelled_out(own)
    short = given.pop("layer", None)
    try:
        if short is None:
            missing = next((name for name in "nchwkrs" if name not in given), None)
            return f"{missing} is None" if missing else ConvProblem(**given)
        beside = next((name for name in "nchwkrs" if name in given), None)
        if beside:
            return f"{beside} is {given[beside]}"
        again = next((name for name in SAID if name in given and contradicts(short, name, given[name])), None)
        return f"{again} is {given[again]}" if again else ConvProblem.parse(short, **given)
    except InvalidInput as error:
        return str(error)


def contradicts(short: str, name: str, value: Any) -> bool:
    """Whether a short form says something else behind its sizes."""
    part, _, side = name.partition("_")
    match = re.search(rf"-{part}(\d+)(?:x(\d+))?", short)
    return match is not None and value != int(match[2] if side == "w" and match[2] else match[1])


def said(problem: ConvProblem | InvalidInput, as_far_as: ConvProblem | str) -> ConvProblem | str:
    """A problem, or the words of an error as far as those that are expected go."""
    if isinstance(problem, ConvProblem):
        return problem
    return str(problem)[: len(as_far_as)] if isinstance(as_far_as, str) else str(problem)


@settings(max_examples=1000, deadline=None)
@given(LAYERS, KIND, st.one_of(st.just({}), MORE))
def test_each_layer_means_what_it_means_alone(layers: list[Any], kind: dict[str, Any], more: dict[str, Any]) -> None:
    asked = parse_list(json.dumps({"layers": layers} | kind | more).encode())
    problems, sizes = problems_from(asked.layers, named(asked.common.given()))
    expected = [alone(kind | more, layer) for layer in layers]
    assert list(map(said, problems, expected)) == expected
    valid = [each for each in expected if isinstance(each, ConvProblem)]
    assert sizes.tolist() == [list(row_of(each)) for each in valid]
    found = [problem for problem in problems if isinstance(problem, ConvProblem)]
    assert [each.key for each in found] == [each.key for each in valid]


@settings(max_examples=1000, deadline=None)
@given(st.one_of(NAMED, OBJECT, SIZES, MORE, SHORT.map(lambda short: {"layer": short})))
def test_a_layer_of_no_list_means_the_same(layer: dict[str, Any]) -> None:
    expected = alone({}, layer)
    if isinstance(expected, ConvProblem):
        assert (problem_from(layer), problem_from(layer).key) == (expected, expected.key)
    else:
        with pytest.raises(InvalidInput) as caught:
            problem_from(layer)
        assert said(caught.value, expected) == expected


@pytest.mark.parametrize("pair", [{"stride": "2x1"}, {"pad": [2, 1]}, {"dilation": "2,1", "dtype": "half"}])
@pytest.mark.parametrize("layer", [{"layer": "9-1-3-4-4"}, dict.fromkeys("nchwkrs", 3) | {"h": 9, "w": 9}])
def test_pairs_of_a_list_are_those_of_a_layer_alone(layer: dict[str, Any], pair: dict[str, Any]) -> None:
    alone = problem_from(layer | pair)
    for body in ({"layers": [layer | pair, "8-1-1-4-4"]}, {"layers": [layer, "8-1-1-4-4"]} | pair):
        asked = parse_list(json.dumps(body).encode())
        problems, sizes = problems_from(asked.layers, named(asked.common.given()))
        assert problems[0] == alone
        assert sizes.tolist() == [list(row_of(problem)) for problem in problems if isinstance(problem, ConvProblem)]


@pytest.mark.parametrize("value", ["x", "", "1x2x3", [], [1, 2, 3], "NaN", "\u0663"])
def test_a_pair_that_is_none_says_so_in_its_place(value: Any) -> None:
    asked = parse_list(json.dumps({"layers": [{"layer": "8-1-1-4-4", "stride": value}, "8-1-1-4-4"]}).encode())
    (refused, problem), _ = problems_from(asked.layers, named(asked.common.given()))
    assert isinstance(refused, InvalidInput)
    assert refused.field.startswith("stride")
    assert problem == ConvProblem.parse("8-1-1-4-4")


@pytest.mark.parametrize("value", [True, "3", 3.0, None])
def test_what_is_no_integer_is_no_size_of_a_layer(value: Any) -> None:
    sizes = dict.fromkeys("nchwkrs", 3) | {"k": value}
    with pytest.raises(InvalidProblem, match=r"^k is "):
        problem_from(sizes)


@pytest.mark.parametrize("layer", ["14-1-3-256-128", {"layer": "14-1-3-256-128", "dtype": "tf32"}])
def test_a_problem_that_was_made_from_a_row_is_a_problem(layer: Any) -> None:
    asked = parse_list(json.dumps({"layers": [layer]}).encode())
    ((problem,), _) = problems_from(asked.layers)
    assert isinstance(problem, ConvProblem)
    assert problem == ConvProblem.parse("14-1-3-256-128", dtype=problem.dtype)
    assert problem.short == "14-1-3-256-128"
