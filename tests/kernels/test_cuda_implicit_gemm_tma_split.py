"""Small tiles whose gemm_k warps and blocks share, without a GPU: their launches and their rule."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.cuda.implicit_gemm_tma import launch, plan, split
from conv_advisor.kernels.cuda.implicit_gemm_tma.maps import pixels_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import Tile, stages_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import SplitTile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.shapes import Shapes
from tests.kernels.accelerator import FOURS, GPU, SHAPES, FakeDriver, problem_of

TABLE = json.loads((Path(__file__).parent / "data" / "implicit_gemm_tma_split_us.json").read_text())
"""Times of promising cuts on an H200, by pixels, filters and blocks of a cluster; of large tiles too."""
FOUR_BYTES = {**SHAPES, **FOURS}


def split_cuts(problem: ConvProblem, processors: int) -> list[Cut[SplitTile]]:
    cuts = plan.expected(problem, replace(GPU, processors=processors))
    return [Cut(cut.tile, cut.cluster) for cut in cuts if isinstance(cut.tile, SplitTile)]


@pytest.mark.parametrize("processors", [1, 78, 132])
@pytest.mark.parametrize("name", FOUR_BYTES)
def test_blocks_have_every_tile_a_stage_each_and_fit_their_multiprocessors(name: str, processors: int) -> None:
    problem = problem_of(FOUR_BYTES[name], DType.FLOAT32)
    for cut in (cuts := split_cuts(problem, processors)):
        of = split.arranged(cut.tile, cut.cluster, problem, processors)
        across, down = plan.tiles_of(cut.tile, problem)
        assert (of.down, of.columns) == (across, down)
        assert of.filters % 8 == 0
        assert (of.columns - 1) * of.filters < problem.k <= of.columns * of.filters <= of.columns * cut.tile.bf
        assert (of.down - 1) * of.pixels < pixels_of(problem) <= of.down * of.pixels <= of.down * cut.tile.bp
        assert of.pixels <= of.owned * cut.cluster < of.pixels + cut.cluster
        assert cut.cluster <= stages_of(problem)
        assert 1 <= of.slots <= min(split.MOST_SLOTS, -(-stages_of(problem) // cut.cluster))
        assert of.body_bytes >= max(of.slots * cut.tile.stage_bytes, cut.tile.sums_bytes)
        assert of.shared_bytes <= 227 * 1024
        assert of.resident * (of.shared_bytes + 1024) <= 228 * 1024
    assert {cut.tile for cut in cuts} == set(split.TILES[DType.FLOAT32])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.TF32])
def test_rows_of_a_stage_are_whole_swizzles(dtype: DType) -> None:
    """Rows of few channels are half as long in tf32, and the kernel does not read those."""
    problem = problem_of(SHAPES["same_5x5"], dtype)
    assert bool(split_cuts(problem, 132)) is (dtype is DType.FLOAT32)


def test_split_tiles_of_many_problems_are_expected_to_take_what_each_is() -> None:
    problems = [problem_of(sizes, DType.FLOAT32) for sizes in FOUR_BYTES.values()]
    (together,) = split.offers(Shapes.of_table(sizes_of(problems), DType.FLOAT32, Layout.NHWC), GPU)
    for column, problem in enumerate(problems):
        (alone,) = split.offers(Shapes.of(problem), GPU)
        assert np.array_equal(alone.us[:, 0], together.us[:, column])
        assert np.array_equal(alone.blocks[:, 0], together.blocks[:, column])


def test_a_split_launch_says_what_the_kernel_reads(map_driver: FakeDriver, tma_launches: list[Any]) -> None:
    problem = replace(problem_of(FOURS["same_3x3_fours"], DType.FLOAT32), epilogue=Epilogue.parse("bias-residual"))
    tile = SplitTile(64, 64, 2, 2, 2, blocks=2)
    prepared = launch.launch(problem, GPU, Cut(tile, 4))
    prepared.run(*(SimpleNamespace(data=SimpleNamespace(ptr=4096 * place)) for place in range(1, 6)))
    assert [call[3].value for call in map_driver.asked] == [4096, 8192]
    assert tma_launches[1][2:] == (12288, 16384, 20480), "y, bias and residual by their addresses"
    (grid, threads, shared_bytes, sizes), options = tma_launches[0]
    of = split.arranged(tile, 4, problem, 132)
    assert (grid, threads, shared_bytes) == ((16 * 4, 2, 1), 288, of.shared_bytes)
    # 68 filters are tiles of 40; 9 taps of two chunks of 32 channels are 4 stages a block, 5 for two of them.
    # 980 pixels are tiles of 62, of which a block owns 16.
    assert sizes[7] == problem.k
    assert sizes[14:21] == (62, 40, 4, 2, of.slots, 16, 4096)
    assert [sizes[place] for place in (21, 24, 27, 30)] == [196, 14, 2, 3]
    assert options == {"cluster": 4, "overlaps": False, "is_structure": True}
    assert plan.blocks_of(Cut(tile, 4), problem, GPU) == grid[0] * grid[1]


def test_the_kernel_and_its_split_tiles_have_the_same_threads_and_places() -> None:
    listed = dict(re.findall(r"^#define ([A-Z_]+) (.+?)(?: //.*)?$", split.SOURCE.text(), re.M))

    def value(expression: str, known: dict[str, int]) -> int:
        def of(match: re.Match[str]) -> str:
            return str(known[match[0]] if match[0] in known else value(listed[match[0]], known))

        replaced = re.sub(r"[A-Z_]+", of, expression)
        return int(eval(replaced.replace("/", "//")))  # noqa: S307 - numbers, products and sums of our own source

    for dtype, tile in ((dtype, tile) for dtype, tiles in split.TILES.items() for tile in tiles):
        known = tile.defines(dtype, is_dense=False)
        assert value("THREADS", known) == tile.threads
        assert value("(1 + PARTED) * X_BYTES + WEIGHT_BYTES", known) == tile.stage_bytes
        assert value("WARPS_K * BP * SUM_PITCH * 4", known) == tile.sums_bytes
        assert value("MOST_SLOTS", known) == split.MOST_SLOTS


@pytest.mark.parametrize(
    ("dtype", "layers", "mean", "worst"), [("float32", 72, 1.015, 1.12), ("tf32", 16, 1.015, 1.05)]
)
def test_the_rule_takes_a_cut_about_as_fast_as_the_fastest(dtype: str, layers: int, mean: float, worst: float) -> None:
    slowdowns = []
    for layer, us in TABLE[dtype].items():
        problem = ConvProblem.parse(layer, dtype=DType(dtype), layout=Layout.NHWC)
        expected = {name_of(cut): time for cut, time in plan.expected(problem, GPU).items()}
        chosen = min((name for name in us if name in expected), key=expected.__getitem__)
        slowdowns.append(us[chosen] / min(us.values()))
    assert len(slowdowns) == layers
    assert geometric_mean(slowdowns) < mean
    assert max(slowdowns) < worst


def name_of(cut: Cut[plan.AnyTile]) -> str:
    """Tiles of halves were not timed then."""
    kind = ("by turns " if cut.tile.by_turns else "large ") if isinstance(cut.tile, Tile) else ""
    if isinstance(cut.tile, Tile) and cut.tile.of_halves:
        kind = "of halves "
    return f"{kind}{cut.tile.bp}x{cut.tile.bf} {cut.cluster}"
