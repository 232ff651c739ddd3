"""Planar float32 that is packed for the tensor memory accelerator, and unpacked, on a real GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan as multiplying
from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import plan
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch
from tests.kernels.accelerator import GPU, SHAPES
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES

pytestmark = pytest.mark.gpu

VARIANT = get("cuda.implicit_gemm_tma_packed")
DTYPES = (DType.FLOAT32, DType.TF32)
ENDS = (
    PLAIN,
    Epilogue(bias=True),
    Epilogue(residual=True),
    Epilogue(activation=Activation.LEAKY_RELU),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
LARGE = (
    "1x6400-8-1x7-128-128",
    "1x1601-16-1x15-66-70",
    "56-16-5-128-64",
    "112-8-7-64-64-stride2",
    "28-32-3-256-128-stride2",
    "28-16-3-64-96-pad2-dilation2",
    "7-64-1-512-832",
)
"""Packing and multiplying take long enough here that a kernel that did not wait for the one ahead would be seen."""
FILTERS = (1, 3, 5, 66, 131)
"""Not in whole fours."""


def edges() -> list[ConvProblem]:
    """Every shape in both types with every epilogue."""
    shapes = {**EDGE_SHAPES, **UNEVEN_SHAPES, **SHAPES}.values()
    made = [ConvProblem(**sizes, dtype=dtype, epilogue=ends) for sizes in shapes for dtype in DTYPES for ends in ENDS]
    return [problem for problem in dict.fromkeys(made) if VARIANT.why_not(problem, GPU) is None]


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if opened.device.capability != "9.0":
        pytest.skip(f"compute capability is {opened.device.capability}, not 9.0")
    return opened


def error_of(runner: Any, problem: ConvProblem, limit_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES) -> float:
    """Run the variant from a poisoned y, and compare with float64."""
    launch = runner.prepare(VARIANT, problem, limit_bytes)
    assert launch.workspace_bytes <= limit_bytes
    error: float = runner.first_run(problem, launch, runner.make_operands(problem, 0)).max_error
    return error


@pytest.mark.parametrize("problem", edges(), ids=lambda problem: problem.key)
def test_edge_shapes_are_right(runner: Any, problem: ConvProblem) -> None:
    assert error_of(runner, problem) <= tolerance(problem)


@pytest.mark.parametrize("epilogue", [PLAIN, ENDS[-1]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LARGE)
def test_large_layers_are_right(runner: Any, layer: str, dtype: DType, epilogue: Epilogue) -> None:
    problem = ConvProblem.parse(layer, dtype=dtype, epilogue=epilogue)
    assert error_of(runner, problem) <= tolerance(problem)


@pytest.mark.parametrize("images", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", ["13-7-3-33-5", "28-7-5-64-48", "1x333-7-1x7-70-64"])
def test_chunks_of_images_are_right(runner: Any, layer: str, dtype: DType, images: int) -> None:
    problem = ConvProblem.parse(layer, dtype=dtype, epilogue=ENDS[-1])
    assert error_of(runner, problem, sum(plan.scratch_bytes(problem, images))) <= tolerance(problem)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", ["14-3-3-{}-64", "9x13-5-1-{}-96", "7-2-5-{}-320"])
def test_rows_of_more_elements_than_filters_by_every_cut(runner: Any, layer: str, dtype: DType, filters: int) -> None:
    """What the variant asks of `cuda.implicit_gemm_tma`, which alone takes filters in whole fours."""
    import cupy

    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch

    problem = ConvProblem.parse(layer.format(filters), dtype=dtype, layout=Layout.NHWC)
    operands, pitch = runner.make_operands(problem, 0), plan.pitch_of(problem)
    rows = cupy.empty((*problem.y_shape[:3], pitch), cupy.float32)
    for cut in multiplying.expected(problem, runner.device):
        if cut.cluster not in (1, 2, 5):
            continue
        with translated():
            multiply = launch(problem, runner.device, cut, pitch)

        def run(x: Any, weight: Any, y: Any, multiply: Launch = multiply) -> None:
            rows.fill(np.nan)
            multiply.run(x, weight, rows)
            y[...] = rows[..., : problem.k]

        assert runner.first_run(problem, Launch(run), operands).max_error <= tolerance(problem), cut


@pytest.mark.parametrize("epilogue", [PLAIN, ENDS[-1]], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", ["14-2-3-70-64", "1x1600-4-1x7-128-128"])
def test_equal_inputs_give_equal_bits(runner: Any, layer: str, dtype: DType, epilogue: Epilogue) -> None:
    problem = ConvProblem.parse(layer, dtype=dtype, epilogue=epilogue)
    operands = runner.make_operands(problem, 0)
    outputs = []
    for _ in range(3):
        runner.first_run(problem, runner.prepare(VARIANT, problem, DEFAULT_WORKSPACE_LIMIT_BYTES), operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(output, outputs[0]) for output in outputs[1:])


def test_the_least_workspace_is_enough_and_less_is_refused(runner: Any) -> None:
    problem = ConvProblem(**EDGE_SHAPES["batch"], epilogue=ENDS[-1])
    with pytest.raises(WorkspaceExceeded) as raised:
        runner.prepare(VARIANT, problem, 64)
    assert error_of(runner, problem, raised.value.needed_bytes) <= tolerance(problem)
