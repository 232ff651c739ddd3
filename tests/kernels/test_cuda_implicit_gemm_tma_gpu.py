"""Every cut of the implicit GEMM that the tensor memory accelerator feeds on a real GPU, whatever the rule chooses."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tma import small, split, straight
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import TILES, TILES_OF_HALVES, Tile
from conv_advisor.kernels.cuda.implicit_gemm_tma.plan import AnyTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.small import SmallTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import SplitTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.straight import StraightTile
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.source import Defines, Source
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels.accelerator import shapes_of

pytestmark = pytest.mark.gpu

ENDS = (
    Epilogue(residual=True),
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
CLUSTERS = (1, 2, 3, 5, 8)
"""Blocks that share a tile: some to whom boxes come out even, some to whom they do not, more than there are boxes."""
SPLIT_CLUSTERS = (1, 3, 8, 16)
"""Blocks to whom pixels come out even, to whom they do not, and more than are allowed unasked."""
ENDED = ("same_3x3_tails", "same_3x3_c32", "dense_tails", "dense_waves", "stride_2", "batch_wraps")
"""Boxes that end behind y's last pixel or filter, blocks with several tiles, groups without a pixel."""


def problem_of(name: str, dtype: DType = DType.FLOAT16, epilogue: Epilogue = PLAIN) -> ConvProblem:
    return ConvProblem(**shapes_of(dtype)[name], dtype=dtype, layout=Layout.NHWC, epilogue=epilogue)


MOST_DTYPES = (DType.FLOAT32, DType.TF32, DType.FLOAT16)
"""Each in code of its own; bfloat16 differs from float16 in two instructions."""
PROBLEMS = [
    *[problem_of(name, dtype) for dtype in MOST_DTYPES for name in shapes_of(dtype)],
    *[problem_of(name, DType.BFLOAT16) for name in ("same_3x3_tails", "dense_tails")],
    *[problem_of(name, dtype, ends) for dtype in MOST_DTYPES for name in ENDED for ends in ENDS],
]
OF_SMALL = [problem for problem in PROBLEMS if problem.dtype.itemsize_bytes == 2]
OF_SPLIT = PROBLEMS


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if opened.device.capability != "9.0":
        pytest.skip(f"compute capability is {opened.device.capability}, not 9.0")
    calls = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    names = ("problem", "of_small", "of_split", "of_straight")
    asked = {name: {params[name] for params in calls if name in params} for name in names}
    problems, of_small, of_split, of_straight = (set(PROBLEMS) & of_test for of_test in asked.values())
    compile_all(
        [(problem, cut) for problem in problems for cut in cuts_of(problem)]
        + [(problem, Cut(tile, 1)) for problem in of_small for tile in small.TILES]
        + [(problem, Cut(tile, 1)) for problem in of_split for tile in split.TILES[problem.dtype]]
        + [(problem, Cut(tile, 1)) for problem in of_straight for tile in straight.TILES]
    )
    return opened


def compile_all(cuts: Collection[tuple[ConvProblem, Cut[AnyTile]]]) -> None:
    """On all cores: one after the other the tiles would take minutes to compile."""
    from conv_advisor.kernels.cuda.compile import load_module

    wanted: dict[tuple[Any, ...], tuple[Source, DType, Defines]] = {}
    for problem, cut in cuts:
        source, plain = plans.build_of(cut, problem)
        defines = plain | defines_of(problem.epilogue)
        wanted[source.name, problem.dtype, *defines.items()] = source, problem.dtype, defines
    if not wanted:
        return
    todo = list(wanted.values())
    load_module(todo[0][0], todo[0][1], **todo[0][2])  # what it imports is imported by one thread
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(lambda each: load_module(each[0], each[1], **each[2]), todo))


def cuts_of(problem: ConvProblem) -> list[Cut[Tile]]:
    cuts = plans.expected(problem, Device(id="gpu", name="GPU", kind="cuda", processors=132))
    return [Cut(cut.tile, cut.cluster) for cut in cuts if isinstance(cut.tile, Tile) and cut.cluster in CLUSTERS]


def prepare_cut(runner: Any, problem: ConvProblem, cut: Cut[AnyTile], processors: int | None = None) -> Any:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch

    with translated():
        return launch(problem, replace(runner.device, processors=processors or runner.device.processors), cut)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_every_cut_is_right(runner: Any, problem: ConvProblem) -> None:
    """Where groups take tiles by turns, also on one multiprocessor, to which all of them come."""
    operands = runner.make_operands(problem, 0)
    for cut in cuts_of(problem):
        for processors in (runner.device.processors, 1) if cut.tile.by_turns else (runner.device.processors,):
            launch = prepare_cut(runner, problem, cut, processors)
            assert runner.first_run(problem, launch, operands).max_error <= tolerance(problem), (cut, processors)


@pytest.mark.parametrize("of_small", OF_SMALL, ids=lambda problem: problem.key)
def test_every_small_tile_is_right(runner: Any, of_small: ConvProblem) -> None:
    """On all multiprocessors, and on so few that blocks take turns and keep their weight where they can."""
    operands = runner.make_operands(of_small, 0)
    for processors in (runner.device.processors, 1):
        cuts = plans.expected(of_small, replace(runner.device, processors=processors))
        for cut in (cut for cut in cuts if isinstance(cut.tile, SmallTile)):
            launch = prepare_cut(runner, of_small, cut, processors)
            assert runner.first_run(of_small, launch, operands).max_error <= tolerance(of_small), (cut, processors)


@pytest.mark.parametrize("of_split", OF_SPLIT, ids=lambda problem: problem.key)
def test_every_split_tile_is_right(runner: Any, of_split: ConvProblem) -> None:
    """On all multiprocessors, and on so few that blocks share them and have few slots."""
    operands = runner.make_operands(of_split, 0)
    for processors, clusters in ((runner.device.processors, SPLIT_CLUSTERS), (1, (1, 2))):
        for cut in plans.expected(of_split, replace(runner.device, processors=processors)):
            if isinstance(cut.tile, SplitTile) and cut.cluster in clusters:
                launch = prepare_cut(runner, of_split, cut, processors)
                assert runner.first_run(of_split, launch, operands).max_error <= tolerance(of_split), (cut, processors)


@pytest.mark.parametrize("of_straight", OF_SMALL, ids=lambda problem: problem.key)
def test_every_straight_tile_is_right(runner: Any, of_straight: ConvProblem) -> None:
    operands = runner.make_operands(of_straight, 0)
    for cut in plans.expected(of_straight, runner.device):
        if isinstance(cut.tile, StraightTile) and cut.cluster in SPLIT_CLUSTERS:
            launch = prepare_cut(runner, of_straight, cut)
            assert runner.first_run(of_straight, launch, operands).max_error <= tolerance(of_straight), cut


@pytest.mark.parametrize("dtype", MOST_DTYPES)
@pytest.mark.parametrize("cluster", [1, 5, 16])
def test_equal_inputs_give_equal_bits_by_split_tiles(runner: Any, cluster: int, dtype: DType) -> None:
    of_split = problem_of("same_3x3", dtype)
    operands = runner.make_operands(of_split, 0)
    launch = prepare_cut(runner, of_split, Cut(split.TILES[dtype][-1], cluster))
    outputs = []
    for _ in range(3):
        runner.first_run(of_split, launch, operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(each, outputs[0]) for each in outputs[1:])


@pytest.mark.parametrize("epilogue", [PLAIN, *ENDS], ids=str)
@pytest.mark.parametrize("dtype", MOST_DTYPES)
@pytest.mark.parametrize("cluster", [1, 5])
def test_equal_inputs_give_equal_bits(runner: Any, cluster: int, dtype: DType, epilogue: Epilogue) -> None:
    problem = problem_of("same_3x3_wide", dtype, epilogue)
    operands = runner.make_operands(problem, 0)
    launch = prepare_cut(runner, problem, Cut((TILES_OF_HALVES[1:] if dtype is DType.FLOAT32 else TILES)[0], cluster))
    outputs = []
    for _ in range(3):
        runner.first_run(problem, launch, operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(each, outputs[0]) for each in outputs[1:])


@pytest.mark.parametrize("cluster", [1, 3])
@pytest.mark.parametrize("tile", TILES_OF_HALVES, ids=str)
@pytest.mark.parametrize("name", ["dense_tails", "same_3x3_tails"])
def test_halves_have_a_scale_for_every_pixel_and_filter(runner: Any, name: str, tile: Tile, cluster: int) -> None:
    """Images, filters and what of a filter comes late are of any size, some zero, and only NaN and infinity spread."""
    import cupy

    if cluster > 1 and not tile.is_shareable:
        return
    problem = problem_of(name, DType.FLOAT32)
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal(shape) for shape in (problem.x_shape, problem.weight_shape))
    x *= 10.0 ** random.integers(-9, 9, (problem.n, 1, 1, 1))
    weight *= 10.0 ** random.integers(-9, 9, (problem.k, 1, 1, 1))
    weight[:, :, :, 32:] *= 100  # scales fall while sums are there already
    x[:, :2], weight[::7], weight[3::7, :, :, :32], x[..., :32] = 0, 0, 0, x[..., :32] * 1e-3
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    expected = reference.convolve(problem, x, weight)
    y = cupy.full(problem.y_shape, np.nan, np.float32)
    launch = prepare_cut(runner, problem, Cut(tile, cluster))
    launch.run(cupy.asarray(x), cupy.asarray(weight), y)
    largest = np.maximum(np.abs(expected).max(axis=(1, 2), keepdims=True), 1e-37)  # of an image by a filter
    assert np.abs((cupy.asnumpy(y) - expected) / largest).max() <= tolerance(problem)

    x[0, 5, 5, 1], x[1, 5, 5, 40], weight[5, 0, 0, 3] = np.nan, np.inf, np.nan
    launch.run(cupy.asarray(x), cupy.asarray(weight), y)
    is_off = ~np.isfinite(cupy.asnumpy(y))
    reach = slice(5 - problem.pad_h, 6 + problem.pad_h)
    spreads = np.zeros(is_off.shape, bool)
    spreads[:2, reach, reach], spreads[..., 5] = True, True
    assert (is_off == spreads).all()


@pytest.mark.parametrize("name", ["dense_small", "same_3x3_few"])
def test_operands_of_tf32_are_rounded_to_the_nearest_and_what_is_added_is_not(runner: Any, name: str) -> None:
    """One value of each image counts, three quarters of the way from a tf32 to the next: cut, it would be the first."""
    import cupy

    problem = problem_of(name, DType.TF32, Epilogue(residual=True))
    x, weight = np.zeros(problem.x_shape, np.float32), np.zeros(problem.weight_shape, np.float32)
    x[:, 1, 1, 0] = 1 + 3 * 2.0**-12
    weight[:, problem.r // 2, problem.s // 2, 0] = 1
    residual = np.full(problem.y_shape, 2.0**-20, np.float32)
    y = cupy.full(problem.y_shape, np.nan, np.float32)
    launch = prepare_cut(runner, problem, plans.plan_cut(problem, runner.device))
    launch.run(cupy.asarray(x), cupy.asarray(weight), y, None, cupy.asarray(residual))
    found = cupy.asnumpy(y)
    assert np.unique(found[:, 1, 1]).tolist() == [1 + 2.0**-10 + 2.0**-20]
