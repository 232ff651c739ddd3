"""Every tile and cluster of the channels-innermost implicit GEMM on a real GPU, whatever the rule would choose."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as plans
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.fitted import tiles_of_every_device
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.shapes import EDGE_SHAPES

pytestmark = pytest.mark.gpu

CLAIMED = [
    ConvProblem(**shape, dtype=dtype, layout=layout)
    for shape in EDGE_SHAPES.values()
    if shape.get("groups", 1) == 1
    for dtype in (DType.TF32, DType.FLOAT16, DType.BFLOAT16)
    for layout in Layout
]
PATCHES = [
    ConvProblem.parse(f"224-2-{size}-96-3-stride{size}-pad0", dtype=dtype, layout=Layout.NHWC)
    for size in (2, 4, 14, 16, 32)
    for dtype in (DType.TF32, DType.FLOAT16, DType.BFLOAT16)
]
"""Seen as layers of more channels, with and without packing."""
ENDS = Epilogue(bias=True, residual=True, activation=Activation.RELU)
ENDED = [
    *(
        ConvProblem.parse(layer, dtype=DType.FLOAT16, layout=Layout.NHWC, epilogue=ENDS)
        for layer in ("15-3-1-200-64", "15-3-1-300-1024", "15-3-1-77-136")
    ),
    *(
        ConvProblem.parse(layer, dtype=DType.BFLOAT16, layout=Layout.NCHW, epilogue=ENDS)
        for layer in ("16-3-3-200-64", "14-3-3-170-8", "15-3-3-33-72")
    ),
]
"""Few and many stages; neighbours in y of 16, 8 and 2 bytes."""
CLUSTERS = (1, 2, 5, 7, menu.LARGEST_CLUSTER)
"""Alone, even, and such that the last blocks own few rows of a tile or none."""


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if opened.device.capability != "9.0":
        pytest.skip(f"compute capability is {opened.device.capability}, not 9.0")
    compile_everything()
    return opened


def compile_everything() -> None:
    """On all cores: one after the other the cuts would take minutes to compile."""
    from conv_advisor.kernels.cuda.compile import load_module

    todo = [(dtype, defines) for dtype in DType for defines in plans.definitions(dtype)]
    todo += [
        (problem.dtype, tile.defines(problem.layout, is_pointwise=problem.r == 1) | defines_of(ENDS))
        for problem in (ENDED[0], ENDED[-1])
        for tile in tiles_of_every_device(menu.MENUS, problem.dtype)
    ]
    load_module(plans.SOURCE, todo[0][0], **todo[0][1])  # what it imports is imported by one thread
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: load_module(plans.SOURCE, each[0], **each[1]), todo))


@pytest.mark.parametrize("problem", [*CLAIMED, *PATCHES, *ENDED], ids=lambda problem: problem.key)
def test_every_cut_is_right_even_where_blocks_of_a_cluster_have_no_stage(runner: Any, problem: ConvProblem) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import launch as launch_cut

    operands = runner.make_operands(problem, 0)
    for tile in tiles_of_every_device(menu.MENUS, problem.dtype):
        for cluster in CLUSTERS:
            if tile.shared_bytes(problem.layout, cluster) > HOPPER_BLOCK_BYTES:
                continue
            with translated():
                launch = launch_cut(problem, runner.device, Cut(tile, cluster), problem.n)
            error = runner.first_run(problem, launch, operands).max_error
            assert error <= tolerance(problem), (tile, cluster)


@pytest.mark.parametrize("layout", Layout)
def test_the_least_workspace_is_enough_and_means_one_image_at_a_time(runner: Any, layout: Layout) -> None:
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import prepare

    problem = ConvProblem(**EDGE_SHAPES["batch"], dtype=DType.FLOAT16, layout=layout)
    with pytest.raises(WorkspaceExceeded) as raised:
        prepare(problem, runner.device, 64)
    launch = prepare(problem, runner.device, raised.value.needed_bytes)
    assert launch.workspace_bytes == raised.value.needed_bytes
    assert runner.first_run(problem, launch, runner.make_operands(problem, 0)).max_error <= tolerance(problem)


@pytest.mark.parametrize("dtype", [DType.TF32, DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("layout", Layout)
def test_nothing_is_read_before_it_is_packed(runner: Any, layout: Layout, dtype: DType) -> None:
    """Packing takes long enough here that a multiplication that did not wait for it would be seen to be wrong."""
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import prepare

    problem = ConvProblem(32, 3, 224, 224, 64, 3, 3, 1, 1, 1, 1, dtype=dtype, layout=layout)
    launch = prepare(problem, runner.device, 2**30)
    assert runner.first_run(problem, launch, runner.make_operands(problem, 0)).max_error <= tolerance(problem)


@pytest.mark.parametrize("layer", ["15-3-1-200-64", "15-3-1-130-520", "28-2-1-64-136-stride2"])
@pytest.mark.parametrize("epilogue", [Epilogue(), ENDS], ids=str)
@pytest.mark.parametrize("dtype", [DType.TF32, DType.FLOAT16, DType.BFLOAT16])
def test_every_tile_behind_a_prologue_has_what_it_has_of_an_x_made_ahead(
    runner: Any, dtype: DType, epilogue: Epilogue, layer: str
) -> None:
    """Alone and in clusters, where x is all of a tensor's channels and where it is some; those behind it are NaN."""
    import cupy

    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import launch

    problem = ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC, epilogue=epilogue)
    operands = runner.make_operands(problem, 0)
    ends = (operands.bias, operands.residual) if epilogue.residual else ()
    floats = _widened(operands.x, dtype)
    prologue = cupy.random.default_rng(0).standard_normal((2, problem.c), dtype=cupy.float32)
    made = _narrowed(cupy.maximum(floats * prologue[0] + prologue[1], 0), dtype, operands.x.dtype)
    for tile in tiles_of_every_device(menu.MENUS, dtype):
        for cluster in (1, 2):
            fits = tile.shared_bytes(Layout.NHWC, cluster) <= HOPPER_BLOCK_BYTES
            if not fits or cluster > plans.stages_of(problem):
                continue
            prepared = launch(problem, runner.device, Cut(tile, cluster))
            assert prepared.behind_prologue is not None
            expected, y = (cupy.full_like(operands.y, 0) for _ in range(2))
            prepared.run(made, operands.weight, expected, *ends)
            expected = _widened(expected, dtype)
            for more in (0, 24):
                whole = ~cupy.zeros((*problem.x_shape[:3], problem.c + more), operands.x.dtype.str.replace("f", "u"))
                whole[..., : problem.c] = operands.x.view(whole.dtype)
                y.fill(0)
                prepared.behind_prologue(problem.c + more)(whole, operands.weight, y, prologue, *ends)
                off = abs(_widened(y, dtype) - expected).max() / abs(expected).max()
                assert off <= tolerance(problem), (tile, cluster, more)


def _widened(array: Any, dtype: DType) -> Any:
    import cupy

    if dtype is DType.BFLOAT16:
        return (array.astype(cupy.uint32) << 16).view(cupy.float32)
    return array.astype(cupy.float32)


def _narrowed(array: Any, dtype: DType, storage: Any) -> Any:
    """Rounded to the nearest, half to even."""
    import cupy

    if dtype is not DType.BFLOAT16:
        return array.astype(storage)
    bits = array.view(cupy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(cupy.uint16)
