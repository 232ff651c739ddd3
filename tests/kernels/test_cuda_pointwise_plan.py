"""How the 1x1 convolution cuts a problem; pure arithmetic."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES
from conv_advisor.kernels.cuda.parts.source import STORAGES
from conv_advisor.kernels.cuda.pointwise import menu
from conv_advisor.kernels.cuda.pointwise import plan as plans
from conv_advisor.kernels.cuda.pointwise.plan import Loading

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)

problems = st.builds(
    lambda size, n, k, c, dtype: ConvProblem(n, c, size, size, k, 1, 1, dtype=dtype),
    *(st.integers(1, 60), st.integers(1, 256), st.integers(1, 2100), st.integers(1, 1100)),
    st.sampled_from(list(DType)),
)


@pytest.mark.parametrize(
    ("layer", "dtype", "bp", "expected"),
    [
        ("14-8-1-64-64", "float32", 128, Loading.VECTORS),
        ("13-8-1-64-64", "float32", 128, Loading.CHUNKS),
        ("7-8-1-64-64", "tf32", 128, Loading.WORDS),
        ("13-8-1-64-64", "float32", 256, Loading.WORDS),
        ("13-8-1-64-65", "float32", 128, Loading.ELEMENTS),
        ("28-8-1-64-64", "float16", 128, Loading.VECTORS),
        ("14-8-1-64-64", "float16", 128, Loading.CHUNKS),
        ("7-8-1-64-64", "bfloat16", 128, Loading.CHUNKS),
        ("5-8-1-64-64", "bfloat16", 128, Loading.ELEMENTS),
        ("14-8-1-64-68", "float16", 128, Loading.ELEMENTS),
        ("28-8-1-64-64-stride2", "float32", 128, Loading.WORDS),
        ("28-8-1-64-66-stride2", "tf32", 128, Loading.ELEMENTS),
    ],
)
def test_x_is_copied_as_wide_as_its_alignment_allows(layer: str, dtype: str, bp: int, expected: Loading) -> None:
    assert plans.loading_for(ConvProblem.parse(layer, dtype=dtype), bp) is expected


def test_a_tile_has_parts_of_as_many_images_as_it_can_touch() -> None:
    assert plans.segments_of(ConvProblem.parse("7-8-1-64-64", dtype="float16"), 128) == 4
    assert plans.segments_of(ConvProblem.parse("27-8-1-64-64", dtype="float16"), 128) == 2
    assert plans.segments_of(ConvProblem.parse("3-8-1-64-64", dtype="float16"), 128) == 0


def test_shared_memory_by_hand() -> None:
    streaming = next(tile for tile in menu.HALF.tiles if tile.mode == "streaming" and tile.bp == 128)
    aligned, odd = (ConvProblem.parse(f"{size}-8-1-256-256", dtype="float16") for size in (28, 27))
    weight, sums = streaming.stages * streaming.bn * 128, streaming.bn * 136 * 2
    assert plans.shared_bytes(streaming, aligned) == 1024 + max(weight + streaming.stages * 64 * 136 * 2, sums)
    assert plans.shared_bytes(streaming, odd) == 1024 + max(weight + streaming.stages * 64 * 168 * 2, sums)
    resident = next(tile for tile in menu.SPLIT_TF32.tiles if tile.is_resident and tile.bp == 128)
    problem = ConvProblem.parse("28-8-1-64-96")
    assert plans.shared_bytes(resident, problem) == 1024 + 2 * 3 * resident.bn * 128 + resident.stages * 32 * 136 * 4


def test_a_single_image_is_split_over_a_cluster_and_a_large_batch_is_not() -> None:
    assert plans.plan_cut(ConvProblem.parse("7-1-1-32-832"), H200).cluster > 1
    assert plans.plan_cut(ConvProblem.parse("56-128-1-64-64"), H200).cluster == 1


def test_blocks_keep_the_weight_where_a_small_one_meets_many_pixels() -> None:
    assert plans.plan_cut(ConvProblem.parse("56-128-1-64-64"), H200).tile.is_resident
    assert not plans.plan_cut(ConvProblem.parse("7-128-1-512-1024"), H200).tile.is_resident


@settings(deadline=None)
@given(problem=problems)
def test_a_cut_covers_the_outputs_fits_and_leaves_no_block_without_work(problem: ConvProblem) -> None:
    cut = plans.plan_cut(problem, H200)
    tile, grid = cut.tile, plans.blocks_for(cut, problem, H200.processors)
    filters, pixels = plans.tiles_of(tile, problem)
    assert filters * tile.bn >= problem.k
    assert pixels * tile.bp >= problem.n * problem.h * problem.w
    assert plans.shared_bytes(tile, problem) <= HOPPER_BLOCK_BYTES
    assert cut.cluster <= max(1, ceil(problem.c * problem.dtype.itemsize_bytes / plans.ROW_BYTES))
    assert grid % (filters * cut.cluster) == 0
    walked = grid // (filters * cut.cluster)
    assert walked <= pixels
    assert tile.is_resident or walked == pixels


@settings(deadline=None)
@given(problem=problems)
def test_the_model_chooses_what_it_expects_to_be_fastest(problem: ConvProblem) -> None:
    expected = plans.expected(problem, H200)
    assert 0 < expected[plans.plan_cut(problem, H200)] == min(expected.values())


@pytest.mark.parametrize("layer", ["7-64-1-16-1968", "14-256-1-15-1760", "11-128-1-8-2048"])
def test_few_filters_of_many_channels_have_a_cut(layer: str) -> None:
    """The narrowest float32 tiles keep the whole weight of their filters, which is too much here."""
    problem = ConvProblem.parse(layer)
    assert plans.expected(problem, H200)
    assert plans.shared_bytes(plans.plan_cut(problem, H200).tile, problem) <= HOPPER_BLOCK_BYTES


@settings(deadline=None)
@given(problem=problems)
def test_every_cut_is_compiled(problem: ConvProblem) -> None:
    listed = plans.definitions(problem.dtype)
    assert all(plans.defines_for(cut.tile, problem) in listed for cut in plans.expected(problem, H200))


def test_only_float32_is_split() -> None:
    for dtype in DType:
        assert {defines["SPLIT"] for defines in plans.definitions(dtype)} == {int(dtype is DType.FLOAT32)}


@pytest.mark.parametrize("storage", STORAGES)
def test_a_storage_type_is_compiled_with_its_own_tiles_only(storage: str) -> None:
    dtypes = {"FLOAT32": (DType.FLOAT32, DType.TF32), "FLOAT16": (DType.FLOAT16,), "BFLOAT16": (DType.BFLOAT16,)}
    own = [defines for dtype in dtypes[storage] for defines in plans.definitions(dtype)]
    assert list(plans.SOURCE.instantiations(storage)) == own
