"""Every cut of the implicit GEMM of planar tensors that the accelerator feeds on a real GPU, whatever the rule says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import forms
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.menu import SHARED_TILES, TILES, Tile
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.source import Defines
from conv_advisor.kernels.tolerance import tolerance
from tests.kernels.accelerator import GPU, SHAPES
from tests.shapes import EDGE_SHAPES

pytestmark = pytest.mark.gpu

ENDS = (
    Epilogue(residual=True),
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
PLANES = {
    "planes_end_in_a_box": {"n": 3, "c": 72, "h": 9, "w": 8, "k": 150, "r": 1, "s": 1},
    "planes_fill_boxes": {"n": 2, "c": 24, "h": 16, "w": 16, "k": 70, "r": 1, "s": 1},
    "planes_share_a_tile": {"n": 5, "c": 200, "h": 8, "w": 8, "k": 8, "r": 1, "s": 1},
    "planes_of_many_tiles": {"n": 9, "c": 128, "h": 56, "w": 56, "k": 72, "r": 1, "s": 1},
}
ENDED = {name: SHAPES[name] for name in ("same_3x3_tails", "dense_tails", "stride_2", "batch_wraps")} | PLANES
"""Units of one, four and eight pixels; as it lies and packed; images that end within a tile."""
CLUSTERS = (1, 3, 8, 16)
"""Blocks to whom chunks come out even, to whom they do not, and more than are allowed unasked."""


def problems() -> list[ConvProblem]:
    """Every shape in float16, some in bfloat16, and some with every epilogue."""
    shapes = {**EDGE_SHAPES, **SHAPES, **PLANES}
    made = [ConvProblem(**sizes, dtype=DType.FLOAT16) for sizes in shapes.values()]
    made += [ConvProblem(**sizes, dtype=DType.BFLOAT16) for sizes in ENDED.values()]
    made += [ConvProblem(**sizes, dtype=DType.FLOAT16, epilogue=ends) for sizes in ENDED.values() for ends in ENDS]
    return [problem for problem in dict.fromkeys(made) if problem.groups == 1 and forms.why_not(problem) is None]


PROBLEMS = problems()


def cuts_of(problem: ConvProblem) -> list[Cut[Tile]]:
    return [cut for cut in plans.expected(problem, GPU) if cut.cluster in CLUSTERS]


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if opened.device.capability != "9.0":
        pytest.skip(f"compute capability is {opened.device.capability}, not 9.0")
    items = (item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec"))
    asked = {item.callspec.params.get("problem") for item in items}
    compile_all([problem for problem in PROBLEMS if problem in asked])
    return opened


def compile_all(wanted: list[ConvProblem]) -> None:
    """On all cores: one after the other the cuts would take minutes to compile."""
    from conv_advisor.kernels.cuda.compile import load_module

    todo: dict[tuple[Any, ...], tuple[DType, Defines]] = {}
    for problem in wanted:
        for cut in cuts_of(problem):
            defines = plans.defines_of_cut(cut, problem) | defines_of(problem.epilogue)
            todo[problem.dtype, *defines.items()] = problem.dtype, defines
    builds = list(todo.values())
    for dtype, defines in builds[:1]:
        load_module(plans.SOURCE, dtype, **defines)  # what it imports is imported by one thread
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(lambda build: load_module(plans.SOURCE, build[0], **build[1]), builds))


def prepare_cut(runner: Any, problem: ConvProblem, cut: Cut[Tile], processors: int | None = None) -> Any:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.launch import launch

    with translated():
        return launch(problem, replace(runner.device, processors=processors or runner.device.processors), cut)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_every_cut_is_right(runner: Any, problem: ConvProblem) -> None:
    """On all multiprocessors, and on so few that blocks take many tiles one after the other."""
    operands = runner.make_operands(problem, 0)
    for cut in cuts_of(problem):
        for processors in (runner.device.processors, 1) if cut.cluster == 1 else (runner.device.processors,):
            launch = prepare_cut(runner, problem, cut, processors)
            assert runner.first_run(problem, launch, operands).max_error <= tolerance(problem), (cut, processors)


@pytest.mark.parametrize("epilogue", [PLAIN, *ENDS], ids=str)
@pytest.mark.parametrize("cluster", [1, 5])
@pytest.mark.parametrize("name", ["same_3x3", "planes_share_a_tile"])
def test_equal_inputs_give_equal_bits(runner: Any, name: str, cluster: int, epilogue: Epilogue) -> None:
    problem = ConvProblem(**{**SHAPES, **PLANES}[name], dtype=DType.FLOAT16, epilogue=epilogue)
    tile = TILES[2] if cluster == 1 else SHARED_TILES[1]
    cluster = min(cluster, 4) if name.startswith("planes") else cluster
    operands = runner.make_operands(problem, 0)
    launch = prepare_cut(runner, problem, Cut(tile, cluster))
    outputs = []
    for _ in range(3):
        runner.first_run(problem, launch, operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(output, outputs[0]) for output in outputs[1:])


def test_the_least_workspace_is_enough_and_means_one_image_at_a_time(runner: Any) -> None:
    from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.launch import prepare

    problem = ConvProblem(**EDGE_SHAPES["batch"], dtype=DType.FLOAT16, epilogue=ENDS[-1])
    with pytest.raises(WorkspaceExceeded) as raised:
        prepare(problem, runner.device, 64)
    launch = prepare(problem, runner.device, raised.value.needed_bytes)
    assert launch.workspace_bytes == raised.value.needed_bytes
    assert runner.first_run(problem, launch, runner.make_operands(problem, 0)).max_error <= tolerance(problem)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_nothing_is_read_before_it_is_packed(runner: Any, dtype: DType) -> None:
    """Packing takes long enough here that a multiplication that did not wait for it would be seen to be wrong."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma_transposed.launch import prepare

    problem = ConvProblem(32, 3, 224, 224, 64, 3, 3, 1, 1, 1, 1, dtype=dtype, layout=Layout.NCHW)
    launch = prepare(problem, runner.device, 2**30)
    assert runner.first_run(problem, launch, runner.make_operands(problem, 0)).max_error <= tolerance(problem)
