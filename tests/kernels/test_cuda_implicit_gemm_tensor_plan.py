"""How the implicit GEMM on tensor cores cuts a problem: windows, places, sizes; pure arithmetic."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as plans
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as choice
from conv_advisor.kernels.cuda.implicit_gemm_tensor.cut import Loading
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Tile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.source import path_of

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
SMALL = Tile(32, 32, 64, 8, 1, 1, 4, 3, 3)

problems = st.builds(
    lambda h, w, n, r, s, k, c, stride, dilation, pad, dtype: ConvProblem(
        n, c, h, w, k, r, s, stride, stride, pad, pad, dilation, dilation, dtype=dtype
    ),
    *(st.integers(20, 60), st.integers(20, 60), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    *(st.integers(1, 90), st.integers(1, 90), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3)),
    st.sampled_from(list(DType)),
)


def fields(cut: Cut, problem: ConvProblem) -> dict[str, int]:
    """The sizes by the names that the .cu gives them."""
    declared = re.search(r"struct Sizes \{(.*?)\n\};", path_of("implicit_gemm_tensor").read_text(), re.DOTALL)
    assert declared is not None
    lines = re.findall(r"int ([^;]+);", declared[1])
    names = [name.strip() for line in lines for name in line.split(",")]
    return dict(zip(names, plans.sizes_for(cut, problem), strict=True))


@pytest.mark.parametrize(
    ("layer", "changes", "loading", "unit"),
    [
        ("14-8-1-64-64", {}, Loading.RUNS, 2),
        ("7-8-1-64-64", {}, Loading.ROWS, 1),
        ("14-8-1-64-64", {"dtype": "float16"}, Loading.ROWS, 2),
        ("28-8-1-64-64", {"dtype": "bfloat16"}, Loading.RUNS, 4),
        ("14-8-1-64-64", {"stride_h": 2, "stride_w": 2}, Loading.WINDOWS, 2),
        ("56-8-3-64-64", {}, Loading.WINDOWS, 4),
        ("56-8-3-64-64", {"dtype": "float16"}, Loading.WINDOWS, 8),
    ],
)
def test_x_is_copied_as_wide_as_its_alignment_allows(
    layer: str, changes: dict[str, object], loading: Loading, unit: int
) -> None:
    problem = ConvProblem.parse(layer, **changes)
    assert (plans.loading_for(problem), plans.unit_of(problem)) == (loading, unit)


def test_a_window_and_its_shared_memory_by_hand() -> None:
    problem = ConvProblem.parse("14-1-3-64-64")
    window = plans.window_of(problem, 32)
    assert window is not None
    # 32 pixels lie in at most 4 rows of 14; a row starts a column before the image, at the copy of two that holds it.
    assert (window.strip, window.tiles, window.rows, window.units, window.positions) == (14, 7, 6, 9, 54)
    assert window.channel_pitch == 64 * 2
    stage = 32 * 76 + 8 * 128  # 72 of gemm_k, padded to an odd number of vectors
    assert plans.shared_bytes(Cut(SMALL, 1), problem) == 4 * (3 * stage + 72)
    assert plans.shared_bytes(Cut(SMALL, 8), problem) == 4 * (max(stage, 4 * 32 * 40) + 72 + 8 * 4 * 32)


@settings(deadline=None)
@given(problem=problems, bn=st.sampled_from((16, 32, 64)))
def test_every_tap_of_every_pixel_of_a_tile_lies_at_its_place_in_the_window(problem: ConvProblem, bn: int) -> None:
    window = plans.window_of(problem, bn)
    assume(plans.loading_for(problem) is Loading.WINDOWS and window is not None)
    assert window is not None
    pitch = window.units * window.unit
    for tile in {0, window.tiles // 2, window.tiles - 1}:
        for first_q in range(0, problem.q, window.strip):
            first_p = tile * bn // window.strip
            h0 = first_p * problem.stride_h - problem.pad_h
            w0 = first_q * problem.stride_w - problem.pad_w
            lead = w0 % window.unit
            for flat in {tile * bn, tile * bn + bn // 2, tile * bn + bn - 1}:
                p, q = divmod(flat, window.strip)
                if p >= problem.p:
                    continue
                place = (p - first_p) * problem.stride_h * pitch + q * problem.stride_w
                assert place <= window.last_place
                for r, s in {(0, 0), (problem.r - 1, problem.s - 1)}:
                    row, column = divmod(place + lead + r * problem.dilation_h * pitch + s * problem.dilation_w, pitch)
                    assert row < window.rows
                    assert h0 + row == p * problem.stride_h - problem.pad_h + r * problem.dilation_h
                    wanted = (first_q + q) * problem.stride_w - problem.pad_w + s * problem.dilation_w
                    assert w0 - lead + column == wanted


@settings(deadline=None, max_examples=50)
@given(problem=problems)
def test_the_magic_numbers_divide(problem: ConvProblem) -> None:
    for cut in choice.expected(problem, H200):
        if cut.cluster > 1:
            continue
        tile, z = cut.tile, fields(cut, problem)
        for count, magic, divisor, bits in (
            (tile.threads, z["chunks_magic20"], z["chunks"], 20),
            (z["stage_k"], z["taps_magic20"], z["taps"], 20),
            (z["taps"], z["S_magic16"], z["S"], 16),
            (tile.bm, z["owned_magic16"], z["owned"], 16),
        ):
            assert all(n * magic >> bits == n // divisor for n in range(count + 1))
        if plans.loading_for(problem) is Loading.WINDOWS:
            assert all(n * z["units_magic16"] >> 16 == n // z["units"] for n in range(32 * plans.LINES))
            last = z["strip_tiles"] * tile.bn
            assert all(n * z["strip_umulhi"] >> 32 == n // z["strip"] for n in range(last + 1))


def test_what_the_kernel_cannot_do_is_refused() -> None:
    one_stage = [cut for cut in choice.expected(ConvProblem.parse("14-1-1-64-64"), H200) if cut.tile.bk == 64]
    assert {cut.cluster for cut in one_stage} == {1}
    assert choice.expected(ConvProblem(65535, 8, 1, 1, 8, 1, 1), H200)
    assert choice.expected(ConvProblem(65536, 8, 1, 1, 8, 1, 1), H200) == {}
    far = ConvProblem(1, 8, 60, 60, 8, 3, 3, pad_h=25, pad_w=25, dilation_h=25, dilation_w=25)
    assert plans.window_of(far, 32) is None
    assert all(cut.tile.bn < 32 for cut in choice.expected(far, H200))
