"""How the implicit GEMM cuts a problem; pure arithmetic."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm import menu
from conv_advisor.kernels.cuda.implicit_gemm import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm.plan import Loading
from conv_advisor.kernels.cuda.parts.fitted import fitted_on, tiles_of_every_device
from conv_advisor.kernels.cuda.parts.source import STORAGES

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
A100 = Device(id="nvidia-a100", name="NVIDIA A100", kind="cuda", capability="8.0", processors=108)
MOST_SHARED_BYTES = 99 * 1024
"""What a block may ask for from compute capability 8.0 on, the smallest devices included."""

problems = st.builds(
    lambda size, n, r, k, c, dtype: ConvProblem(n, c, size, size, k, r, r, pad_h=r // 2, pad_w=r // 2, dtype=dtype),
    *(st.integers(1, 60), st.integers(1, 256), st.sampled_from((1, 3, 5, 7)), st.integers(1, 600), st.integers(1, 600)),
    st.sampled_from(list(DType)),
)


@pytest.mark.parametrize(
    ("layer", "changes", "expected"),
    [
        ("14-8-1-64-64", {}, Loading.RUNS),
        ("7-8-1-64-64", {}, Loading.POINTS),
        ("14-8-1-64-64", {"dtype": "float16"}, Loading.POINTS),
        ("28-8-1-64-64", {"dtype": "bfloat16"}, Loading.RUNS),
        ("7-8-1-64-64", {"dtype": "float16"}, Loading.TAPS),
        ("14-8-1-64-64", {"stride_h": 2, "stride_w": 2}, Loading.POINTS),
        ("14-8-1-64-64", {"pad_h": 1}, Loading.TAPS),
        ("14-8-3-64-64", {}, Loading.TAPS),
    ],
)
def test_x_is_copied_as_wide_as_its_alignment_allows(layer: str, changes: dict[str, object], expected: Loading) -> None:
    assert plans.loading_for(ConvProblem.parse(layer, **changes)) is expected


def test_shared_memory_by_hand() -> None:
    fma = next(tile for tile in menu.FMA.tiles if (tile.bm, tile.bn, tile.bk, tile.stages) == (32, 32, 32, 4))
    pointwise, wide = ConvProblem.parse("14-1-1-64-64"), ConvProblem.parse("14-1-3-64-64")
    stages = 4 * (32 * 36 + 32 * 32) * 4
    assert plans.shared_bytes(fma, 1, pointwise) == stages
    assert plans.shared_bytes(fma, 3, pointwise) == stages + 3 * 11 * 32 * 4
    assert plans.shared_bytes(fma, 1, wide) == stages + 16 * (9 + 32)
    half = next(tile for tile in menu.HALF.tiles if (tile.bm, tile.bn) == (32, 32))
    gathered = ConvProblem.parse("14-1-3-64-64", dtype="float16")
    assert plans.shared_bytes(half, 1, gathered) == 3 * (32 + 32) * 72 * 2 + 4 * (9 + 64)


def test_a_single_image_is_split_over_a_cluster_and_a_large_batch_is_not() -> None:
    deep = ConvProblem.parse("7-1-1-32-832")
    assert plans.plan_cut(deep, H200).cluster > 4
    assert plans.plan_cut(deep, A100).cluster == 1
    assert plans.plan_cut(ConvProblem.parse("56-256-3-64-64"), H200).cluster == 1


@pytest.mark.parametrize("dtype", DType)
def test_a_large_problem_takes_a_larger_tile_than_a_small_one(dtype: DType) -> None:
    layers = ("7-1-1-32-832", "56-128-3-256-256")
    small, large = (plans.plan_cut(ConvProblem.parse(layer, dtype=dtype), H200).tile for layer in layers)
    assert small.bm * small.bn < large.bm * large.bn


@settings(deadline=None)
@given(problem=problems, device=st.sampled_from((H200, A100)))
def test_a_cut_covers_the_outputs_fits_and_leaves_no_block_without_work(problem: ConvProblem, device: Device) -> None:
    cut = plans.plan_cut(problem, device)
    tile = cut.tile
    assert tile in fitted_on(H200, menu.MENUS)[problem.dtype].tiles
    assert 1 <= cut.cluster <= min(8, ceil(problem.gemm_k / tile.bk))
    assert device is H200 or cut.cluster == 1
    assert plans.blocks_for(cut, problem) * tile.bm * tile.bn >= cut.cluster * problem.k * problem.gemm_m
    assert plans.shared_bytes(tile, cut.cluster, problem) <= MOST_SHARED_BYTES


@settings(deadline=None)
@given(problem=problems)
def test_the_model_chooses_what_it_expects_to_be_fastest(problem: ConvProblem) -> None:
    expected = plans.expected(problem, H200)
    assert 0 < expected[plans.plan_cut(problem, H200)] == min(expected.values())


@pytest.mark.parametrize("dtype", DType)
def test_tensor_cores_multiply_everything_but_float32(dtype: DType) -> None:
    assert {tile.is_tensor for tile in tiles_of_every_device(menu.MENUS, dtype)} == {dtype is not DType.FLOAT32}


@pytest.mark.parametrize(("storage", "tiles"), list(zip(STORAGES, (10, 6, 6), strict=True)))
def test_a_storage_type_is_compiled_with_its_own_tiles_only(storage: str, tiles: int) -> None:
    assert len(plans.SOURCE.instantiations(storage)) == tiles * len(Loading)
