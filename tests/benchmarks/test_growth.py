"""How time grows with depth and with filters, and bands of one deviation, by hand."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="only the figures need matplotlib")

from benchmarks import measured as book
from benchmarks.guidelines.growth import STUDIED, Growth, Varied, growth_of
from benchmarks.measured import Sampled, deviations_in
from benchmarks.plots import algorithms
from benchmarks.plots.growth import growth, growth_table
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs, from_table
from tests.benchmarks.made_up import GPU
from tests.data import arrow

WINOGRAD, GEMM = STUDIED
HALF = ("float16", "nchw")


def layer(text: str) -> ConvProblem:
    return ConvProblem.parse(text, dtype=HALF[0], layout=HALF[1])


def costs_of(times_ms: dict[str, float], tmp_path: Path) -> Costs:
    """Costs of layers on which both variants take so long, each sample a hundredth to either side of the median."""
    rows = [
        Measurement(layer(name), variant, GPU, Outcome.MEASURED, samples_ms=(0.99 * ms, ms, 1.01 * ms), max_error=1e-4)
        for name, ms in times_ms.items()
        for variant in STUDIED
    ]
    parquet.write(arrow.measurements_to_table(rows), tmp_path / GPU.id / "all.parquet")
    table = attempts_in(tmp_path / GPU.id)
    costs = from_table(table, GPU.id)
    return Sampled(
        **{each.name: getattr(costs, each.name) for each in fields(costs)}, deviation=deviations_in(table, costs)
    )


def test_pairs_differ_in_one_size_alone(tmp_path: Path) -> None:
    times_ms = {
        "14-1-3-64-16": 1.0,
        "14-1-3-64-32": 1.5,
        "14-1-3-128-16": 3.0,
        "14-8-3-128-32": 9.0,
        "14-1-1-64-64": 9.0,
    }
    costs = costs_of(times_ms, tmp_path)
    deeper, wider = (growth_of(costs, GEMM, varied, 3) for varied in Varied)
    assert (deeper.factors.tolist(), deeper.ratios.tolist()) == ([2.0], [1.5])
    assert (wider.factors.tolist(), wider.ratios.tolist()) == ([2.0], [3.0])
    assert "the depth matters less than the filters" in growth_table(costs)


def test_the_depth_of_an_image_is_no_depth(tmp_path: Path) -> None:
    costs = costs_of({"14-1-3-64-3": 1.0, "14-1-3-64-64": 1.1}, tmp_path)
    assert not len(growth_of(costs, GEMM, Varied.DEPTH, 3).factors)
    assert growth(costs) is None


def test_a_doubling_is_the_power_that_fits() -> None:
    assert Growth(np.array([4.0, 16.0]), np.array([3.0, 9.0])).a_doubling == pytest.approx(math.sqrt(3))
    assert math.isnan(Growth(np.array([]), np.array([])).a_doubling)
    studied = {varied: STUDIED[GEMM][varied].a_doubling for varied in Varied}
    assert studied[Varied.DEPTH] == pytest.approx(6.2**0.25)
    assert studied[Varied.FILTERS] == pytest.approx(3.3**0.5)


def test_the_figure_has_both_growths_and_the_study(tmp_path: Path) -> None:
    costs = costs_of({"14-1-3-64-16": 1.0, "14-1-3-64-32": 1.5, "14-1-3-128-16": 3.0, "14-1-3-128-32": 4.0}, tmp_path)
    figure = growth(costs)
    assert figure is not None
    assert [panel.get_title(loc="left") for panel in figure.axes] == list(STUDIED)
    for panel, studied in zip(figure.axes, STUDIED.values(), strict=True):
        stars = {
            tuple(line.get_xydata()[0]) for line in panel.lines if line.get_marker() == "*" and len(line.get_xdata())
        }
        assert stars == {(float(each.factors[0]), float(each.ratios[0])) for each in studied.values()}


def test_a_band_is_one_deviation_of_one_launch(tmp_path: Path) -> None:
    costs = costs_of({"14-1-3-64-16": 1.0, "14-1-3-64-32": 2.0}, tmp_path)
    np.testing.assert_allclose(costs.deviation, 1.4826 * 0.01, rtol=0.01)
    assert (book.only(costs, [GEMM]).deviation.shape, book.only(costs, [GEMM]).variants) == ((2, 1), (GEMM,))
    figure = algorithms.algorithms(costs, HALF)
    bands = [band for panel in figure.axes for band in panel.collections if band.get_alpha()]
    assert len(bands) == len(STUDIED)
    rough = algorithms.algorithms(replace(costs, deviation=np.full_like(costs.deviation, np.nan)), HALF)
    assert all(
        not len(path.vertices)
        for panel in rough.axes
        for b in panel.collections
        if b.get_alpha()
        for path in b.get_paths()
    )
