"""Tiles whose operands go straight to registers, without a GPU: their launches and their rule."""

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
from conv_advisor.kernels.cuda.implicit_gemm_tma import launch, plan, straight
from conv_advisor.kernels.cuda.implicit_gemm_tma.maps import pixels_of
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import SplitTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.straight import StraightTile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.shapes import Shapes
from tests.kernels.accelerator import GPU, SHAPES, FakeDriver, problem_of

TABLE = json.loads((Path(__file__).parent / "data" / "implicit_gemm_straight_us.json").read_text())
"""Times of cuts in float16 on an H200: straight ones, those that share gemm_k, and the small or large tile of the rule
before there were these."""


def straight_cuts(problem: ConvProblem, processors: int) -> list[Cut[StraightTile]]:
    cuts = plan.expected(problem, replace(GPU, processors=processors))
    return [Cut(cut.tile, cut.cluster) for cut in cuts if isinstance(cut.tile, StraightTile)]


@pytest.mark.parametrize("processors", [1, 132])
@pytest.mark.parametrize("name", SHAPES)
def test_blocks_have_every_output_a_step_each_and_fit_a_multiprocessor(name: str, processors: int) -> None:
    problem = problem_of(SHAPES[name])
    for cut in (cuts := straight_cuts(problem, processors)):
        of = straight.arranged(cut.tile, cut.cluster, problem)
        assert (of.down, of.columns) == plan.tiles_of(cut.tile, problem)
        assert of.filters % 8 == 0
        assert (of.columns - 1) * of.filters < problem.k <= of.columns * of.filters <= of.columns * cut.tile.bf
        assert (of.down - 1) * of.pixels < pixels_of(problem) <= of.down * of.pixels <= of.down * cut.tile.bp
        assert of.pixels <= of.owned * cut.cluster < of.pixels + cut.cluster
        assert cut.cluster <= of.steps
        assert 8 * (4 * of.steps - 3) <= problem.r * problem.s * problem.c <= 8 * 4 * of.steps
        assert of.shared_bytes <= 227 * 1024
    assert {cut.tile for cut in cuts} == set(straight.TILES)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.TF32])
def test_there_are_none_of_four_bytes(dtype: DType) -> None:
    assert not straight.offers(Shapes.of(problem_of(SHAPES["dense"], dtype)), GPU)
    assert not straight.definitions(dtype)


def test_straight_tiles_of_many_problems_are_expected_to_take_what_each_is() -> None:
    problems = [problem_of(sizes) for sizes in SHAPES.values()]
    (together,) = straight.offers(Shapes.of_table(sizes_of(problems), DType.FLOAT16, Layout.NHWC), GPU)
    for column, problem in enumerate(problems):
        (alone,) = straight.offers(Shapes.of(problem), GPU)
        assert np.array_equal(alone.us[:, 0], together.us[:, column])
        assert np.array_equal(alone.blocks[:, 0], together.blocks[:, column])


def test_a_straight_launch_says_what_the_kernel_reads(map_driver: FakeDriver, tma_launches: list[Any]) -> None:
    problem = replace(problem_of(SHAPES["same_3x3_tails"]), epilogue=Epilogue.parse("bias-residual"))
    prepared = launch.launch(problem, GPU, Cut(straight.TILES[0], 3))
    prepared.run(*(SimpleNamespace(data=SimpleNamespace(ptr=4096 * place)) for place in range(1, 6)))
    assert not map_driver.asked
    assert tma_launches[1] == (4096, 8192, 12288, 16384, 20480)
    (grid, threads, shared_bytes, sizes), options = tma_launches[0]
    of = straight.arranged(straight.TILES[0], 3, problem)
    # 980 pixels are 62 tiles of 16, 72 filters 9 of 8; 9 taps of 17 pieces are 39 steps, 13 a block.
    assert (grid, threads, shared_bytes) == ((62 * 3, 9, 1), 256, of.shared_bytes)
    assert sizes[7] == problem.k
    assert sizes[14:23] == (14, 14, 16, 8, 13, 0, 153, 6, 10923)
    assert [sizes[place] for place in (23, 26, 29, 32)] == [196, 14, 17, 3]
    assert options == {"cluster": 3, "overlaps": False, "is_structure": True}
    assert plan.blocks_of(Cut(straight.TILES[0], 3), problem, GPU) == grid[0] * grid[1]


def test_the_kernel_and_its_tiles_have_the_same_threads_and_places() -> None:
    listed = dict(re.findall(r"^#define ([A-Z_]+) (.+?)(?: +//.*)?$", straight.SOURCE.text(), re.M))

    def value(expression: str, known: dict[str, int]) -> int:
        def of(match: re.Match[str]) -> str:
            return str(known[match[0]] if match[0] in known else value(listed[match[0]], known))

        replaced = re.sub(r"[A-Z_]+", of, expression)
        return int(eval(replaced.replace("/", "//")))  # noqa: S307 - numbers, products and sums of our own source

    for tile in straight.TILES:
        known = tile.defines(is_dense=False, is_whole=False)
        assert value("WORKERS", known) == tile.threads
        assert tile.sums_bytes in (0, value("WARPS_K * BP * SUM_PITCH * 4", known))
        assert (value("PIECE", known), value("OF_STEP", known)) == (straight.PIECE, straight.OF_STEP)


def test_the_rule_takes_a_cut_about_as_fast_as_the_fastest() -> None:
    slowdowns = []
    for layer, us in TABLE.items():
        problem = ConvProblem.parse(layer, dtype=DType.FLOAT16, layout=Layout.NHWC)
        expected: dict[str, float] = {}
        for cut, time_us in plan.expected(problem, GPU).items():
            expected[name_of(cut)] = min(time_us, expected.get(name_of(cut), np.inf))
        slowdowns.append(us[min(us, key=expected.__getitem__)] / min(us.values()))
    assert len(slowdowns) == 96
    assert geometric_mean(slowdowns) < 1.02
    assert max(slowdowns) < 1.2


def name_of(cut: Cut[plan.AnyTile]) -> str:
    if not isinstance(cut.tile, SplitTile | StraightTile):
        return "small or large"
    kind = "split" if isinstance(cut.tile, SplitTile) else "straight"
    return f"{kind} {cut.tile.bp}x{cut.tile.bf}/{cut.tile.parts} {cut.cluster}"
