"""Activations as a real GPU computes them, with its special function unit: as accurate as epilogue.cuh says."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.source import PARTS
from tests.kernels.activations import assert_not_a_number_stays_so_and_infinity_is_no_error, worst_error

pytestmark = pytest.mark.gpu

ACCURACY: Final = 3e-7
"""Largest error in float32, in units of the larger of 1 and |value|: epilogue.cuh says it."""
HEAD: Final = "typedef float Storage;\n__device__ __forceinline__ float widen(float value) { return value; }\n"
KERNEL: Final = """
extern "C" __global__ void apply(float* values, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] = activated(values[i]);
}
"""


def applied(activation: Activation, values: np.ndarray) -> np.ndarray:
    import cupy

    options = tuple(f"-D{macro}={value}" for macro, value in defines_of(Epilogue(activation=activation)).items())
    module = cupy.RawModule(code=HEAD + (PARTS / "epilogue.cuh").read_text() + KERNEL, options=("-std=c++17", *options))
    on_device = cupy.asarray(values, cupy.float32)
    module.get_function("apply")((values.size // 256 + 1,), (256,), (on_device, np.int32(values.size)))
    result: np.ndarray = cupy.asnumpy(on_device)
    return result


@pytest.mark.parametrize("activation", Activation)
def test_an_activation_is_as_accurate_as_it_says(activation: Activation) -> None:
    assert worst_error(applied, activation, 100, 4_000_001) <= ACCURACY


@pytest.mark.parametrize("activation", Activation)
def test_what_is_not_a_number_stays_so_and_infinity_is_no_error(activation: Activation) -> None:
    assert_not_a_number_stays_so_and_infinity_is_no_error(applied, activation)
