"""The plans of many problems at once are those of one after the other."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.cuda.few_outputs import choice as few_outputs
from conv_advisor.kernels.cuda.few_outputs import plan as few_outputs_plan
from conv_advisor.kernels.cuda.few_outputs import rows as few_outputs_rows
from conv_advisor.kernels.cuda.few_outputs.rows import RowCut
from conv_advisor.kernels.cuda.forecast import KERNELS, PLANNED_AS, forecast
from conv_advisor.kernels.cuda.implicit_gemm import plan as implicit_gemm_plan
from conv_advisor.kernels.cuda.implicit_gemm.choice import choose_cut
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as implicit_gemm_nhwc_plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as tensor_plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as tensor
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Tile
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as implicit_gemm_tma_plan
from conv_advisor.kernels.cuda.parts.offers import VALUES, Cut
from conv_advisor.kernels.cuda.pointwise import plan as pointwise_plan
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
A100 = Device(id="nvidia-a100", name="NVIDIA A100", kind="cuda", capability="8.0", processors=108)
CPU = Device(id="cpu", name="CPU", kind="cpu", processors=8)
WHY_NOT = {variant.id: variant.why_not for variant in VARIANTS}


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    r, s = draw(st.sampled_from([(1, 1), (1, 1), (3, 3), (1, 7), (5, 5), (4, 4), (9, 8)]))
    stride, dilation = draw(st.sampled_from([1, 1, 2, 4])), draw(st.sampled_from([1, 1, 2, 6]))
    h, w = (draw(st.integers(dilation * (taps - 1) + 1, 90)) for taps in (r, s))
    channels = st.one_of(st.integers(1, 40), st.sampled_from([64, 104, 512, 832, 2048]))
    return ConvProblem(
        draw(st.sampled_from([1, 8, 15, 64, 100])),
        *(draw(channels), h, w, draw(channels), r, s, stride, draw(st.sampled_from([stride, 1]))),
        *(draw(st.integers(0, r - 1)), draw(st.integers(0, s - 1)), dilation, dilation),
    )


def expected(problems: list[ConvProblem], device: Device) -> dict[str, np.ndarray]:
    """`forecast` of problems that have one dtype and layout."""
    (kind,) = {(problem.dtype, problem.layout) for problem in problems}
    return forecast(sizes_of(problems), *kind, device)


def by_plan(kernel: str, problem: ConvProblem, device: Device) -> tuple[float, ...]:
    """`VALUES` as the kernel's own launcher comes by them."""
    cut: Cut[Any]
    if kernel == "pointwise":
        cut = pointwise_plan.plan_cut(problem, device)
        us = pointwise_plan.expected(problem, device)[cut]
        outputs, blocks = cut.tile.bn * cut.tile.bp, pointwise_plan.blocks_for(cut, problem, device.processors)
    elif kernel == "packed":
        images = packing.images_at_a_time(problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
        cut = implicit_gemm_nhwc_plan.plan_cut(problem, device, images)
        us = implicit_gemm_nhwc_plan.expected(problem, device)[cut] * -(-problem.n // images)
        outputs, blocks = cut.tile.bf * cut.tile.bp, implicit_gemm_nhwc_plan.blocks_for(cut, problem, images)
    elif kernel == "accelerated":
        cut = implicit_gemm_tma_plan.plan_cut(problem, device)
        us = implicit_gemm_tma_plan.expected(problem, device)[cut]
        outputs, blocks = cut.tile.bf * cut.tile.bp, implicit_gemm_tma_plan.blocks_of(cut, problem, device)
    elif kernel == "few_outputs":
        chosen = few_outputs.choose(problem, device)
        us = few_outputs.expected_cycles(chosen, problem, device) / few_outputs_plan.CYCLES_OF_US
        if isinstance(chosen, RowCut):
            outputs = few_outputs_rows.FRAGMENT * chosen.warps * chosen.mt
            return us, 1, outputs, few_outputs_rows.blocks_of(chosen, problem, device)
        return us, 1, chosen.tile_p * chosen.tile_q, few_outputs_plan.blocks_of(chosen, problem)
    else:
        cut = choose_cut(problem, device)
        outputs = cut.tile.bm * cut.tile.bn
        if isinstance(cut.tile, Tile):
            us, blocks = tensor.expected(problem, device)[cut], prod(tensor_plan.grid_for(cut, problem))
        else:
            us = implicit_gemm_plan.expected(problem, device)[cut]
            blocks = implicit_gemm_plan.blocks_for(cut, problem)
    return us, cut.cluster, outputs, blocks


def variant_of(kernel: str, problem: ConvProblem) -> str:
    packed = "implicit_gemm_nhwc" if problem.layout is Layout.NHWC else "implicit_gemm_transposed"
    return f"cuda.{ {'packed': packed, 'accelerated': 'implicit_gemm_tma'}.get(kernel, kernel) }"


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.id)
@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(problems(), min_size=1, max_size=4), dtype=st.sampled_from(DType), layout=st.sampled_from(Layout)
)
def test_each_is_what_its_plan_says_whatever_stands_beside_it(
    device: Device, shapes: list[ConvProblem], dtype: DType, layout: Layout
) -> None:
    asked = [replace(shape, dtype=dtype, layout=layout) for shape in shapes]
    found = expected(asked, device)
    for kernel in KERNELS:
        for problem, values in zip(asked, found[kernel], strict=True):
            applies = WHY_NOT[variant_of(kernel, problem)](problem, device) is None
            if kernel == "packed":  # a weight that nothing could pack within the limit is left out
                applies = applies and packing.least_workspace_bytes(problem) <= DEFAULT_WORKSPACE_LIMIT_BYTES
            assert applies != np.isnan(values).all(), (kernel, problem.key)
            if applies:
                assert tuple(values) == by_plan(kernel, problem, device), (kernel, problem.key)


@settings(deadline=None, max_examples=60)
@given(shapes=st.lists(problems(), min_size=1, max_size=4), layout=st.sampled_from(Layout))
def test_plans_of_one_dtype_stand_for_those_of_another_that_has_the_same(
    shapes: list[ConvProblem], layout: Layout
) -> None:
    for pair in ((dtype, other) for dtype, other in PLANNED_AS.items() if dtype is not other):
        found, same = (
            expected([replace(shape, dtype=dtype, layout=layout) for shape in shapes], H200) for dtype in pair
        )
        for kernel in KERNELS:
            np.testing.assert_array_equal(found[kernel], same[kernel])


@pytest.mark.parametrize("device", [CPU, replace(H200, processors=0)], ids=["cpu", "unknown"])
def test_nothing_is_known_where_multiprocessors_are_not(device: Device) -> None:
    found = expected([ConvProblem.parse("7-1-1-32-832")], device)
    assert set(found) == set(KERNELS)
    assert all(values.shape == (1, len(VALUES)) and np.isnan(values).all() for values in found.values())


def test_more_images_than_blocks_may_be_and_filters_too_large_for_the_workspace_are_left_out() -> None:
    many = ConvProblem(70_000, 8, 1, 1, 8, 1, 1, dtype=DType.TF32)
    large = ConvProblem(1, 32_768, 3, 3, 32_768, 1, 1, dtype=DType.FLOAT16)
    assert tuple(expected([many], H200)["implicit_gemm"][0]) == by_plan("implicit_gemm", many, H200)
    assert np.isnan(expected([large], H200)["packed"]).all()
    assert packing.least_workspace_bytes(large) > DEFAULT_WORKSPACE_LIMIT_BYTES


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_no_kernel_that_is_forecast_computes_groups(dtype: DType, layout: Layout) -> None:
    plain = ConvProblem(8, 64, 14, 14, 64, 1, 1, dtype=dtype, layout=layout)
    grouped = replace(plain, groups=2)
    assert all(WHY_NOT[variant_of(kernel, grouped)](grouped, H200) for kernel in KERNELS)
    both, alone = expected([grouped, plain], H200), expected([plain], H200)
    for kernel in KERNELS:
        assert np.isnan(both[kernel][0]).all()
        np.testing.assert_array_equal(both[kernel][1], alone[kernel][0])
