"""What kernels of ours end with: activations against float64, and every variant with them on a CPU; needs no GPU."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation, Epilogue
from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda import compile as compiling
from conv_advisor.kernels.cuda.appended.launch import SOURCE as APPENDED
from conv_advisor.kernels.cuda.catalog import FAMILIES, VARIANTS
from conv_advisor.kernels.cuda.compile import load_module
from conv_advisor.kernels.cuda.direct.plan import SOURCE as DIRECT
from conv_advisor.kernels.cuda.family import CudaVariant
from conv_advisor.kernels.cuda.fft import plan as fft_plan
from conv_advisor.kernels.cuda.gemm import plan as gemm_plan
from conv_advisor.kernels.cuda.parts.epilogue import MACROS, addresses, defines_of
from conv_advisor.kernels.cuda.parts.source import PARTS
from conv_advisor.kernels.cuda.winograd import plan as winograd_plan
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import Ending
from tests.kernels import host_cuda
from tests.kernels.activations import assert_not_a_number_stays_so_and_infinity_is_no_error, worst_error
from tests.shapes import edge_problem

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

HOPPER = Device(id="host-9.0", name="host", kind="cuda", capability="9.0", processors=1)
ACCURACY: Final = 2e-7
"""Largest error of an activation in float32, in units of the larger of 1 and |value|, as a host rounds; a GPU, whose
special functions are not rounded to the nearest, is held to what epilogue.cuh says (`test_cuda_activations_gpu`)."""

HEAD: Final = """
#define STORAGE_FLOAT32
#include "host_shim.h"
typedef float Storage;
inline float widen(float value) { return value; }
"""
APPLY: Final = """
extern "C" void apply(float* values, int count) {
    for (int i = 0; i < count; ++i) values[i] = activated(values[i]);
}
"""


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Activation, np.ndarray], np.ndarray]:
    """An activation of values, by epilogue.cuh compiled by g++."""
    folder = tmp_path_factory.mktemp("activations")
    text = HEAD + (PARTS / "epilogue.cuh").read_text() + APPLY
    source = folder / "activations.cpp"
    source.write_text(text)

    def apply(activation: Activation, values: np.ndarray) -> np.ndarray:
        library = folder / f"{activation}.so"
        defines = [f"-D{macro}={value}" for macro, value in defines_of(Epilogue(activation=activation)).items()]
        command = ["g++", "-std=c++17", "-O2", "-w", "-fPIC", "-shared", f"-I{host_cuda.SHIM.parent}", *defines]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        result = values.astype(np.float32)
        ctypes.CDLL(str(library)).apply(ctypes.c_void_p(result.ctypes.data), result.size)
        return result

    return apply


@needs_compiler
@pytest.mark.parametrize("activation", Activation)
def test_an_activation_is_as_accurate_as_it_says(
    applied: Callable[[Activation, np.ndarray], np.ndarray], activation: Activation
) -> None:
    assert worst_error(applied, activation, 12, 20001) <= ACCURACY


@needs_compiler
@pytest.mark.parametrize("activation", Activation)
def test_what_is_not_a_number_stays_so_and_infinity_is_no_error(
    applied: Callable[[Activation, np.ndarray], np.ndarray], activation: Activation
) -> None:
    assert_not_a_number_stays_so_and_infinity_is_no_error(applied, activation)


def test_header_and_launchers_number_the_activations_alike() -> None:
    numbers = dict(re.findall(r"#define ACTIVATION_(\w+) (\d+)", (PARTS / "epilogue.cuh").read_text()))
    defined = {each: defines_of(Epilogue(activation=each)).get("ACTIVATION", 0) for each in Activation}
    assert {name: int(number) for name, number in numbers.items()} == {
        activation.upper(): number for activation, number in defined.items()
    }


def test_what_an_epilogue_reads_begins_where_y_does() -> None:
    bias, residual = (host_cuda.HostArray(np.zeros(4), np.zeros(4)) for _ in range(2))
    both = Epilogue(bias=True, residual=True, activation=Activation.RELU)
    assert addresses(both, (bias, residual), 64) == (bias.data.ptr, residual.data.ptr + 64)
    assert addresses(Epilogue(residual=True), (None, residual), 64) == (residual.data.ptr + 64,)
    assert addresses(Epilogue(activation=Activation.RELU), ()) == ()
    with pytest.raises(ValueError, match="1 operands"):
        addresses(both, (bias,))


def test_a_plain_convolution_is_compiled_with_nothing_of_it() -> None:
    plain, *others = EVERY_EPILOGUE
    assert defines_of(plain) == {}
    assert len({tuple(defines_of(each).items()) for each in others}) == len(others)
    assert {macro for each in others for macro in defines_of(each)} == set(MACROS)


def test_only_a_source_that_takes_epilogues_is_compiled_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_load_module", lambda source, storage, defines: dict(defines))
    both = defines_of(Epilogue(bias=True, activation=Activation.SILU))
    assert load_module(DIRECT, DType.FLOAT32, FILTERS=8, **both) == {"FILTERS": 8, **both}
    with pytest.raises(ValueError, match="BIAS"):
        load_module(gemm_plan.SOURCE, DType.FLOAT32, **both)


def test_every_family_ends_by_itself_or_says_that_a_kernel_is_appended() -> None:
    for family in FAMILIES:
        takes = any(source.takes_epilogue for source in family.kernel().sources)
        for variant in family.variants:
            assert variant.ending is (Ending.FUSED if takes else Ending.APPENDED)
    assert APPENDED.takes_epilogue


SHAPES: Final = (
    *("pointwise", "pointwise_aligned", "same_3x3_aligned", "groups_odd"),
    *("depthwise", "depthwise_multiplied", "depthwise_scale"),
)
"""Edge shapes in which outputs lie aligned and not, over filters and over pixels."""
BFLOAT16_SHAPES: Final = ("pointwise_aligned", "groups_odd", "depthwise")
ALL: Final = Epilogue(bias=True, residual=True, activation=Activation.GELU)
EPILOGUES: Final = {DType.FLOAT32: ALL, DType.BFLOAT16: Epilogue(bias=True, activation=Activation.RELU)}
TENSOR_CORES: Final = ("cuda.implicit_gemm", "cuda.winograd_large")
"""Their two-byte types are multiplied by instructions that no CPU has."""

Case = tuple[str, ConvProblem]


CHUNKED: Final = {
    "cuda.gemm": gemm_plan.plan_gemm,
    "cuda.winograd_nonfused": winograd_plan.plan_winograd,
    "cuda.fft": fft_plan.plan_fft,
}
"""How those that take images by the chunk plan it, under a limit of their workspace."""


def device_of(variant_id: str) -> Device:
    """One on which a variant applies that the stand-in for CUDA can run."""
    return HOPPER if variant_id in ("cuda.pointwise", "cuda.winograd_large") else host_cuda.DEVICE


def cases() -> list[Case]:
    """Every variant that runs on a host, where it applies."""
    shapes = [edge_problem(name, DType.FLOAT32, layout) for name in SHAPES for layout in Layout]
    shapes += [edge_problem(name, DType.BFLOAT16, layout) for name in BFLOAT16_SHAPES for layout in Layout]
    return [
        (variant.id, replace(problem, epilogue=EPILOGUES[problem.dtype]))
        for variant in VARIANTS
        for problem in shapes
        if _runs_on_a_host(variant, problem) and not variant.why_not(problem, device_of(variant.id))
    ]


def _runs_on_a_host(variant: CudaVariant, problem: ConvProblem) -> bool:
    if variant.ending is Ending.APPENDED:
        return problem.y_bytes % 16 == 0  # a host's array begins at a multiple of 16 bytes where it ends at one
    return variant.id not in TENSOR_CORES or problem.dtype is DType.FLOAT32


def error_of(variant_id: str, problem: ConvProblem, workspace_limit_bytes: int = 2**30) -> float:
    """Run a variant with its epilogue on random operands, and compare with float64."""
    device = device_of(variant_id)
    return host_cuda.ended_error(
        problem, lambda *given: host_cuda.ended_result_of(variant_id, problem, given, device, workspace_limit_bytes)
    )


@pytest.fixture(scope="module")
def errors(pool: ProcessPoolExecutor) -> dict[Case, Future[float]]:
    """The error of every case, all asked for at once."""
    return {case: pool.submit(error_of, *case) for case in cases()}


@needs_compiler
@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case[0]}-{case[1].key}")
def test_a_variant_ends_right_where_it_applies(errors: dict[Case, Future[float]], case: Case) -> None:
    assert errors[case].result() <= tolerance(case[1])


@needs_compiler
@pytest.mark.parametrize("variant_id", CHUNKED)
def test_images_in_chunks_read_their_own_part_of_the_residual(pool: ProcessPoolExecutor, variant_id: str) -> None:
    problem = replace(edge_problem("same_3x3_aligned", DType.FLOAT32, Layout.NCHW), n=3, epilogue=ALL)
    with pytest.raises(WorkspaceExceeded) as raised:
        CHUNKED[variant_id](problem, 64)
    one_image = raised.value.needed_bytes
    assert CHUNKED[variant_id](problem, one_image).images == 1
    assert pool.submit(error_of, variant_id, problem, one_image).result() <= tolerance(problem)
