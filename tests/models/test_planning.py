"""Layouts of the least total time: held against every choice there is, and against HiGHS."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, milp

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.models.planning.cut import Cut
from conv_advisor.models.planning.layouts import choose_layouts
from conv_advisor.models.planning.network import Network, Operator

PROBLEM = ConvProblem.parse("14-1-3-64-64")


def convert_ms(n_bytes: int) -> float:
    return n_bytes / 1000


def random_network(random: Random, size: int) -> tuple[Network, list[dict[Layout, float] | None]]:
    """Convolutions and others, each reading one or two of what came before, with times for the convolutions."""
    tensors, operators, times = ["input"], [], []
    for place in range(size):
        reads = tuple(dict.fromkeys(random.choices(tensors, k=random.randint(1, 2))))
        kind = random.choice(("conv", "conv", "either", "written"))
        tensor = f"t{place}"
        operators.append(
            Operator(tensor, kind, reads, (tensor,), PROBLEM if kind == "conv" else None, takes_either=kind == "either")
        )
        times.append({layout: random.uniform(0, 2) for layout in Layout} if kind == "conv" else None)
        tensors.append(tensor)
    n_bytes = {tensor: random.randint(1, 1500) for tensor in tensors}
    in_nhwc = frozenset(random.sample(tensors, random.choice((0, len(tensors) // 2, len(tensors)))))
    return Network("random", tuple(operators), n_bytes, frozenset({tensors[-1]}), in_nhwc=in_nhwc), times


def outside(network: Network, tensor: str) -> Layout:
    return Layout.NHWC if tensor in network.in_nhwc else Layout.NCHW


def total_ms(network: Network, times: list, chosen: tuple[Layout, ...]) -> float:
    """What layouts cost, counted as a person would: each tensor once where anybody wants it in the other layout."""
    at = {tensor: layout for each, layout in zip(network.operators, chosen, strict=True) for tensor in each.writes}
    total = 0.0
    for operator, own, layout in zip(network.operators, times, chosen, strict=True):
        total += own[layout] if own else 0 if operator.takes_either or layout is Layout.NCHW else inf
    for tensor, n_bytes in network.n_bytes.items():
        wanted = {layout for each, layout in zip(network.operators, chosen, strict=True) if tensor in each.reads} | (
            {outside(network, tensor)} if tensor in network.outputs else set()
        )
        total += convert_ms(n_bytes) if wanted - {at.get(tensor, outside(network, tensor))} else 0
    return total


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_of_layouts_is_faster(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - repeatable chance
    network, times = random_network(random, random.randint(1, 9))
    chosen = choose_layouts(network, times, convert_ms)
    least = min(total_ms(network, times, each) for each in itertools.product(Layout, repeat=len(network.operators)))
    assert total_ms(network, times, chosen.chosen) == pytest.approx(least, abs=1e-6)


def least_by_highs(network: Network, times: list) -> float:
    """The least total time by integer programming: a variable for each operator and for each conversion."""
    operators, tensors = network.operators, list(network.n_bytes)
    count, maker = len(operators), {name: place for place, each in enumerate(operators) for name in each.writes}
    costs = np.zeros(count + len(tensors))
    highest = np.ones_like(costs)
    constant = 0.0
    for place, (operator, own) in enumerate(zip(operators, times, strict=True)):
        if own:
            costs[place] = own[Layout.NHWC] - own[Layout.NCHW]
            constant += own[Layout.NCHW]
        elif not operator.takes_either:
            highest[place] = 0
    rows, least = [], []
    for at, tensor in enumerate(tensors):
        costs[count + at] = convert_ms(network.n_bytes[tensor])
        readers = [place for place, each in enumerate(operators) if tensor in each.reads]
        for reader in readers + ([None] if tensor in network.outputs else []):
            for sign in (1, -1):
                row, known = np.zeros_like(costs), 0
                row[count + at] = 1
                for place, way in ((reader, -sign), (maker.get(tensor), sign)):
                    if place is not None:
                        row[place] += way
                    elif outside(network, tensor) is Layout.NHWC:
                        known += way
                rows.append(row)
                least.append(-known)
    constraints = LinearConstraint(rows, lb=least)
    solution = milp(costs, integrality=np.ones_like(costs), bounds=(0, highest), constraints=constraints)
    return constant + solution.fun


@pytest.mark.parametrize("size", [20, 60, 150])
def test_layouts_are_as_good_as_those_of_integer_programming(size: int) -> None:
    network, times = random_network(Random(size), size)  # noqa: S311 - repeatable chance
    chosen = choose_layouts(network, times, convert_ms)
    assert total_ms(network, times, chosen.chosen) == pytest.approx(least_by_highs(network, times), abs=1e-6)


def test_a_tensor_that_several_want_is_converted_once() -> None:
    times = {Layout.NCHW: 5.0, Layout.NHWC: 1.0}
    readers = [Operator(f"c{place}", "Conv", ("x",), (f"y{place}",), PROBLEM) for place in range(2)]
    chosen = choose_layouts(Network("fork", tuple(readers), {"x": 6000}), [times, times], convert_ms)
    assert chosen.chosen == (Layout.NHWC, Layout.NHWC)  # one conversion of 6 ms gains twice 4 ms
    (conversion,) = chosen.conversions
    assert (conversion.tensor, conversion.to, conversion.time_ms) == ("x", Layout.NHWC, 6.0)


def test_one_convolution_stays_where_a_conversion_costs_more_than_it_gains() -> None:
    times = {Layout.NCHW: 5.0, Layout.NHWC: 1.0}
    alone = Network("one", (Operator("c", "Conv", ("x",), ("y",), PROBLEM),), {"x": 6000})
    assert choose_layouts(alone, [times], convert_ms).chosen == (Layout.NCHW,)


def test_what_comes_in_nhwc_is_converted_where_nchw_is_faster() -> None:
    times = {Layout.NCHW: 1.0, Layout.NHWC: 5.0}
    conv = Operator("c", "Conv", ("x",), ("y",), PROBLEM)
    given = Network("one", (conv,), {"x": 2000, "y": 1000}, frozenset({"y"}), in_nhwc=frozenset({"x", "y"}))
    chosen = choose_layouts(given, [times], convert_ms)
    assert chosen.chosen == (Layout.NCHW,)
    assert {(each.tensor, each.to) for each in chosen.conversions} == {("x", Layout.NCHW), ("y", Layout.NHWC)}
    kept = choose_layouts(replace(given, n_bytes={"x": 2000, "y": 3000}), [times], convert_ms)
    assert (kept.chosen, kept.conversions) == ((Layout.NHWC,), ())


def test_a_convolution_is_run_where_it_can_run() -> None:
    alone = Network("one", (Operator("c", "Conv", ("x",), ("y",), PROBLEM),), {"x": 10**9})
    chosen = choose_layouts(alone, [{Layout.NCHW: inf, Layout.NHWC: 1.0}], convert_ms)
    assert chosen.chosen == (Layout.NHWC,)


def test_where_no_convolution_gains_all_stays_as_it_was_written_and_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, times = random_network(Random(0), 9)  # noqa: S311 - repeatable chance
    network = replace(network, in_nhwc=frozenset())
    slower = [own and {Layout.NCHW: own[Layout.NCHW], Layout.NHWC: inf} for own in times]
    assert any(slower)
    monkeypatch.setattr(Cut, "solve", lambda _: pytest.fail("a cut was looked for"))
    chosen = choose_layouts(network, slower, convert_ms)
    assert (set(chosen.chosen), chosen.conversions) == ({Layout.NCHW}, ())


def test_a_long_chain_needs_no_deep_stack() -> None:
    chain = [Operator(f"c{place}", "Conv", (f"t{place}",), (f"t{place + 1}",), PROBLEM) for place in range(3000)]
    network = Network("chain", tuple(chain), {f"t{place}": 10 for place in range(3001)})
    chosen = choose_layouts(network, [{Layout.NCHW: 2.0, Layout.NHWC: 1.0}] * 3000, convert_ms)
    assert set(chosen.chosen) == {Layout.NHWC}
    assert len(chosen.conversions) == 1


def test_a_cut_takes_the_cheaper_side() -> None:
    cut = Cut()
    cheap_first, cheap_second = cut.add(1, 5), cut.add(5, 1)
    cut.part(cheap_first, cheap_second, 3)
    sides = cut.solve()
    assert (sides[cheap_first], sides[cheap_second]) == (False, True)
