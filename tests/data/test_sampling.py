"""Sampled layers: the same for a seed, distinct, bounded, unseen, and like those of networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.sampling import MAX_BYTES, MAX_FLOPS, sample_problems


@pytest.fixture(scope="module")
def sample() -> list[ConvProblem]:
    return sample_problems(2000, seed=7)


def is_signal(problem: ConvProblem) -> bool:
    return problem.h == 1 and problem.w > 2


def test_a_seed_gives_the_same_layers_and_another_seed_others(sample: list[ConvProblem]) -> None:
    assert sample_problems(50, seed=7) == sample[:50]
    assert [problem.short for problem in sample_problems(3, seed=0)] == [
        "28x56-256-5x5-32-224-stride1x1-pad2x2-dilation1x1-groups1",
        "242-2-1-48-16",
        "1x20792-27-1x5-256-256-stride1x1-pad0x2-dilation1x1-groups1",
    ]
    assert not set(sample_problems(50, seed=8)) & set(sample[:50])


def test_layers_are_distinct_and_bounded(sample: list[ConvProblem]) -> None:
    assert len(set(sample)) == len(sample) == 2000
    assert max(problem.flops for problem in sample) <= MAX_FLOPS
    assert max(problem.bytes for problem in sample) <= MAX_BYTES


@pytest.mark.parametrize("name", ["seeds", "held-out", "beyond-held-out"])
def test_no_layer_of_the_networks_that_judge_advice_is_among_them(name: str, sample: list[ConvProblem]) -> None:
    assert not {replace(problem, n=1) for problem in sample} & {layer.problem for layer in networks.layers(name)}


def test_layers_are_same_padded_with_channels_as_networks_have_them(sample: list[ConvProblem]) -> None:
    assert all(problem.pad_h == problem.dilation_h * (problem.r // 2) for problem in sample)
    assert all(
        (problem.p, problem.q) == (problem.h, problem.w)
        for problem in sample
        if problem.stride_h == problem.stride_w == 1 and problem.s % 2
    )
    assert all(1 <= problem.n <= 256 for problem in sample)
    assert all(3 <= problem.c <= 2048 and problem.k <= 2048 for problem in sample)
    assert sum(problem.c % 8 == 0 for problem in sample) >= 0.8 * len(sample)


@pytest.mark.parametrize(
    ("is_one", "least", "most"),
    [
        (lambda problem: problem.c == 3, 0.02, 0.04),
        (lambda problem: problem.stride_h == 2, 0.10, 0.15),
        (lambda problem: problem.h > 1 and 2 in (problem.dilation_h, problem.dilation_w), 0.005, 0.02),
        (is_signal, 0.06, 0.10),
        (lambda problem: is_signal(problem) and problem.dilation_w > 1, 0.005, 0.03),
        (lambda problem: is_signal(problem) and problem.stride_w > 1, 0.01, 0.03),
        (lambda problem: problem.w > 10_000, 0.015, 0.04),
        (lambda problem: problem.groups == problem.c > 1, 0.05, 0.09),
        (lambda problem: 1 < problem.groups < problem.c, 0.01, 0.04),
        (lambda problem: problem.h != problem.w and not is_signal(problem), 0.11, 0.17),
        (lambda problem: problem.h > 224, 0.04, 0.10),
    ],
    ids=[
        *("first", "stride 2", "dilated", "signals", "dilated signals", "strided signals", "long signals"),
        *("depthwise", "grouped", "rectangular", "beyond 224"),
    ],
)
def test_every_kind_of_layer_has_its_share(is_one, least: float, most: float, sample: list[ConvProblem]) -> None:
    assert least <= sum(map(is_one, sample)) / len(sample) <= most


def test_filters_are_as_frequent_as_in_networks(sample: list[ConvProblem]) -> None:
    images = [problem for problem in sample if not is_signal(problem)]
    by_filter = Counter(problem.r for problem in images if problem.r == problem.s)
    assert set(by_filter) == {1, 3, 5, 7}
    assert {(problem.r, problem.s) for problem in images if problem.r != problem.s} == {(1, 3), (3, 1), (1, 7), (7, 1)}
    assert {problem.s for problem in sample if is_signal(problem)} == {1, 3, 5, 7, 9, 11, 16, 31, 128}
    assert by_filter[1] > by_filter[3] > by_filter[5] > by_filter[7] > 0


@pytest.mark.parametrize(("field", "values"), [("n", (1, 8, 16, 32, 64, 128, 256)), ("h", (7, 14, 28, 56, 112, 224))])
def test_even_a_small_sample_reaches_every_usual_value(
    field: str, values: tuple[int, ...], sample: list[ConvProblem]
) -> None:
    assert set(values) <= {getattr(problem, field) for problem in sample[:200]}


def test_every_layer_comes_in_every_dtype_and_layout(sample: list[ConvProblem]) -> None:
    crossed = sample_problems(5, seed=7, dtypes=DType, layouts=Layout)
    assert crossed[:8] == [replace(sample[0], dtype=dtype, layout=layout) for dtype in DType for layout in Layout]
    assert len(set(crossed)) == 5 * 8


def test_a_negative_count_is_refused() -> None:
    assert sample_problems(0, seed=0) == []
    with pytest.raises(InvalidInput, match=r"^count is -1; allowed: 0 or more$"):
        sample_problems(-1, seed=0)
