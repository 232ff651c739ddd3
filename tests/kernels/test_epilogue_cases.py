"""What `test_cuda_epilogue_gpu` covers and compiles, without a GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from conv_advisor.data.epilogue import Activation
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.direct.plan import SOURCE as DIRECT
from conv_advisor.kernels.cuda.family import CudaVariant
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.variant import Backend
from tests.kernels.epilogue_cases import (
    ANY_GPU,
    CASES,
    COLUMNS,
    EACH,
    KINDS,
    VARIANTS,
    compilations,
    kind_of,
    shapes,
)


def test_every_shape_meets_every_variant_of_ours_in_every_precision_and_layout() -> None:
    have = {(variant.id, problem.plain) for variant, problem in CASES}
    wanted = [
        (variant.id, problem)
        for variant in VARIANTS
        for column, (dtype, layout) in enumerate(COLUMNS)
        for place, problem in enumerate(shapes(dtype, layout))
        if isinstance(variant, CudaVariant) or place % len(COLUMNS) == column
        if not variant.why_not(problem, ANY_GPU)
    ]
    assert have.issuperset(wanted)


def test_every_kind_meets_every_variant_in_every_precision_and_layout() -> None:
    have = {(variant.id, problem.dtype, problem.layout, problem.epilogue) for variant, problem in CASES}
    for variant in VARIANTS:
        for dtype, layout in COLUMNS:
            if any(not variant.why_not(problem, ANY_GPU) for problem in shapes(dtype, layout)):
                assert all((variant.id, dtype, layout, kind) in have for kind in KINDS), (variant.id, dtype, layout)


def test_every_epilogue_that_is_listed_meets_every_variant() -> None:
    have = {(variant.id, problem.epilogue) for variant, problem in CASES}
    everything = [problem for column in COLUMNS for problem in shapes(*column)]
    for variant in VARIANTS:
        if any(not variant.why_not(problem, ANY_GPU) for problem in everything):
            refused = {epilogue for epilogue in EACH if (variant.id, epilogue) not in have}
            has_no_node = {epilogue for epilogue in EACH if epilogue.activation is Activation.HARDSWISH}
            assert refused == (has_no_node if variant.backend is Backend.CUDNN_GRAPH else set()), variant.id


def test_each_case_is_there_once_and_those_of_one_problem_follow_each_other() -> None:
    assert all(count == 1 for count in Counter((variant.id, problem.key) for variant, problem in CASES).values())
    keys = [problem.key for _, problem in CASES]
    changes = sum(first != second for first, second in pairwise(keys))
    assert changes == len(set(keys)) - 1


def test_shapes_that_are_compiled_alike_end_alike() -> None:
    sizes = [
        ConvProblem.parse(layer, dtype=DType.FLOAT16, layout=Layout.NHWC) for layer in ("7-1-3-8-8", "14-2-3-64-8")
    ]
    assert len({kind_of(problem) for problem in sizes}) == 1
    other = ConvProblem.parse("7-1-1-8-8", dtype=DType.FLOAT16, layout=Layout.NHWC)
    assert kind_of(other) != kind_of(sizes[0])


def test_what_is_compiled_is_found_without_compiling() -> None:
    naive = next(variant for variant in VARIANTS if variant.id == "cuda.direct_naive")
    problem = replace(ConvProblem.parse("7-1-3-8-8"), epilogue=KINDS[0])
    again = replace(problem, n=2)
    ((source, storage, defines), name), *others = compilations(ANY_GPU, [(naive, problem), (naive, again)]).items()
    assert (source, storage, name, others) == (DIRECT, "FLOAT32", "direct_naive", [])
    assert defines_of(KINDS[0]).items() <= dict(defines).items()
