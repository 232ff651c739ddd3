"""Menus whose tiles lie side by side, and constants that belong to a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm import menu as implicit_gemm_menu
from conv_advisor.kernels.cuda.implicit_gemm import plan as implicit_gemm
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu as nhwc_menu
from conv_advisor.kernels.cuda.parts.fitted import STAND_IN, fitted_on
from conv_advisor.kernels.cuda.parts.offers import Cut, Offer, cheapest, expected_of, values_of_cheapest
from conv_advisor.kernels.cuda.pointwise import menu as pointwise_menu
from conv_advisor.kernels.cuda.pointwise import plan as pointwise

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
OTHER = replace(H200, id="nvidia-h100-pcie", processors=114)
LAYER = ConvProblem.parse("27-8-1-96-72")


@pytest.mark.parametrize("dtype", DType)
def test_arithmetic_on_tiles_side_by_side_is_that_of_each(dtype: DType) -> None:
    problem = replace(LAYER, dtype=dtype)
    choice = fitted_on(H200, pointwise_menu.MENUS)[dtype].choice
    together = pointwise.shared_bytes(choice.tile, problem)[:, 0].tolist()
    assert together == [int(pointwise.shared_bytes(cut.tile, problem)) for cut in choice.cuts]
    menu = fitted_on(H200, implicit_gemm_menu.MENUS)[dtype]
    grid = implicit_gemm.shared_bytes(menu.choice.tile, menu.choice.cluster, problem)
    assert grid.ravel().tolist() == [
        int(implicit_gemm.shared_bytes(cut.tile, cut.cluster, problem)) for cut in menu.choice.cuts
    ]


@pytest.mark.parametrize("layout", Layout)
def test_the_largest_tile_of_a_cluster_is_counted_for_itself(layout: Layout) -> None:
    choice = fitted_on(H200, nhwc_menu.MENUS)[DType.FLOAT16].choice
    together = choice.tile.shared_bytes(layout, choice.cluster)
    assert together.ravel().tolist() == [int(cut.tile.shared_bytes(layout, cut.cluster)) for cut in choice.cuts]


def test_a_device_has_constants_of_its_own_or_those_of_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted_on(OTHER, {STAND_IN: 1, OTHER.id: 2}) == 2
    assert fitted_on(OTHER, {STAND_IN: 1}) == 1
    slower = replace(implicit_gemm_menu.FMA, launch_us=100.0)
    menus = {**implicit_gemm_menu.MENUS, OTHER.id: {DType.FLOAT32: slower}}
    before = {device.id: min(implicit_gemm.expected(LAYER, device).values()) for device in (H200, OTHER)}
    monkeypatch.setattr(implicit_gemm_menu, "MENUS", menus)
    after = {device.id: min(implicit_gemm.expected(LAYER, device).values()) for device in (H200, OTHER)}
    assert after[H200.id] == before[H200.id]
    assert after[OTHER.id] == pytest.approx(before[OTHER.id] + 100.0 - implicit_gemm_menu.FMA.launch_us)


def test_the_first_of_equals_is_chosen_and_what_is_impossible_never() -> None:
    cuts = tuple(Cut("tile", cluster) for cluster in (1, 2, 3))
    us = np.array([[np.inf, 5.0], [2.0, 5.0], [2.0, np.inf]])
    offers = [Offer(cuts, np.array([7, 7, 7]), us, np.array([[10, 11], [20, 21], [30, 31]]))]
    assert expected_of(offers) == {cuts[1]: 2.0, cuts[2]: 2.0}
    assert cheapest(offers) is cuts[1]
    assert values_of_cheapest(offers, 2).tolist() == [[2.0, 2, 7, 20], [5.0, 1, 7, 11]]
    none = [Offer(cuts, offers[0].outputs, np.full((3, 2), np.inf), offers[0].blocks)]
    assert (cheapest(none), expected_of(none)) == (None, {})
    assert np.isnan(values_of_cheapest(none, 2)).all()
