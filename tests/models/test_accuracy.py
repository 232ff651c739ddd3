"""Laws of error: learned from errors whose law is known, and never above what is allowed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.models.ranking.accuracy import (
    COVERED,
    LEAST_ERRORS,
    ROUNDINGS,
    ErrorSource,
    allowed_error,
    expected_error,
    learn_laws,
)
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from tests.data.arrow import measurements_to_table

DEVICE = Device(id="toy-gpu", name="Toy GPU", kind="cuda", capability="9.0")
DEPTHS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)


def measured(variant: str, slope: float, count: int = 100, dtype: str = "float32") -> list[Measurement]:
    """Errors of 1e-8 times a power of gemm_k, scattered by half an octave to either side, at most."""
    rng = np.random.default_rng(1)
    problems = [
        ConvProblem.parse(f"8-{1 + place // len(DEPTHS)}-3-8-{DEPTHS[place % len(DEPTHS)]}", dtype=dtype)
        for place in range(count)
    ]
    return [
        Measurement(
            problem,
            variant,
            DEVICE,
            Outcome.MEASURED,
            samples_ms=(1.0,),
            max_error=1e-8 * problem.gemm_k**slope * 2 ** rng.uniform(-0.5, 0.5),
        )
        for problem in problems
    ]


@pytest.mark.parametrize("slope", [0.0, 0.25, 0.5])
def test_a_law_is_found_again_and_covers_what_was_measured(slope: float) -> None:
    rows = measured("cuda.gemm", slope)
    laws = learn_laws(measurements_to_table(rows), DEVICE.id)
    intercept, found = laws["cuda.gemm"]["float32"]
    assert found == slope
    assert intercept == pytest.approx(math.log2(1e-8) + 0.5, abs=0.06)
    covered = [row.max_error <= expected_error(laws, row.variant, row.problem)[0] for row in rows]
    assert COVERED - 0.02 <= np.mean(covered) <= 1


def test_a_few_layers_that_round_nothing_do_not_bend_the_law() -> None:
    rows = measured("cuda.gemm", 0.0)
    exact = [replace(row, max_error=1e-14) for row in rows[::10]]
    laws = learn_laws(measurements_to_table(rows + exact), DEVICE.id)
    without = learn_laws(measurements_to_table(rows), DEVICE.id)
    assert laws["cuda.gemm"]["float32"] == pytest.approx(without["cuda.gemm"]["float32"], abs=0.02)


def test_each_dtype_and_variant_has_its_own_law_and_other_devices_none() -> None:
    others = [replace(row, device=replace(DEVICE, id="other")) for row in measured("cuda.fft", 0.0)]
    mine = measured("cuda.gemm", 0.5) + measured("cuda.gemm", 0.0, dtype="float16") + measured("cuda.cuconv", 0.25)
    laws = learn_laws(measurements_to_table(mine + others), DEVICE.id)
    assert {(name, dtype): law[1] for name, by_dtype in laws.items() for dtype, law in by_dtype.items()} == {
        ("cuda.gemm", "float32"): 0.5,
        ("cuda.gemm", "float16"): 0.0,
        ("cuda.cuconv", "float32"): 0.25,
    }


def test_too_few_errors_make_no_law() -> None:
    assert learn_laws(measurements_to_table(measured("cuda.gemm", 0.5, LEAST_ERRORS - 1)), DEVICE.id) == {}
    rows = [replace(row, max_error=None) for row in measured("cuda.gemm", 0.5)]
    assert learn_laws(measurements_to_table(rows), DEVICE.id) == {}


def test_without_a_law_the_tolerance_is_what_is_allowed() -> None:
    problem = ConvProblem.parse("14-1-3-256-128")
    assert expected_error({}, "cuda.gemm", problem) == (tolerance(problem), ErrorSource.ALLOWED)
    laws = {"cuda.gemm": {"float32": [0.0, 0.5]}}
    assert expected_error(laws, "cuda.gemm", problem) == (tolerance(problem), ErrorSource.PREDICTED), "no error of 34"


def test_the_shipped_laws_are_those_of_arithmetic() -> None:
    laws = read(SHIPPED / "nvidia-h200").card["errors"]
    assert laws["cudnn.implicit_gemm"]["float32"][1] == 0.5, "sums in float32 grow with the root of their length"
    for dtype, unit in (("float16", 2**-11), ("bfloat16", 2**-8)):
        intercept, slope = laws["cuda.implicit_gemm"][dtype]
        assert slope == 0.0, "the result is rounded once"
        assert 2**intercept <= 1.05 * unit


def test_what_a_bound_allows() -> None:
    problem = ConvProblem.parse("14-1-3-256-128")
    assert allowed_error(problem, 1e-6, 2) == 2e-6
    assert allowed_error(problem, 0.0, 2) == 2 * ROUNDINGS[problem.dtype], "roundings alone come to as much"
    assert allowed_error(problem, 1e-6, math.inf) == tolerance(problem)
