"""How the implicit GEMM of few filters is cut: what fits, what covers y, and how large filters are taken apart."""

from __future__ import annotations

from itertools import product

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_outputs import MOST_FILTERS, MOST_ROW, MOST_TAPS
from conv_advisor.kernels.cuda.few_outputs import plan as plans
from conv_advisor.kernels.cuda.few_outputs.plan import Cut
from conv_advisor.kernels.cuda.parts.multiprocessor import shared_memory_of

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
SMALL = Device(id="small", name="Small", kind="cuda", capability="8.6", processors=20)
"""With the least shared memory of all that the kernel is for."""


def problem_of(layer: str, dtype: DType = DType.FLOAT16) -> ConvProblem:
    return ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("r", [1, 2, 3, 7, MOST_TAPS])
def test_whatever_it_takes_has_a_cut_and_its_build_on_every_device(r: int, dtype: DType) -> None:
    builds = plans.definitions(dtype)
    for s, k in product((1, 3, 4, 5, MOST_TAPS), range(1, MOST_FILTERS + 1)):
        if s * k > MOST_ROW:
            continue
        problem = ConvProblem(2, 64, 64, 64, k, r, s, pad_h=r, pad_w=s, dtype=dtype, layout=Layout.NHWC)
        for device in (H200, SMALL):
            cut = plans.plan_cut(problem, device)
            assert cut.shared_bytes(problem) <= shared_memory_of(device) - 1024
            assert plans.defines_of(cut, problem) in builds


@pytest.mark.parametrize(
    ("layer", "dtype", "rows", "columns"),
    [
        ("64-1-3-3-64", DType.FLOAT16, 3, 27),
        ("64-1-5-3-64", DType.FLOAT16, 3, 45),
        ("64-1-7-1-64", DType.FLOAT16, 7, 49),
        ("64-1-7-1-64", DType.FLOAT32, 4, 28),
        ("64-1-9-3-64", DType.FLOAT16, 2, 54),
        ("64-1-9-3-64", DType.FLOAT32, 1, 27),
    ],
)
def test_rows_of_large_filters_go_by_turns_of_about_the_same_size(
    layer: str, dtype: DType, rows: int, columns: int
) -> None:
    problem = problem_of(layer, dtype)
    assert (plans.rows_at_once(problem), plans.columns_of(problem)) == (rows, columns)


def test_what_a_block_has_by_hand() -> None:
    # 10 rows of 34 pixels are 11 times 32, and 4 more; three rows of nine columns; no sums wait for another row.
    cut, problem = Cut(8, 32, warps=4, splits=2), problem_of("256-1-3-3-64")
    assert (cut.pixels(problem), cut.pitch(problem)) == (340, 356)
    assert cut.shared_bytes(problem) == 4 * 2 * 27 * 356
    # 9 rows of 40 pixels, of two rows of the filter; 768 sums wait.
    large = problem_of("256-1-9-3-64")
    assert (cut.pixels(large), cut.pitch(large)) == (360, 372)
    assert cut.shared_bytes(large) == 4 * (2 * 54 * 372 + 768)


@pytest.mark.parametrize("c", [9, 10, 12, 8])
def test_loads_are_as_wide_as_the_channels_allow(c: int) -> None:
    problem = problem_of(f"16-1-3-1-{c}")
    assert plans.defines_of(plans.plan_cut(problem, H200), problem)["ALIGN"] == 2 * (c & -c)


@pytest.mark.parametrize("cut", plans.CUTS, ids=str)
def test_products_of_a_warp_lie_in_different_banks(cut: Cut) -> None:
    for layer in ("16-1-3-1-64", "16-1-3-4-64", "16-1-7-3-64"):
        problem = problem_of(layer)
        assert cut.pitch(problem) % 16 == 4
        assert cut.pitch(problem) >= cut.pixels(problem)


def test_few_pixels_have_their_channels_shared() -> None:
    small, large = problem_of("16-1-3-1-1024"), problem_of("512-1-3-3-64")
    assert plans.plan_cut(small, H200).splits > 1
    assert plans.plan_cut(large, H200).splits == 1
