"""What compute-sanitizer is shown: every kernel of ours, in every dtype and layout that it takes."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Backend
from tests.kernels.sanitized import cases

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
LAYERS = (
    "14-8-3-32-48",
    "14-2-5-64-64",
    "14-2-1-64-64",
    "14-2-3-64-64-groups64",
    "14-2-3-64-64-groups2",
    "28-2-3-2-64",
)


def test_no_kernel_of_ours_is_left_out() -> None:
    shown = {(variant.id, problem.dtype, problem.layout) for variant, problem in cases(H200)}
    kinds = [(dtype, layout) for dtype in DType for layout in Layout]
    taken = {
        (variant.id, dtype, layout)
        for variant in VARIANTS.values()
        if variant.backend is Backend.CUDA
        for dtype, layout in kinds
        if any(not variant.why_not(ConvProblem.parse(each, dtype=dtype, layout=layout), H200) for each in LAYERS)
    }
    assert taken - shown == set()
    assert {variant for variant, *_ in shown} == {v.id for v in VARIANTS.values() if v.backend is Backend.CUDA}


def test_some_can_be_named() -> None:
    assert {variant.id for variant, _ in cases(H200, ["cuda.grouped"])} == {"cuda.grouped"}
