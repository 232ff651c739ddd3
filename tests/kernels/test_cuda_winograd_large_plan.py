"""How Winograd with tiles of 4x4 outputs cuts a problem; pure arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data import networks
from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.parts.rules import under_the_default_limit
from conv_advisor.kernels.cuda.winograd_large import plan as plans
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
SHARED_BYTES_OF_HOPPER = 227 * 1024
REGISTERS = 65_536
POINTS = {6: (Fraction(11, 16), Fraction(11, 8)), 8: (Fraction(1, 2), Fraction(1), Fraction(2))}
LARGEST_HALF = 65_504
LAYERS = ("28-32-3-128-128", "7-256-3-512-512", "224-8-3-64-64", "13-37-3-20-12", "27-8-5-256-96", "14-1-5-48-16")


def largest_line_sums(tile: int) -> tuple[float, float]:
    """The largest sum of magnitudes in a row of B^T, and of G for 5 taps, by Cook and Toom."""
    finite = [Fraction(0), *(sign * point for point in POINTS[tile] for sign in (1, -1))]
    rows = []
    for skipped in (*finite, None):
        coefficients = [Fraction(1)]
        for point in (p for p in finite if p != skipped):
            shifted = [Fraction(0), *coefficients]
            coefficients = [a - point * b for a, b in zip(shifted, [*coefficients, Fraction(0)], strict=True)]
        rows.append(coefficients)
    taps = 3 if tile == 6 else 5
    filters = [
        sum(abs(point) ** tap for tap in range(taps)) / abs(prod(point - other for other in finite if other != point))
        for point in finite
    ]
    return float(max(sum(map(abs, row)) for row in rows)), float(max(1, *filters))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("tile", POINTS)
def test_no_transform_overflows_float16(tile: int, layout: Layout) -> None:
    of_x, of_weight = largest_line_sums(tile)
    top_x = 10 if tile == 6 else 7
    text = plans.TRANSFORM_SOURCES[layout].text()
    assert "#define TOP_X (TILE == 6 ? 10 : 7)" in text
    assert "#define TOP_WEIGHT 12" in text
    assert of_x**2 * 2 ** (top_x + 1) < LARGEST_HALF
    assert of_weight**2 * 2 ** (12 + 1) < LARGEST_HALF


def test_the_workspace_by_hand() -> None:
    problem = ConvProblem.parse("14-8-3-64-24")
    tile = plans.H200.tiles[1].tile
    assert (tile.bm, tile.bn) == (64, 128)
    cut = plans.Cut(tile, 8)
    # 16 tiles an image: 128 rows of V and M; 24 channels are two slices of 16.
    u, v, m = 36 * 32 * 64 * 4, 36 * 32 * 128 * 4, 36 * 64 * 128 * 4
    assert plans.scratch_bytes(problem, tile, cut.images) == (u, v, m, 4 * (8 * 32 + 64), 4 * (8 + 64))
    assert plans.workspace_bytes(problem, cut) == u + v + m + 4 * (8 * 33 + 2 * 64)


def test_channels_last_have_tiles_on_the_left_of_the_gemm() -> None:
    problem = ConvProblem.parse("14-9-3-72-24", layout="nhwc")
    tile = plans.H200.tiles[1].tile
    assert (tile.bm, tile.bn) == (64, 128)
    # 144 tiles are three blocks of 64, 72 filters one of 128.
    u, v, m = 36 * 32 * 128 * 4, 36 * 32 * 192 * 4, 36 * 128 * 192 * 4
    assert plans.scratch_bytes(problem, tile, 9)[:3] == (u, v, m)
    assert plans.gemm_blocks(problem, plans.Cut(tile, 9), 9) == 36 * 3
    assert plans.staged_bytes(problem) == 0


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", LAYERS)
def test_the_most_images_are_the_most_whose_workspace_fits(layer: str, layout: Layout) -> None:
    problem = ConvProblem.parse(layer, layout=layout)
    for timed in plans.H200.tiles:
        for images in range(1, problem.n + 1):
            cut = plans.Cut(timed.tile, images)
            needed = plans.workspace_bytes(problem, cut)
            assert plans.least_workspace_bytes(problem) <= needed
            assert plans.most_images(problem, timed.tile, needed) >= images
            assert plans.most_images(problem, timed.tile, needed - 1) < images


@pytest.mark.parametrize("timed", plans.H200.tiles, ids=lambda timed: f"{timed.tile.bm}x{timed.tile.bn}")
def test_blocks_fit_a_multiprocessor(timed: plans.TimedTile) -> None:
    tile = timed.tile
    assert tile.blocks * (tile.shared_bytes + 1024 + 128) <= SHARED_BYTES_OF_HOPPER + 1024
    assert tile.bm % 64 == tile.bn % 64 == 0
    assert tile.stages >= 2
    assert tile.blocks * tile.threads * tile.bn // 2 <= REGISTERS  # of sums alone


@settings(deadline=None, max_examples=50)
@given(q=st.integers(1, 300), first=st.integers(0, 500), r=st.sampled_from([3, 5]))
def test_the_rows_that_a_block_stages_fit_its_shared_memory(q: int, first: int, r: int) -> None:
    problem = ConvProblem(1, 16, 8, q, 16, r, r, pad_h=r // 2, pad_w=r // 2)
    begin, tiles_q = plans.BLOCK_TILES * first, ceil(q / plans.OUT)
    strips = (begin + plans.BLOCK_TILES - 1) // tiles_q - begin // tiles_q + 1
    tile = plans.tile_of(problem)
    floats = tile * (plans.OUT * plans.BLOCK_TILES + (tile - plans.OUT) * strips) * plans.SLICE
    assert 4 * floats <= plans.staged_bytes(problem) <= SHARED_BYTES_OF_HOPPER


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("14-1-3-8-8", 32),
        ("13-1-3-8-8", 32),
        ("27-1-3-8-8", 28),
        ("28-1-3-8-8", 32),
        ("55-1-3-8-8", 28),
        ("131-1-3-8-8", 32),
        ("7-1-3-8-8", 32),
    ],
)
def test_a_run_is_whole_rows_of_tiles_where_rows_of_y_are_not_aligned(layer: str, expected: int) -> None:
    assert plans.run_tiles(ConvProblem.parse(layer)) == expected


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("layer", LAYERS)
def test_what_a_plan_says_it_needs_is_enough_and_less_is_not(layer: str, layout: Layout) -> None:
    problem = ConvProblem.parse(layer, layout=layout)
    with pytest.raises(WorkspaceExceeded) as raised:
        plans.plan_cut(problem, H200, 1)
    needed = raised.value.needed_bytes
    cut = plans.plan_cut(problem, H200, needed)
    assert cut.images == min(problem.n, max(1, 64 // plans.tiles_of(problem)))  # rows of V come in blocks of 64
    assert plans.workspace_bytes(problem, cut) <= needed
    with pytest.raises(WorkspaceExceeded):
        plans.plan_cut(problem, H200, needed - 1)


@settings(deadline=None, max_examples=30)
@given(images=st.integers(1, 300), limit=st.integers(0, 2**28), layout=st.sampled_from(Layout))
def test_chunks_fit_the_limit(images: int, limit: int, layout: Layout) -> None:
    problem = ConvProblem.parse(f"13-{images}-3-24-12", layout=layout)
    try:
        cut = plans.plan_cut(problem, H200, limit)
    except WorkspaceExceeded:
        return
    assert 1 <= cut.images <= images
    assert plans.workspace_bytes(problem, cut) <= limit


def test_every_layer_of_the_seeds_has_a_cut_within_the_default_limit() -> None:
    for layer in networks.layers("seeds"):
        size, _, r, k, c = layer.problem.short.split("-")
        if r == "1":
            continue
        for n, layout in product((1, 8, 256), Layout):
            problem = ConvProblem.parse(f"{size}-{n}-{r}-{k}-{c}", layout=layout)
            cut = plans.plan_cut(problem, H200, DEFAULT_WORKSPACE_LIMIT_BYTES)
            assert plans.workspace_bytes(problem, cut) <= DEFAULT_WORKSPACE_LIMIT_BYTES
            assert plans.gemm_blocks(problem, cut, cut.images) < 2**31


def test_few_filters_and_tiles_take_small_blocks_and_many_take_large() -> None:
    small = plans.plan_cut(ConvProblem.parse("7-8-3-64-64"), H200, 2**30).tile
    large = plans.plan_cut(ConvProblem.parse("28-128-3-512-512"), H200, 2**30).tile
    assert small.bm * small.bn < large.bm * large.bn
    assert large.bm * large.bn >= 128 * 128


def test_every_cut_can_be_compiled() -> None:
    for layer in LAYERS:
        problem = ConvProblem.parse(layer)
        assert plans.plan_cut(problem, H200, 2**30).tile.defines in plans.GEMM_DEFINES
        assert {"TILE": plans.tile_of(problem)} in plans.TRANSFORM_DEFINES


def test_the_device_says_how_many_multiprocessors_there_are() -> None:
    layer = ConvProblem.parse("14-8-3-256-256")
    small = replace(H200, id="a-smaller-one", processors=16)
    workspace = under_the_default_limit(plans.planned_bytes)
    chosen = {device.id: plans.plan_cut(layer, device, 2**30) for device in (H200, small)}
    assert chosen[H200.id].tile != chosen[small.id].tile
    for device in (H200, small):
        assert workspace(layer, device) == plans.workspace_bytes(layer, chosen[device.id])
    assert plans.image_parts(ConvProblem.parse("224-64-3-64-64"), H200) == 17
    assert plans.image_parts(ConvProblem.parse("224-64-3-64-64"), small) == 2
    wide = ConvProblem.parse("56-8-3-128-128")
    assert (plans.filters_of_run(wide, small, 8), plans.filters_of_run(wide, H200, 8)) == (4, 1)
