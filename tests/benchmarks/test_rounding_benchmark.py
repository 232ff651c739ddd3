"""Sums that truncate: within a bound on one layer and far beyond it over a network, unless chains are short."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rounding
from benchmarks.rounding import (
    LOST,
    RAISED,
    ZEROS,
    cut_to_tf32,
    errors,
    fused,
    in_chains,
    nearest,
    nearest_tf32,
    truncated,
)
from conv_advisor.kernels.cuda.parts.source import PARTS


def test_truncation_is_towards_zero_and_exact_values_stay() -> None:
    values = np.array([1.0, 1 + 2.0**-24, 1 + 3 * 2.0**-24, -1 - 3 * 2.0**-24, 0.0, 2.0**-126])
    assert truncated(values).tolist() == [1.0, 1.0, 1 + 2.0**-23, -1 - 2.0**-23, 0.0, 2.0**-126]
    assert nearest(values).tolist()[2:4] == [1 + 2.0**-22, -1 - 2.0**-22]


def test_a_tf32_keeps_eleven_bits_cut_or_rounded() -> None:
    values = np.array([1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-23, -1 - 2.0**-11, 2 - 2.0**-12])
    assert cut_to_tf32(values).tolist() == [1 + 2.0**-10, 1.0, 1.0, -1.0, 2 - 2.0**-10]
    assert nearest_tf32(values).tolist() == [1 + 2.0**-10, 1 + 2.0**-10, 1.0, -1 - 2.0**-10, 2.0]


def test_parts_multiply_what_is_exact_in_float32_exactly() -> None:
    random = np.random.default_rng(0)
    weight, columns = (random.integers(-2048, 2048, shape).astype(np.float64) for shape in ((3, 20), (20, 5)))
    for multiply in (fused, partial(in_chains, chain=8), partial(in_chains, chain=16)):
        assert np.array_equal(multiply(weight / 64, columns), weight / 64 @ columns)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_small_whole_numbers_stay_exact_where_sums_are_made_up_for(steps: int) -> None:
    random = np.random.default_rng(0)
    weight, columns = (random.integers(-64, 64, shape).astype(np.float64) for shape in ((3, 60), (60, 50)))
    assert np.array_equal(in_chains(weight, columns, 8 * steps, is_restored=True), weight @ columns)


def test_errors_of_one_sign_add_up_over_layers_and_no_average_takes_them_away() -> None:
    rounded, cut = (errors(way, layers=6, channels=16) for way in (fused, partial(in_chains, chain=144)))
    ratios = [ours / own for ours, own in zip(cut, rounded, strict=True)]
    assert all(shallow < deep for shallow, deep in pairwise(ratios))
    assert rounded.averaged < rounded.network / 4
    assert cut.averaged > cut.network / 4


def test_short_chains_of_rounded_parts_err_no_more_than_fused_products() -> None:
    own, short, long, unrounded = (
        errors(way, layers=6, channels=16)
        for way in (
            fused,
            partial(in_chains, chain=16),
            partial(in_chains, chain=144),
            partial(in_chains, chain=16, high=cut_to_tf32),
        )
    )
    assert short.layer < own.layer
    assert short.network < own.network
    assert short.averaged < long.averaged / 4
    assert short.averaged < unrounded.averaged / 4


@pytest.mark.parametrize("gemm_k", [8, 16, 24, 48, 288])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_sums_that_are_made_up_for_lean_to_neither_side(steps: int, gemm_k: int) -> None:
    random = np.random.default_rng(0)
    scales = 2 ** random.uniform(0, 1, (256, 1))  # what is cut depends on where in its octave a sum lies
    weight = nearest(random.standard_normal((256, gemm_k)) * scales)
    columns = nearest(np.maximum(random.standard_normal((gemm_k, 1000)), 0))
    exact = weight @ columns
    size = np.abs(exact).mean(axis=1, keepdims=True)
    cut, restored = (
        ((in_chains(weight, columns, 8 * steps, is_restored=each) - exact) * np.sign(exact) / size).mean()
        for each in (False, True)
    )
    assert cut < -0.3 * 2.0**-23
    assert abs(restored) < 0.15 * 2.0**-23


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_rounding_adds_the_share_that_was_lost_though_it_adds_whole_units(steps: int) -> None:
    sums = nearest(2 ** np.random.default_rng(0).uniform(0, 8, 100_000))
    added = ((rounding.restored(sums, steps, steps) - sums) / sums).mean() * 2.0**23
    assert added == pytest.approx(LOST[0] + LOST[1] * steps, rel=0.03)


def test_averages_of_a_network_gain_most_where_sums_are_made_up_for() -> None:
    cut, restored = (errors(partial(in_chains, chain=32, is_restored=each)) for each in (False, True))
    assert restored.network < cut.network
    assert restored.averaged < cut.averaged / 4


def test_the_kernels_make_up_for_what_is_emulated_here() -> None:
    source = (PARTS / "tf32.cuh").read_text()
    assert f"share = {LOST[0]}f + {LOST[1]}f * steps;" in source
    assert f"return ({RAISED[0]}f + {RAISED[1]}f * share) * 0x1p-23f;" in source
    assert f"& {ZEROS:#x})" in source


@pytest.mark.parametrize("kind", ["normal", "uniform", "positive"])
def test_sums_of_operands_that_were_cut_are_made_up_for_on_average(kind: str) -> None:
    (factor,) = re.findall(r"each\[i\] \*= (\S+)f;", (PARTS / "tf32.cuh").read_text())
    random = np.random.default_rng(0)
    draw = random.uniform if kind == "uniform" else random.normal
    weight, columns = nearest(draw(-1, 1, (64, 288))), nearest(draw(-1, 1, (288, 400)))
    if kind == "positive":
        columns = np.maximum(columns, 0)
    exact, cut = weight @ columns, cut_to_tf32(weight) @ cut_to_tf32(columns)
    leanings = [((y - exact) * np.sign(exact)).sum() / np.abs(exact).sum() for y in (cut, cut * float(factor))]
    assert leanings[0] < -6e-4
    assert abs(leanings[1]) < 1e-4


def test_the_page_of_the_backend_says_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rounding.main([])
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    for line in capsys.readouterr().out.splitlines()[2:]:
        name, *_ = line.strip("| ").split(" | ")
        (said,) = (each for each in page.splitlines() if each.startswith(f"| {name} |"))
        for figure, printed in zip(said.split(" | ")[1:], line.split(" | ")[1:], strict=True):
            assert float(figure.strip(" |")) == pytest.approx(float(printed.strip(" |")), rel=0.2)


def test_help_is_given_and_nothing_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "errors", lambda multiply: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as ended:
        rounding.main(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m benchmarks.rounding")
