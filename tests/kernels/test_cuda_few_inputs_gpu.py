"""Every cut of the implicit GEMM of few input channels on a real GPU, whatever the rule chooses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs.menu import Cut
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.source import Source
from conv_advisor.kernels.tolerance import tolerance

pytestmark = pytest.mark.gpu

HALVES = (DType.FLOAT16, DType.BFLOAT16)
ENDS = (
    Epilogue(residual=True),
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
LAYERS = (
    "224x224-2-7x7-64-3-stride2x2-pad3x3-dilation1x1-groups1",
    "57x61-3-3x3-72-3-stride1x1-pad1x1-dilation1x1-groups1",
    "112x112-5-3x3-32-3-stride2x2-pad1x1-dilation1x1-groups1",
    "99x99-2-11x11-96-3-stride4x4-pad2x2-dilation1x1-groups1",
    "40x44-2-5x5-16-1-stride1x1-pad2x2-dilation1x1-groups1",
    "31x28-2-3x8-136-4-stride3x2-pad1x5-dilation1x1-groups1",
    "9x23-37-4x2-8-2-stride1x3-pad2x1-dilation1x1-groups1",
    "5x6-300-1x1-24-4-stride1x1-pad0x0-dilation1x1-groups1",
)


NARROW_LAYERS = (
    "112x112-2-3x3-40-16-stride2x2-pad1x1-dilation1x1-groups1",
    "57x61-3-3x3-72-24-stride1x1-pad1x1-dilation1x1-groups1",
    "40x44-2-5x5-24-12-stride1x1-pad2x2-dilation1x1-groups1",
    "31x28-2-7x4-16-6-stride2x1-pad1x3-dilation1x1-groups1",
    "33x70-2-3x3-64-64-stride1x1-pad1x1-dilation1x1-groups1",
    "5x6-300-1x1-8-48-stride1x1-pad0x0-dilation1x1-groups1",
    "71x63-2-7x7-9-21-stride1x1-pad3x3-dilation1x1-groups1",
    "57x49-2-5x5-14-15-stride1x1-pad2x2-dilation1x1-groups1",
    "45x60-2-3x3-19-26-stride2x2-pad1x1-dilation1x1-groups1",
    "64x61-3-3x3-11-3-stride2x2-pad1x1-dilation1x1-groups1",
)


TAPS_LAYERS = (
    "227x227-2-11x11-96-1-stride4x4-pad0x0-dilation1x1-groups1",
    "61x53-3-9x9-32-1-stride2x2-pad4x4-dilation1x1-groups1",
    "47x43-2-11x11-64-2-stride4x4-pad5x2-dilation1x1-groups1",
    "45x51-2-9x7-136-1-stride3x1-pad3x3-dilation1x1-groups1",
    "33x39-2-8x11-16-2-stride1x1-pad2x2-dilation1x1-groups1",
)
"""For Hopper's form, that has as many copies of x as its windows' distance asks for; rows of odd lengths."""


def problem_of(
    layer: str, dtype: DType = DType.FLOAT16, epilogue: Epilogue = PLAIN, layout: Layout = Layout.NHWC
) -> ConvProblem:
    return replace(ConvProblem.parse(layer, dtype=dtype, layout=layout), epilogue=epilogue)


FORMS = tuple(product((DType.FLOAT16, DType.FLOAT32), Layout))
PROBLEMS = [
    *(problem_of(layer, dtype, layout=layout) for dtype, layout in FORMS for layer in LAYERS),
    *(problem_of(layer, DType.TF32, layout=layout) for layout in Layout for layer in LAYERS),
    *(problem_of(layer, DType.BFLOAT16, layout=layout) for layout in Layout for layer in LAYERS[:2]),
    *(problem_of(layer, dtype, ends, layout) for dtype, layout in FORMS for layer in LAYERS[:2] for ends in ENDS),
    *(problem_of(layer, HALVES[place % 2]) for place, layer in enumerate(NARROW_LAYERS)),
    *(problem_of(layer, HALVES[place % 2]) for place, layer in enumerate(TAPS_LAYERS)),
    *(problem_of(TAPS_LAYERS[1], DType.BFLOAT16, ends) for ends in ENDS),
    replace(problem_of(TAPS_LAYERS[2]), pad_h=1, pad_h_end=4, pad_w=0, pad_w_end=3),
    *(problem_of(layer, DType.FLOAT16, ends) for layer in (NARROW_LAYERS[1], *NARROW_LAYERS[-3:-1]) for ends in ENDS),
]


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    opened = open_runner("cuda:0")
    if float(opened.device.capability) < 8.0:
        pytest.skip(f"compute capability is {opened.device.capability}, below 8.0")
    compile_everything(opened.device)
    return opened


def cuts_of(problem: ConvProblem, device: Device) -> list[tuple[Device, Cut]]:
    """The cuts of the device itself, and those of one that multiplies warp by warp."""
    has_others = problem.dtype not in HALVES and problem.epilogue == PLAIN
    devices = (device, replace(device, capability="8.0"))[: 1 + has_others]
    return [(each, cut) for each in devices for cut in plans.cuts_of(problem, each)]


def compile_everything(device: Device) -> None:
    """On all cores: one after the other the tiles would take minutes to compile."""
    from conv_advisor.kernels.cuda.compile import load_module

    wanted = {
        (form.source, problem.dtype, tuple((form.defines(cut, problem) | defines_of(problem.epilogue)).items()))
        for problem in PROBLEMS
        for like, cut in cuts_of(problem, device)
        if (form := plans.form_of(cut, problem, like))
    }

    def compile_one(one: tuple[Source, DType, tuple[tuple[str, int], ...]]) -> None:
        load_module(one[0], one[1], **dict(one[2])).compile()

    first, *others = wanted
    compile_one(first)  # what it imports is imported by one thread
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(compile_one, others))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_every_cut_is_right(runner: Any, problem: ConvProblem) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.few_inputs.launch import launch

    operands = runner.make_operands(problem, 0)
    for device, cut in cuts_of(problem, runner.device):
        with translated():
            prepared = launch(problem, device, cut)
        assert runner.first_run(problem, prepared, operands).max_error <= tolerance(problem), cut


@pytest.mark.parametrize(("dtype", "layout"), FORMS)
@pytest.mark.parametrize("epilogue", [PLAIN, *ENDS], ids=str)
def test_equal_inputs_give_equal_bits(runner: Any, dtype: DType, layout: Layout, epilogue: Epilogue) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.few_inputs.launch import launch

    problem = problem_of(LAYERS[0], dtype, epilogue, layout)
    operands = runner.make_operands(problem, 0)
    with translated():
        prepared = launch(problem, runner.device, plans.plan_cut(problem, runner.device))
    outputs = []
    for _ in range(3):
        runner.first_run(problem, prepared, operands)
        outputs.append(operands.y.get())
    assert all(np.array_equal(each, outputs[0]) for each in outputs[1:])
