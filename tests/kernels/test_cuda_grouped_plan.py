"""How the grouped convolution cuts a problem; pure arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.cuda.grouped import cut as plans
from conv_advisor.kernels.cuda.grouped import plan as grouped_choice
from conv_advisor.kernels.cuda.grouped.cost import resident_blocks
from conv_advisor.kernels.cuda.grouped.cut import Cut, Mode, Tile
from conv_advisor.kernels.cuda.parts.shapes import Shapes
from conv_advisor.kernels.cuda.parts.source import STORAGES

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
A100 = Device(id="nvidia-a100", name="NVIDIA A100", kind="cuda", capability="8.0", processors=108)
GROUPED = next(variant for variant in VARIANTS if variant.id == "cuda.grouped")
REGNET = "28x28-64-3x3-432-432-stride2x2-pad1x1-dilation1x1-groups9"


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Any that the variant is for."""
    groups = draw(st.integers(2, 130))
    channels, filters = draw(st.integers(2, 120)), draw(st.integers(1, 130))
    sizes = {name: draw(st.integers(1, 90)) for name in ("h", "w")}
    sizes |= {name: draw(st.sampled_from((1, 2, 3, 3, 5, 7, 31))) for name in ("r", "s")}
    sizes |= {name: draw(st.integers(1, 3)) for name in ("stride_h", "stride_w", "dilation_h", "dilation_w")}
    sizes |= {name: draw(st.integers(0, 4)) for name in ("pad_h", "pad_w")}
    dtype, layout = draw(st.sampled_from(list(DType))), draw(st.sampled_from(list(Layout)))
    n, c, k = draw(st.integers(1, 256)), groups * channels, groups * filters
    try:
        problem = ConvProblem(n=n, c=c, k=k, groups=groups, dtype=dtype, layout=layout, **sizes)
    except InvalidProblem:
        assume(False)
    assume(GROUPED.why_not(problem, H200) is None)
    return problem


def cut(**changes: int) -> Cut:
    plain = {
        "warps_m": 4,
        "warps_n": 1,
        "block_groups": 1,
        "block_filters": 48,
        "tile_n": 1,
        "tile_p": 14,
        "tile_q": 14,
    }
    return Cut(Tile(4, 6), **(plain | {"chunk_words": 24, "stages": 1} | changes))


@pytest.mark.parametrize(
    ("channels", "dtype", "layout", "expected"),
    [
        (4, "float32", "nchw", Mode.NCHW),
        (4, "float32", "nhwc", Mode.NHWC),
        (3, "tf32", "nhwc", Mode.NHWC_ODD),
        (12, "float16", "nhwc", Mode.NHWC_ODD),
        (8, "bfloat16", "nhwc", Mode.NHWC),
    ],
)
def test_words_are_loaded_in_fours_where_their_number_allows(
    channels: int, dtype: str, layout: str, expected: Mode
) -> None:
    problem = ConvProblem(1, 2 * channels, 9, 9, 2, 3, 3, groups=2, dtype=DType(dtype), layout=Layout(layout))
    assert plans.mode_of(problem) is expected


def test_the_slab_by_hand() -> None:
    geometry = plans.geometry_of(ConvProblem.parse(REGNET, dtype="float16", layout="nhwc"), cut())
    assert (geometry.rows, geometry.phase_columns, geometry.columns) == (29, 15, 30)
    assert (geometry.stride_p, geometry.stride_q, geometry.step_h, geometry.step_w) == (2, 2, 1, 1)
    assert (geometry.gemm_k, geometry.chunks, geometry.slab_pitch) == (9 * 24, 1, 28)
    weight, slab = 48 * (9 * 24 + 4), 29 * 30 * 28
    assert geometry.weight_pitch == 9 * 24 + 4
    problem = ConvProblem.parse(REGNET, dtype="float16", layout="nhwc")
    assert plans.shared_bytes(problem, cut()) == 4 * (9 * 24 + 872 + weight + slab)


def test_steps_that_no_tap_reads_are_not_staged() -> None:
    problem = ConvProblem(1, 8, 28, 28, 8, 1, 1, 2, 2, groups=2)
    geometry = plans.geometry_of(problem, cut(block_filters=4, chunk_words=4))
    assert (geometry.rows, geometry.columns, geometry.step_h, geometry.step_w) == (14, 14, 2, 2)
    dilated = ConvProblem(1, 8, 64, 64, 8, 3, 3, dilation_h=30, dilation_w=30, groups=2)
    geometry = plans.geometry_of(dilated, cut(block_filters=4, chunk_words=4, tile_p=1, tile_q=1))
    assert (geometry.rows, geometry.columns, geometry.step_h) == (3, 3, 30)


@pytest.mark.parametrize(
    ("layer", "dtype", "expected"),
    [
        ("28x28-1-3x3-96-96-stride1x1-pad1x1-dilation1x1-groups2", "float32", (4, 4, 1, 3)),
        ("14x14-1-3x3-96-96-stride1x1-pad1x1-dilation1x1-groups2", "float16", (2, 1, 4, 1)),
        ("14x14-1-1x1-96-96-stride1x1-pad0x0-dilation1x1-groups2", "float16", (4, 1, 4, 0)),
        ("28x28-1-3x3-96-96-stride2x2-pad1x1-dilation1x1-groups2", "float16", (1, 1, 4, 0)),
        ("15x15-1-3x3-96-99-stride1x1-pad1x1-dilation1x1-groups3", "float32", (1, 1, 1, 0)),
    ],
)
def test_copies_are_as_wide_as_alignment_allows(layer: str, dtype: str, expected: tuple[int, ...]) -> None:
    problem = ConvProblem.parse(layer, dtype=dtype)
    tile = cut(tile_p=min(14, problem.p), tile_q=problem.q, chunk_words=plans.group_words(problem))
    runs = plans.runs_of(problem, tile)
    assert (runs.x, runs.weight, runs.y, runs.lead) == expected


@settings(deadline=None, max_examples=60)
@given(problem=problems())
def test_a_cut_covers_the_outputs_and_fits(problem: ConvProblem) -> None:
    chosen = grouped_choice.plan_cut(problem, H200)
    geometry, filters = plans.geometry_of(problem, chosen), problem.k // problem.groups
    assert plans.shared_bytes(problem, chosen) <= plans.MOST_SHARED_BYTES
    assert chosen.threads <= 32 * plans.MOST_WARPS
    assert chosen.tile_pixels <= 16 * chosen.tile.mt * chosen.warps_m
    assert chosen.block_filters <= 8 * chosen.tile.nt * chosen.warps_n
    assert chosen.block_groups == 1 or (chosen.block_filters == filters and geometry.chunks == 1)
    assert geometry.chunks * chosen.chunk_words >= plans.group_words(problem)
    assert 1 <= chosen.tile_blocks <= plans.tiles_of(problem, chosen)
    assert chosen.tile_blocks * plans.columns_of_blocks(problem, chosen) < 2**31
    assert max(geometry.slab_words, geometry.slab_pixels) < 2**16
    assert all(-(2**31) <= argument < 2**32 for argument in plans.arguments(problem, chosen))
    storage = {"float32": "FLOAT32", "tf32": "FLOAT32", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}[problem.dtype]
    assert plans.defines_for(chosen.tile, problem) in plans.SOURCE.instantiations(storage)


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.id)
@settings(deadline=None, max_examples=20)
@given(shapes=st.lists(problems(), min_size=1, max_size=4))
def test_each_is_planned_the_same_whatever_stands_beside_it(device: Device, shapes: list[ConvProblem]) -> None:
    alike = [replace(shape, dtype=shapes[0].dtype, layout=shapes[0].layout) for shape in shapes]
    together = Shapes.of_table(sizes_of(alike), alike[0].dtype, alike[0].layout)
    assert grouped_choice.plan_cuts(together, device) == [grouped_choice.plan_cut(each, device) for each in alike]


@settings(deadline=None, max_examples=20)
@given(problem=problems())
def test_the_model_chooses_what_it_expects_to_be_fastest(problem: ConvProblem) -> None:
    expected = grouped_choice.expected(problem, H200)
    assert 0 < expected[grouped_choice.plan_cut(problem, H200)] == min(expected.values())


def test_more_problems_than_are_planned_at_a_time_stay_in_order() -> None:
    layers = [ConvProblem(n, 32, 14, 14, 32, 3, 3, pad_h=1, pad_w=1, groups=4) for n in range(1, 131)]
    together = Shapes.of_table(sizes_of(layers), layers[0].dtype, layers[0].layout)
    chosen = grouped_choice.plan_cuts(together, H200)
    assert len(chosen) == len(layers)
    for place in (0, 63, 64, 129):
        assert chosen[place] == grouped_choice.plan_cut(layers[place], H200)


def test_where_nothing_else_fits_a_block_has_one_pixel_and_as_few_filters_as_it_takes() -> None:
    large = ConvProblem(1, 16, 40, 40, 64, 32, 32, groups=2, layout=Layout.NHWC)
    small = ConvProblem.parse(REGNET, layout="nhwc")
    together = Shapes.of_table(sizes_of([small, large, small]), small.dtype, small.layout)
    first, second, third = grouped_choice.plan_cuts(together, H200)
    assert first == third == grouped_choice.plan_cut(small, H200)
    assert (second.tile_pixels, second.block_groups, second.chunk_words) == (1, 1, 4)
    assert 1 <= second.block_filters < 8
    assert plans.shared_bytes(large, second) <= plans.MOST_SHARED_BYTES
    assert plans.shared_bytes(large, replace(second, block_filters=second.block_filters + 1)) > plans.MOST_SHARED_BYTES


@settings(deadline=None, max_examples=30)
@given(problem=problems(), data=st.data())
def test_what_lies_in_fours_and_runs_is_aligned(problem: ConvProblem, data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(list(grouped_choice.expected(problem, H200))))
    geometry, runs, mode = plans.geometry_of(problem, chosen), plans.runs_of(problem, chosen), plans.mode_of(problem)
    assert geometry.weight_pitch % 4 == geometry.padded_k % 8 == geometry.slab_words % 4 == 0
    if mode is Mode.NHWC:
        assert geometry.slab_pitch % 8 == 4
        assert chosen.chunk_words % 4 == 0
    elif mode is Mode.NCHW:
        assert geometry.slab_pixels % runs.x == 0
        assert geometry.slab_pitch >= geometry.slab_pixels


def test_a_multiprocessor_holds_what_its_own_shared_memory_has_room_for() -> None:
    wide = cut(warps_m=2)
    assert [int(resident_blocks(wide, 70 * 1024, device)) for device in (H200, A100)] == [3, 2]
    assert [int(resident_blocks(wide, 90 * 1024, device)) for device in (H200, A100)] == [2, 1]


def test_every_storage_type_has_its_instantiations() -> None:
    assert [len(plans.SOURCE.instantiations(storage)) for storage in STORAGES] == [84, 42, 42]
