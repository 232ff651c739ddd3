"""Activations as a real GPU computes them, with its special function unit: as accurate as epilogue.cuh says."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.kernels import reference
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.source import PARTS

pytestmark = pytest.mark.gpu

ACCURACY: Final = 3e-7
"""Largest error in float32, in units of the larger of 1 and |value|."""
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
    small = np.linspace(-100, 100, 4_000_001, dtype=np.float32)
    large = np.array([0.0, 1e-30, 1e4, 65504.0, 1e13, 3e38], np.float32)
    values = np.concatenate([small, large, -large])
    expected = reference.activate(activation, values.astype(np.float64))
    error = np.abs(applied(activation, values).astype(np.float64) - expected) / np.maximum(1, np.abs(values))
    assert error.max() <= ACCURACY


@pytest.mark.parametrize("activation", Activation)
def test_what_is_not_a_number_stays_so_and_infinity_is_no_error(activation: Activation) -> None:
    not_a_number, infinite = applied(activation, np.array([np.nan, np.inf], np.float32))
    assert np.isnan(not_a_number)
    assert infinite == {Activation.RELU6: 6.0, Activation.SIGMOID: 1.0}.get(activation, np.inf)
