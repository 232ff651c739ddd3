"""Sampled layers: the same for a seed, distinct, bounded, unseen, and like those of networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.sampling import MAX_BYTES, MAX_FLOPS, sample_problems

SAMPLE = sample_problems(2000, seed=7)


def test_a_seed_gives_the_same_layers_and_another_seed_others() -> None:
    assert sample_problems(50, seed=7) == SAMPLE[:50]
    assert [problem.short for problem in sample_problems(3, seed=0)] == [
        "28x56-256-5x5-32-224-stride1x1-pad2x2-dilation1x1-groups1",
        "242-2-1-48-16",
        "13-4-1-16-48",
    ]
    assert not set(sample_problems(50, seed=8)) & set(SAMPLE[:50])


def test_layers_are_distinct_and_bounded() -> None:
    assert len(set(SAMPLE)) == len(SAMPLE) == 2000
    assert max(problem.flops for problem in SAMPLE) <= MAX_FLOPS
    assert max(problem.bytes for problem in SAMPLE) <= MAX_BYTES


@pytest.mark.parametrize("name", ["seeds", "held-out"])
def test_no_layer_of_the_networks_that_judge_advice_is_among_them(name: str) -> None:
    assert not {replace(problem, n=1) for problem in SAMPLE} & {layer.problem for layer in networks.layers(name)}


def test_layers_are_same_padded_with_channels_as_networks_have_them() -> None:
    assert all(problem.pad_h == problem.dilation_h * (problem.r // 2) for problem in SAMPLE)
    assert all((problem.p, problem.q) == (problem.h, problem.w) for problem in SAMPLE if problem.stride_h == 1)
    assert all(1 <= problem.n <= 256 for problem in SAMPLE)
    assert all(3 <= problem.c <= 2048 and problem.k <= 2048 for problem in SAMPLE)
    assert sum(problem.c % 8 == 0 for problem in SAMPLE) >= 0.8 * len(SAMPLE)


@pytest.mark.parametrize(
    ("is_one", "least", "most"),
    [
        (lambda problem: problem.c == 3, 0.02, 0.04),
        (lambda problem: problem.stride_h == 2, 0.10, 0.15),
        (lambda problem: problem.dilation_h == 2 or problem.dilation_w == 2, 0.005, 0.02),
        (lambda problem: problem.groups == problem.c > 1, 0.05, 0.09),
        (lambda problem: 1 < problem.groups < problem.c, 0.01, 0.04),
        (lambda problem: problem.h != problem.w, 0.12, 0.18),
        (lambda problem: problem.h > 224, 0.04, 0.10),
    ],
    ids=["first", "stride 2", "dilated", "depthwise", "grouped", "rectangular", "beyond 224"],
)
def test_every_kind_of_layer_has_its_share(is_one, least: float, most: float) -> None:
    assert least <= sum(map(is_one, SAMPLE)) / len(SAMPLE) <= most


def test_filters_are_as_frequent_as_in_networks() -> None:
    by_filter = Counter(problem.r for problem in SAMPLE if problem.r == problem.s)
    assert set(by_filter) == {1, 3, 5, 7}
    assert {(problem.r, problem.s) for problem in SAMPLE if problem.r != problem.s} == {(1, 3), (3, 1), (1, 7), (7, 1)}
    assert by_filter[1] > by_filter[3] > by_filter[5] > by_filter[7] > 0


@pytest.mark.parametrize(("field", "values"), [("n", (1, 8, 16, 32, 64, 128, 256)), ("h", (7, 14, 28, 56, 112, 224))])
def test_even_a_small_sample_reaches_every_usual_value(field: str, values: tuple[int, ...]) -> None:
    assert set(values) <= {getattr(problem, field) for problem in SAMPLE[:200]}


def test_every_layer_comes_in_every_dtype_and_layout() -> None:
    crossed = sample_problems(5, seed=7, dtypes=DType, layouts=Layout)
    assert crossed[:8] == [replace(SAMPLE[0], dtype=dtype, layout=layout) for dtype in DType for layout in Layout]
    assert len(set(crossed)) == 5 * 8


def test_a_negative_count_is_refused() -> None:
    assert sample_problems(0, seed=0) == []
    with pytest.raises(InvalidInput, match=r"^count is -1; allowed: 0 or more$"):
        sample_problems(-1, seed=0)
