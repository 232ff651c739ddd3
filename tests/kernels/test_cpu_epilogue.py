"""Every CPU variant with every epilogue and with uneven padding, on every edge shape, against float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation, Epilogue
from conv_advisor.data.errors import InvalidTensor
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.cpu.epilogue import compiled_activation
from conv_advisor.kernels.cpu.prepare import prepare
from conv_advisor.kernels.cpu.variants import VARIANTS
from conv_advisor.kernels.reference import Array
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import Algorithm, Ending, Variant
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES, edge_problem, uneven_problem

CPU = Device(id="cpu", name="cpu", kind="cpu")
KINDS = tuple(product(DType, Layout))


@pytest.fixture(autouse=True)
def _three_threads_however_little_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conv_advisor.kernels.cpu.prepare.available_cores", lambda: 3)
    monkeypatch.setattr("conv_advisor.kernels.cpu.threads.LEAST_FLOPS", 1)


@cache
def sums_of(problem: ConvProblem) -> tuple[Array, Array, Array]:
    """x, weight, and the convolution alone in float64, in memory order; not to be written to."""
    x, weight = reference.random_operands(problem, seed=1)
    return x, weight, reference.convolve(problem, x, weight)


def error_of(variant: Variant, problem: ConvProblem) -> float:
    """The error of one run over a poisoned y."""
    x, weight, sums = sums_of(problem.plain)
    bias, residual = reference.random_ends(problem, seed=1)
    y = np.full(problem.y_shape, np.nan, x.dtype)
    prepare(variant, problem).run(x, weight, y, bias, residual)
    added = None if bias is None else bias[:, None, None] if problem.layout is Layout.NCHW else bias
    expected, scale = reference.ended(problem.epilogue, sums, added, residual)
    return comparison.max_error(y, expected, scale)


@pytest.mark.parametrize("epilogue", EVERY_EPILOGUE, ids=lambda epilogue: str(epilogue) or "plain")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_every_epilogue_is_right_on_every_edge_shape(variant: Variant, epilogue: Epilogue) -> None:
    turns = [name for name in EDGE_SHAPES if variant.why_not(edge_problem(name, *KINDS[0]), CPU) is None]
    # Precisions and layouts take turns: each meets every shape in four epilogues and every epilogue in some shapes.
    first = EVERY_EPILOGUE.index(epilogue)
    for turn, name in enumerate(turns):
        dtype, layout = KINDS[(first + turn) % len(KINDS)]
        problem = ConvProblem(**EDGE_SHAPES[name], dtype=dtype, layout=layout, epilogue=epilogue)
        assert error_of(variant, problem) <= tolerance(problem), problem.key


@pytest.mark.parametrize("name", UNEVEN_SHAPES)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_sides_may_be_padded_differently(variant: Variant, name: str) -> None:
    ending = Epilogue(bias=True, residual=True, activation=Activation.SILU)
    for (dtype, layout), epilogue in product(KINDS, (EVERY_EPILOGUE[0], ending)):
        problem = replace(uneven_problem(name, dtype, layout), epilogue=epilogue)
        if variant.why_not(problem, CPU) is None:
            assert error_of(variant, problem) <= tolerance(problem), problem.key


def test_only_what_a_variant_never_computes_is_refused() -> None:
    for variant, name in product(VARIANTS, UNEVEN_SHAPES):
        problem = replace(uneven_problem(name, *KINDS[0]), epilogue=EVERY_EPILOGUE[-1])
        refused = variant.why_not(problem, CPU)
        assert refused is None or not any(word in refused for word in ("epilogue", "padding")), refused


def test_every_variant_says_how_it_ends() -> None:
    for variant in VARIANTS:
        assert variant.ending is (Ending.APPENDED if variant.algorithm is Algorithm.DIRECT else Ending.FUSED)


@pytest.mark.parametrize("activation", Activation)
def test_values_are_rounded_once(activation: Activation) -> None:
    """Bias and residual that cancel in float32, and would not after a rounding in between."""
    epilogue = Epilogue(bias=True, residual=True, activation=activation)
    problem = ConvProblem(1, 1, 4, 4, 8, 1, 1, dtype=DType.BFLOAT16, epilogue=epilogue)
    kind = reference.HOST_DTYPE[DType.BFLOAT16]
    x, weight = np.full(problem.x_shape, 0.01, kind), np.ones(problem.weight_shape, kind)
    bias, residual = np.full(8, 256, kind), np.full(problem.y_shape, -256, kind)
    expected = reference.convolve(problem, x, weight, bias, residual)
    for variant in VARIANTS:
        if variant.why_not(problem, CPU) is None and variant.algorithm is not Algorithm.FFT:
            y = np.full(problem.y_shape, np.nan, kind)
            prepare(variant, problem).run(x, weight, y, bias, residual)
            np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2**-8, atol=2e-5)


@pytest.mark.parametrize("activation", Activation)
def test_special_values_go_through_as_in_float64(activation: Activation) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 88.0, -104.0, 1e30, -1e30], np.float32)
    problem = ConvProblem(1, 1, 1, len(values), 1, 1, 1, epilogue=Epilogue(residual=True, activation=activation))
    x, weight = np.zeros(problem.x_shape, np.float32), np.ones(problem.weight_shape, np.float32)
    y = np.zeros(problem.y_shape, np.float32)
    prepare(VARIANTS[0], problem).run(x, weight, y, None, values.reshape(y.shape))
    expected = reference.activate(activation, values.astype(np.float64))
    np.testing.assert_allclose(y.ravel(), expected, rtol=1e-5, atol=1e-6)


def test_an_activation_is_compiled_where_it_is_prepared_and_not_in_the_first_launch() -> None:
    problem = replace(edge_problem("one_element", *KINDS[0]), epilogue=Epilogue(activation=Activation.SILU))
    x, weight, _ = sums_of(problem.plain)
    compiled_activation.cache_clear()
    launch = prepare(VARIANTS[0], problem)
    assert compiled_activation.cache_info().currsize == 1
    launch.run(x, weight, np.empty(problem.y_shape, x.dtype))
    assert compiled_activation.cache_info().misses == 1


def test_a_missing_or_misshapen_part_is_named() -> None:
    problem = ConvProblem.parse("6-1-3-4-2-bias-residual")
    x, weight = reference.random_operands(problem, seed=0)
    bias, residual = reference.random_ends(problem, seed=0)
    assert bias is not None
    assert residual is not None
    y = np.empty(problem.y_shape, np.float32)
    launch = prepare(VARIANTS[0], problem)
    for name, ends in {"bias": (None, residual), "residual": (bias, None)}.items():
        with pytest.raises(InvalidTensor, match=f"^{name} is None; allowed: contiguous float32"):
            launch.run(x, weight, y, *ends)
    with pytest.raises(InvalidTensor, match=r"^bias is .*\(3,\).*allowed: contiguous float32\(4,\)"):
        launch.run(x, weight, y, bias[:3], residual)
    with pytest.raises(InvalidTensor, match=r"^residual is .*float16"):
        launch.run(x, weight, y, bias, residual.astype(np.float16))
