"""Small tiles of the implicit GEMM fed by the tensor memory accelerator, without one: their launches and their rule."""

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
from conv_advisor.kernels.cuda.implicit_gemm_tma import launch, plan, small
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import stages_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.small import SmallTile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.shapes import Shapes
from tests.kernels.accelerator import GPU, SHAPES, FakeDriver, problem_of

TABLE = json.loads((Path(__file__).parent / "data" / "implicit_gemm_tma_small_us.json").read_text())
"""Times of promising cuts on an H200, by pixels, filters and blocks."""


def small_cuts(problem: ConvProblem, processors: int) -> list[SmallTile]:
    cuts = plan.expected(problem, replace(GPU, processors=processors))
    return [cut.tile for cut in cuts if isinstance(cut.tile, SmallTile)]


@pytest.mark.parametrize("processors", [1, 78, 132])
@pytest.mark.parametrize("name", SHAPES)
def test_blocks_of_small_tiles_take_every_tile_and_fit_their_multiprocessors(name: str, processors: int) -> None:
    problem = problem_of(SHAPES[name])
    for tile in (tiles := small_cuts(problem, processors)):
        of = small.arranged(tile, problem, processors)
        across, down = plan.tiles_of(tile, problem)
        assert of.columns == down
        assert of.filters % 8 == 0
        assert (of.columns - 1) * of.filters < problem.k <= of.columns * of.filters <= of.columns * tile.bf
        assert of.rows <= across <= of.rows * of.turns < across + of.rows
        assert 1 <= of.slots <= min(small.MOST_SLOTS, stages_of(problem) * of.turns)
        assert of.recycles == (of.slots < stages_of(problem) * of.turns)
        assert of.resident * (of.shared_bytes + 1024) <= 228 * 1024
        assert not of.is_kept or of.turns > 1, "what is read once is not worth keeping"
    assert {(tile.bp, tile.bf) for tile in tiles} == {(tile.bp, tile.bf) for tile in small.TILES}
    assert not small.offers(Shapes.of(replace(problem, dtype=DType.TF32)), GPU)


def test_small_tiles_of_many_problems_are_expected_to_take_what_each_is() -> None:
    problems = [problem_of(sizes) for sizes in SHAPES.values()]
    (together,) = small.offers(Shapes.of_table(sizes_of(problems), DType.FLOAT16, Layout.NHWC), GPU)
    for column, problem in enumerate(problems):
        (alone,) = small.offers(Shapes.of(problem), GPU)
        assert np.array_equal(alone.us[:, 0], together.us[:, column])
        assert np.array_equal(alone.blocks[:, 0], together.blocks[:, column])


def test_a_small_launch_says_what_the_kernel_reads(map_driver: FakeDriver, tma_launches: list[Any]) -> None:
    problem = replace(problem_of(SHAPES["dense_waves"]), epilogue=Epilogue.parse("bias-residual"))
    tile = SmallTile(64, 96, blocks=2)
    prepared = launch.launch(problem, GPU, Cut(tile, 1))
    prepared.run(*(SimpleNamespace(data=SimpleNamespace(ptr=4096 * place)) for place in range(1, 6)))
    assert [call[3].value for call in map_driver.asked] == [4096, 8192]
    assert tma_launches[1][2:] == (12288, 16384, 20480), "y, bias and residual by their addresses"
    (grid, threads, shared_bytes, sizes), options = tma_launches[0]
    of = small.arranged(tile, problem, 132)
    assert (grid, threads, shared_bytes) == ((3, of.rows, 1), 160, of.shared_bytes)
    assert sizes[-6:] == (1568, 88, 1, of.slots, True, True)
    assert options == {"overlaps": False, "is_structure": True}


def test_the_kernel_and_its_small_tiles_have_the_same_threads_and_places() -> None:
    listed = dict(re.findall(r"^#define ([A-Z_]+) (.+?)(?: //.*)?$", small.SOURCE.text(), re.M))

    def value(expression: str, tile: SmallTile) -> int:
        known = {"BP": tile.bp, "BF": tile.bf, "ROW_BYTES": 128}

        def of(name: str) -> str:
            return str(known[name] if name in known else value(listed[name], tile))

        replaced = re.sub(r"[A-Z_]+", lambda match: of(match[0]), expression)
        return int(eval(replaced.replace("/", "//")))  # noqa: S307 - numbers, products and sums of our own source

    for tile in small.TILES:
        assert value("THREADS", tile) == tile.threads
        assert value("LINE_BYTES", tile) * tile.bp == tile.line_bytes
        assert value("MOST_SLOTS", tile) == small.MOST_SLOTS


def test_the_rule_takes_a_small_tile_about_as_fast_as_the_fastest() -> None:
    slowdowns = []
    for dtype, layers in TABLE.items():
        for layer, us in layers.items():
            problem = ConvProblem.parse(layer, dtype=DType(dtype), layout=Layout.NHWC)
            expected = {
                f"{cut.tile.bp}x{cut.tile.bf} {cut.tile.blocks}": time
                for cut, time in plan.expected(problem, GPU).items()
                if isinstance(cut.tile, SmallTile)
            }
            slowdowns.append(us[min(us, key=expected.__getitem__)] / min(us.values()))
    assert len(slowdowns) == 73
    assert geometric_mean(slowdowns) < 1.025
    assert max(slowdowns) < 1.29
