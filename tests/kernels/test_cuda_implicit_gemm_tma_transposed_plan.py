"""How the implicit GEMM of planar tensors that the accelerator feeds cuts problems: pure arithmetic, without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import row_bytes_of, stages_of
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import forms, launch, menu, plan
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.menu import SHARED_TILES, TILES, Tile
from conv_advisor.kernels.cuda.parts.shapes import Shapes
from tests.kernels.accelerator import GPU, SHAPES
from tests.shapes import EDGE_SHAPES

VARIANT = get("cuda.implicit_gemm_tma_transposed")
PROBLEMS = [
    problem
    for sizes in {**EDGE_SHAPES, **SHAPES}.values()
    if VARIANT.why_not(problem := ConvProblem(**sizes, dtype=DType.FLOAT16), GPU) is None
]


@pytest.mark.parametrize("processors", [1, 78, 132])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_every_cut_fits_and_is_a_build_of_the_source(problem: ConvProblem, processors: int) -> None:
    multiplied, pixels = forms.packed(problem), plan.pixels_of(problem, problem.n)
    cuts = plan.expected(problem, replace(GPU, processors=processors))
    assert {cut.tile for cut in cuts if cut.cluster == 1} >= {tile for tile in TILES if tile.columns >= menu.LINE}
    for cut in cuts:
        assert plan.defines_of_cut(cut, problem) in plan.definitions(problem.dtype)
        for has_residual in (False, True):
            of = plan.arranged(cut.tile, cut.cluster, multiplied, pixels, processors, has_residual=has_residual)
            stage_bytes = (cut.tile.bf + cut.tile.bp) * row_bytes_of(multiplied)
            of_block = -(-stages_of(multiplied) // cut.cluster)
            assert min(2, of_block) <= of.slots <= menu.MOST_SLOTS
            assert of.resident * (of.shared_bytes + 1024) <= 228 * 1024
            assert of.shared_bytes <= 227 * 1024
            assert of.shared_bytes >= max(of.slots * stage_bytes, of.received_bytes)
            assert of.tiles * cut.tile.bf * cut.tile.bp >= problem.k * pixels
            assert of.blocks == (of.tiles * cut.cluster if cut.cluster > 1 else min(of.tiles, processors * of.resident))
        assert cut.cluster == 1 or cut.tile in SHARED_TILES
        assert cut.cluster <= stages_of(multiplied)


def test_many_problems_are_expected_to_take_what_each_is() -> None:
    together = plan.offers(Shapes.of_table(sizes_of(PROBLEMS), DType.FLOAT16, Layout.NCHW), GPU)
    for column, problem in enumerate(PROBLEMS):
        for alone, every in zip(plan.offers(Shapes.of(problem), GPU), together, strict=True):
            assert np.array_equal(alone.us[:, 0], every.us[:, column])


def test_planes_are_read_as_they_lie_where_the_accelerator_can() -> None:
    forms_of = {
        "56-8-1-64-256": plan.PLANAR,
        "28-8-1-64-256-stride2": plan.IM2COL,
        "14-8-1-64-256": plan.DENSE,
        "28-8-1-64-3": plan.DENSE,
        "4-8-1-64-64": plan.DENSE,
        "28-8-3-64-64": plan.IM2COL,
    }
    problems = {layer: ConvProblem.parse(layer, dtype=DType.FLOAT16) for layer in forms_of}
    assert {layer: plan.form_of(problem) for layer, problem in problems.items()} == forms_of
    assert {layer: bool(VARIANT.workspace_bytes(problem, GPU)) for layer, problem in problems.items()} == {
        layer: form != plan.PLANAR for layer, form in forms_of.items()
    }
    described = launch.planes_map(problems["56-8-1-64-256"], 128)
    assert described.sizes == (3136, 256, 8)
    assert described.strides_bytes == (6272, 1605632)
    assert described.box == (64, 64, 1)


def test_a_unit_is_as_large_as_planes_allow() -> None:
    sizes = {7: 1, 14: 4, 6: 4, 28: 8, 13: 1, 8: 8}
    layers = {size: ConvProblem.parse(f"{size}-2-3-64-64", dtype=DType.FLOAT16) for size in sizes}
    assert {size: plan.unit_of(problem) for size, problem in layers.items()} == sizes


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.bf}x{tile.bp}")
def test_the_kernel_and_its_tiles_have_the_same_threads_and_places(tile: Tile) -> None:
    listed = dict(re.findall(r"^#define ([A-Z_]+) (.+?)(?: +//.*)?$", plan.SOURCE.text(), re.M))
    assert int(listed["MOST_SLOTS"]) == menu.MOST_SLOTS
    assert int(listed["HEAD_BYTES"]) == menu.HEAD_BYTES
    assert int(listed["BOX"]) == forms.BOX_PIXELS
    filters, pixels = (tile.bf, tile.columns) if tile.is_across else (tile.bf // tile.groups, tile.bp)
    assert tile.columns == pixels
    assert filters % 64 == pixels % 32 == 0
    assert tile.line == min(pixels, menu.LINE)
    assert tile.chunks == 4 * tile.groups * (filters // 64) * (pixels // tile.line)


@pytest.mark.parametrize("tile", SHARED_TILES, ids=lambda tile: f"{tile.bf}x{tile.bp}")
@pytest.mark.parametrize("blocks", [2, 3, 5, 8, 16])
def test_what_blocks_push_to_each_other_is_read_once_and_has_room(tile: Tile, blocks: int) -> None:
    """The arithmetic of pushed_sums.cuh: a place for each chunk of each other block, and its owner reads them all."""
    sums = menu.LINE_FILTERS * tile.line
    room = -(-tile.chunks // blocks) * (blocks - 1)
    for owner in range(blocks):
        own = [chunk for chunk in range(tile.chunks) if chunk % blocks == owner]
        pushed = [
            chunk // blocks * (blocks - 1) + (rank + blocks - owner - 1) % blocks
            for rank in range(blocks)
            if rank != owner
            for chunk in own
        ]
        read = [chunk // blocks * (blocks - 1) + other for chunk in own for other in range(blocks - 1)]
        assert sorted(pushed) == sorted(read)
        assert len(set(read)) == len(read)
        assert max(read, default=0) < room or not own
    problem = ConvProblem.parse("14-1-3-256-512", dtype=DType.FLOAT16)
    of = plan.arranged(tile, blocks, forms.packed(problem), plan.pixels_of(problem, 1), 132)
    assert of.received_bytes == room * sums * 4
