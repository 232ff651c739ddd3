"""How the channels-innermost implicit GEMM packs and cuts a problem; pure arithmetic."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu, packing
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as plans
from conv_advisor.kernels.cuda.parts.division import division
from conv_advisor.kernels.cuda.parts.fitted import fitted_on
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES
from conv_advisor.kernels.cuda.parts.shapes import is_pointwise
from conv_advisor.kernels.cuda.parts.source import STORAGES
from conv_advisor.kernels.reference import convolve, random_operands

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
GIB = 2**30
DTYPES = (DType.TF32, DType.FLOAT16, DType.BFLOAT16)

problems = st.builds(
    lambda size, n, r, k, c, dtype, layout: ConvProblem(
        n, c, size, size, k, r, r, pad_h=r // 2, pad_w=r // 2, dtype=dtype, layout=layout
    ),
    *(st.integers(1, 60), st.integers(1, 256), st.sampled_from((1, 3, 5, 7)), st.integers(1, 600), st.integers(1, 600)),
    *(st.sampled_from(DTYPES), st.sampled_from(Layout)),
)


@pytest.mark.parametrize(
    ("layer", "changes", "channels", "is_packed"),
    [
        ("14-1-3-64-64", {"layout": "nhwc", "dtype": "float16"}, 64, False),
        ("14-1-3-64-3", {"layout": "nhwc", "dtype": "float16"}, 8, True),
        ("14-1-3-64-12", {"layout": "nhwc", "dtype": "tf32"}, 12, False),
        ("14-1-3-64-12", {"layout": "nhwc", "dtype": "bfloat16"}, 16, True),
        ("14-1-3-64-64", {"dtype": "float16"}, 64, True),
        ("14-1-3-64-3", {"dtype": "tf32"}, 4, True),
    ],
)
def test_channels_are_padded_to_16_bytes_and_nchw_is_packed(
    layer: str, changes: dict[str, object], channels: int, is_packed: bool
) -> None:
    problem = ConvProblem.parse(layer, **changes)
    assert packing.packed_channels(problem) == channels
    assert packing.is_packed(problem) is is_packed


@pytest.mark.parametrize(
    ("layer", "changes", "channels"),
    [
        ("48-2-16-24-3-stride16-pad0", {}, 48),
        ("42-2-14-24-3-stride14-pad0", {}, 42),
        ("13x20-2-3x4-8-3-stride2x4-pad1x0-dilation2x1", {}, 12),
        ("12x20-2-4x4-8-3-stride4-pad0", {"dtype": "tf32"}, 12),
    ],
)
def test_patches_side_by_side_are_the_same_layer_with_a_row_of_pixels_as_channels(
    layer: str, changes: dict[str, object], channels: int
) -> None:
    problem = ConvProblem.parse(layer, **{"dtype": "float16", "layout": "nhwc", **changes})
    by_patches = packing.by_patches(problem)
    assert (by_patches.c, by_patches.s, by_patches.stride_w) == (channels, 1, 1)
    assert by_patches.y_shape == problem.y_shape
    assert packing.by_patches(by_patches) == by_patches
    x, weight = random_operands(problem, 0)
    expected = convolve(problem, x, weight)
    found = convolve(by_patches, x.reshape(by_patches.x_shape), weight.reshape(by_patches.weight_shape))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": "nchw"},
        {"stride_w": 3},
        {"dilation_w": 2},
        {"pad_w": 4},
        {"pad_w_end": 4},
        {"w": 22},
        {"c": 8},
    ],
    ids=str,
)
def test_other_layers_are_what_they_are(changes: dict[str, object]) -> None:
    patches = ConvProblem.parse("24-1-4-8-3-stride4-pad0", dtype="float16", layout="nhwc")
    assert packing.by_patches(patches) != patches
    problem = ConvProblem.parse("24-1-4-8-3-stride4-pad0", **{"dtype": "float16", "layout": "nhwc"} | changes)
    assert packing.by_patches(problem) == problem


def test_patches_of_whole_runs_need_no_workspace_and_others_less() -> None:
    whole, padded = (
        ConvProblem.parse(f"224-8-{size}-768-3-stride{size}-pad0", dtype="float16", layout="nhwc") for size in (16, 14)
    )
    assert packing.workspace_bytes(whole, GIB) == packing.least_workspace_bytes(whole) == 0
    weight_bytes, image_bytes = 768 * 14 * 48 * 2, 224 * 16 * 48 * 2
    assert packing.workspace_bytes(padded, GIB) == weight_bytes + 8 * image_bytes
    assert packing.least_workspace_bytes(padded) == weight_bytes + image_bytes


def test_the_workspace_by_hand() -> None:
    problem = ConvProblem.parse("14-8-3-65-60", dtype="float16")
    weight_bytes = ceil(65 * 9 * 64 * 2 / 256) * 256
    image_bytes = 14 * 14 * 64 * 2
    assert packing.workspace_bytes(problem, GIB) == weight_bytes + 8 * image_bytes
    assert packing.images_at_a_time(problem, weight_bytes + 7 * image_bytes) == 4
    assert packing.images_at_a_time(problem, weight_bytes + image_bytes) == 1
    with pytest.raises(WorkspaceExceeded) as raised:
        packing.images_at_a_time(problem, weight_bytes + image_bytes - 1)
    assert raised.value.needed_bytes == weight_bytes + image_bytes
    assert packing.workspace_bytes(ConvProblem.parse("14-8-3-65-64", dtype="float16", layout="nhwc"), 0) == 0


def test_the_largest_layer_of_the_seed_papers_is_packed_in_equal_chunks() -> None:
    problem = ConvProblem.parse("224-256-3-64-64", dtype="float16")
    assert packing.images_at_a_time(problem, GIB) == 128
    assert packing.workspace_bytes(problem, GIB) <= GIB


@pytest.mark.parametrize(("c", "runs", "tiles"), [(3, 1, 1), (16, 2, 1), (24, 4, 1), (64, 8, 1), (100, 8, 2)])
def test_a_tile_of_the_packing_has_no_more_runs_than_there_are(c: int, runs: int, tiles: int) -> None:
    problem = ConvProblem.parse(f"14-1-3-64-{c}", dtype="float16")
    assert packing.pack_runs(problem) == runs
    assert packing.pack_tiles(problem) == tiles


def test_shared_memory_by_hand() -> None:
    tile = next(tile for tile in menu.HALF.tiles if (tile.bf, tile.bp) == (128, 128))
    stages = tile.stages * 256 * 128
    assert not tile.is_pixels_m
    assert tile.shared_bytes(Layout.NCHW, 1) == 1024 + max(stages, 4 * 128 * 136)
    assert tile.shared_bytes(Layout.NHWC, 1) == 1024 + max(stages, 4 * 128 * 132)
    assert tile.shared_bytes(Layout.NHWC, 3) == 1024 + max(stages, 4 * 128 * 132) + 4 * 3 * 43 * 128


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 49, 169, 3025, 50176, 2**30, 2**30 + 1, 2**31 - 1])
def test_division_by_multiplication(divisor: int) -> None:
    multiplier, shift = division(divisor)
    assert 0 <= multiplier < 2**32
    assert 0 <= shift < 32
    dividends = {0, 1, 12345678, 2**31 - 1, *(divisor * i + j for i in (1, 2, 1000) for j in (-1, 0, 1))}
    for dividend in (each for each in dividends if each < 2**31):
        quotient = dividend if divisor == 1 else (dividend * multiplier >> 32) >> shift
        assert quotient == dividend // divisor


@settings(deadline=None)
@given(problem=problems)
def test_a_cut_covers_the_outputs_fits_and_leaves_no_block_without_work(problem: ConvProblem) -> None:
    cut = plans.plan_cut(problem, H200, problem.n)
    tile = cut.tile
    assert tile in fitted_on(H200, menu.MENUS)[problem.dtype].tiles
    assert 1 <= cut.cluster <= min(8, plans.stages_of(problem))
    outputs = problem.k * problem.gemm_m
    assert plans.blocks_for(cut, problem, problem.n) * tile.bf * tile.bp >= cut.cluster * outputs
    assert tile.shared_bytes(problem.layout, cut.cluster) <= HOPPER_BLOCK_BYTES


@settings(deadline=None)
@given(problem=problems)
def test_the_model_chooses_what_it_expects_to_be_fastest(problem: ConvProblem) -> None:
    expected = plans.expected(problem, H200)
    images = packing.images_at_a_time(problem, GIB)
    assert 0 < expected[plans.plan_cut(problem, H200, images)] == min(expected.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", Layout)
def test_a_large_problem_takes_a_larger_tile_than_a_small_one(dtype: DType, layout: Layout) -> None:
    layers = [ConvProblem.parse(each, dtype=dtype, layout=layout) for each in ("7-1-1-32-832", "56-128-3-256-256")]
    small, large = (plans.plan_cut(layer, H200, layer.n).tile for layer in layers)
    assert small.bf * small.bp < large.bf * large.bp
    assert large.is_wgmma


def test_a_deep_small_layer_is_split_over_a_cluster_and_a_large_batch_is_not() -> None:
    assert plans.plan_cut(ConvProblem.parse("7-1-3-320-160", dtype="float16"), H200, 1).cluster > 1
    assert plans.plan_cut(ConvProblem.parse("56-256-3-64-64", dtype="float16"), H200, 256).cluster == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_every_cut_is_one_that_the_source_is_compiled_for(storage: str) -> None:
    dtype = {"FLOAT32": DType.TF32, "FLOAT16": DType.FLOAT16, "BFLOAT16": DType.BFLOAT16}[storage]
    for layout in Layout:
        for layer in ("7-1-1-32-832", "14-8-3-64-64", "28-64-5-96-32"):
            problem = ConvProblem.parse(layer, dtype=dtype, layout=layout)
            defines = plans.plan_cut(problem, H200, problem.n).tile.defines(
                layout, is_pointwise=bool(is_pointwise(problem))
            )
            assert defines in plans.SOURCE.instantiations(storage)
            assert packing.pack_defines(problem) in packing.PACK_SOURCE.instantiations(storage)
