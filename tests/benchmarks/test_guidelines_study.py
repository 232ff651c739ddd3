"""The papers' guidelines say what the papers say, on a table worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.guidelines import study
from benchmarks.guidelines.study import FLOAT32_GUIDELINES, GUIDELINES, HALF_GUIDELINES
from conv_advisor.data.networks import problems
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS

FLOAT32 = {
    "7-1-1-192-832": {"one_image_1x1": "cudnn.implicit_gemm"},
    "14-64-1-32-528": {"deep_and_narrow_1x1": "cudnn.implicit_gemm"},
    "7-256-1-48-832": {"deep_and_narrow_1x1": "cudnn.implicit_gemm"},
    "27-64-1-64-384": {"many_images_1x1": "cudnn.implicit_precomp_gemm"},
    "7-8-1-48-832": {"many_images_1x1": "cudnn.implicit_precomp_gemm"},
    "14-1-3-256-128": {"one_image_3x3": "cudnn.winograd"},
    "224-16-3-64-3": {"large_inputs_3x3": "cudnn.implicit_precomp_gemm"},
    "14-128-3-256-128": {"many_images_3x3": "cudnn.winograd_nonfused"},
    "14-16-5-64-32": {"few_images_5x5": "cudnn.winograd_nonfused"},
    "7-128-5-128-48": {"small_inputs_5x5": "cudnn.gemm"},
    "14-128-5-64-32": {"middle_inputs_5x5": "cudnn.fft"},
    "28-64-5-32-16": {"large_inputs_5x5": "cudnn.fft_tiling"},
    "14-1-7-64-32": {},
}
"""By the examples of the study, III-A and IV."""
HALF = {
    "14-8-1-256-512": {"half_1x1": "cudnn.implicit_precomp_gemm_tc"},
    "13-8-1-256-64": {
        "half_1x1": "cudnn.implicit_precomp_gemm_tc",
        "half_shallow_1x1": "cudnn.implicit_gemm",
    },
    "55-64-3-64-16": {"half_shallow_3x3": "cudnn.implicit_precomp_gemm_tc"},
    "56-64-3-256-256": {"half_3x3": "cudnn.winograd_nonfused_tc"},
    "14-8-5-64-24": {"half_5x5": "cudnn.implicit_precomp_gemm_tc"},
}
"""By the examples of the study, III-B and IV."""


def said(layer: str, names: set[str]) -> dict[str, str]:
    """What each guideline of these names says of a layer, where it says anything."""
    problem = ConvProblem.parse(layer)
    return {name: choice for name in names if (choice := getattr(study, name)(problem)) is not None}


@pytest.mark.parametrize("layer", FLOAT32)
def test_in_float32(layer: str) -> None:
    assert said(layer, {choose.__name__ for choose in FLOAT32_GUIDELINES}) == FLOAT32[layer]


@pytest.mark.parametrize("layer", HALF)
def test_in_16_bits(layer: str) -> None:
    assert said(layer, {*(choose.__name__ for choose in HALF_GUIDELINES), "half_shallow_1x1"}) == HALF[layer]


def test_of_cuconv() -> None:
    names = {"cuconv_1x1", "cuconv_5x5"}
    assert said("7-1-1-32-832", names) == {"cuconv_1x1": "cuda.cuconv"}
    assert said("7-1-5-128-48", names) == {"cuconv_5x5": "cuda.cuconv"}
    assert said("7-8-1-32-832", names) == said("7-1-3-384-192", names) == {}


@pytest.mark.parametrize("guidelines", [FLOAT32_GUIDELINES, HALF_GUIDELINES])
def test_of_the_602_each_is_spoken_of_exactly_once(guidelines) -> None:
    spoken = [sum(choose(problem) is not None for choose in guidelines) for problem in problems("seeds")]
    assert spoken == [1] * 602


def test_every_guideline_speaks_of_some_of_the_602_and_chooses_from_its_pool() -> None:
    for guideline in GUIDELINES:
        chosen = {guideline.choose(problem) for problem in problems("seeds")} - {None}
        assert chosen, guideline.quote
        assert chosen <= set(guideline.pool) & set(VARIANTS), guideline.quote


def test_together_in_each_precision() -> None:
    shape = "14-128-3-256-128"
    assert study.study_order(ConvProblem.parse(shape)) == [
        "cudnn.winograd_nonfused",
        "cudnn.implicit_precomp_gemm",
        "cudnn.implicit_gemm",
    ]
    assert study.study_order(ConvProblem.parse(shape, dtype="tf32"))[0] == "cudnn.winograd_nonfused_tc"
    assert study.study_order(ConvProblem.parse(shape, dtype="bfloat16"))[0] == "cudnn.winograd_nonfused_tc"
    assert study.study_order(ConvProblem.parse("14-1-7-64-32", dtype="float16"))[0] == "cudnn.implicit_precomp_gemm_tc"
