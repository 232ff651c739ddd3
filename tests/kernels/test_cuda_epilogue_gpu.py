"""Every variant of a GPU with what follows a convolution, offered or not, against float64; needs a GPU.

What passes here may be offered: `VERIFIED` of ``kernels/cuda/parts/epilogue.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import NotSupported, WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS as CATALOGUE
from conv_advisor.kernels.reference import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend, Variant
from tests.shapes import EDGE_SHAPES, edge_problem

pytestmark = pytest.mark.gpu

ANY_GPU = Device(id="gpu", name="GPU", kind="cuda", capability="9.0", processors=132)
VARIANTS = [variant for variant in CATALOGUE.values() if variant.backend.device_kind == "cuda" and variant.ending]
KINDS = (
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(residual=True),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
"""Each of the three parts alone and together. A case has one of them: every one is compiled, which takes a second."""
EACH = (
    *(Epilogue(bias=True, residual=True, activation=activation) for activation in Activation),
    *(Epilogue(bias=True), Epilogue(residual=True), Epilogue(activation=Activation.RELU)),
)
"""Every activation, and every way to leave something out."""
LAYERS = ("56-8-1-256-64", "28-32-3-128-128", "7-64-1-2048-512", "14-1-3-256-256")
PROBLEMS = [
    *(edge_problem(name, dtype, layout) for name in EDGE_SHAPES for dtype in DType for layout in Layout),
    *(ConvProblem.parse(layer, dtype=dtype, layout=layout) for layer in LAYERS for dtype in DType for layout in Layout),
]
CASES = [
    (variant, replace(problem, epilogue=KINDS[place % len(KINDS)]))
    for variant in VARIANTS
    for place, problem in enumerate(PROBLEMS)
    if not variant.why_not(problem, ANY_GPU)
]


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    return open_runner("cuda:0")


def launch_of(runner: Any, variant: Variant, problem: ConvProblem) -> Any:
    """A launch, whether the variant offers the epilogue or not; None where its library does not take it."""
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.prepare import prepare_unasked
    from conv_advisor.kernels.cudnn import graph, legacy

    limit = DEFAULT_WORKSPACE_LIMIT_BYTES
    with translated():
        if variant.backend is Backend.CUDA:
            return prepare_unasked(variant, problem, runner.device, limit)
        prepare = legacy.prepare if variant.backend is Backend.CUDNN_LEGACY else graph.prepare
        try:
            return prepare(variant, problem, limit)
        except (NotSupported, WorkspaceExceeded):
            return None


def check(runner: Any, variant: Variant, problem: ConvProblem) -> None:
    """Run a variant from a poisoned y and compare with float64, where this GPU and its library take the problem."""
    launch = None if variant.why_not(problem.plain, runner.device) else launch_of(runner, variant, problem)
    if launch is not None:
        found = runner.first_run(problem, launch, runner.make_operands(problem, 0))
        assert found.max_error <= tolerance(problem), problem.key


@pytest.mark.parametrize(("variant", "problem"), CASES, ids=lambda value: getattr(value, "key", None) or value.id)
def test_a_variant_ends_right(runner: Any, variant: Variant, problem: ConvProblem) -> None:
    check(runner, variant, problem)


@pytest.mark.parametrize("epilogue", EACH, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_a_variant_ends_right_with_each_epilogue(runner: Any, variant: Variant, epilogue: Epilogue) -> None:
    """On the first edge shape that it takes, in the first precision and layout."""
    names = ("pointwise_aligned", "same_3x3_aligned", "same_5x5_aligned", "groups_48", "depthwise")
    shapes = [edge_problem(name, dtype, layout) for dtype in reversed(DType) for name in names for layout in Layout]
    taken = next((each for each in shapes if not variant.why_not(each, runner.device)), None)
    if taken is not None:
        check(runner, variant, replace(taken, epilogue=epilogue))
