"""How the implicit GEMM of few input channels is cut: what fits, what covers y, and where it is worth a try."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_inputs import MOST_NARROW_GEMM_K, float32, halves, narrow, taps
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs.menu import HALF_TILES, NARROW_TILES, Cut, Tile
from conv_advisor.kernels.cuda.parts.multiprocessor import shared_memory_of

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
SMALL = Device(id="small", name="Small", kind="cuda", capability="8.6", processors=20)
"""With the least shared memory of all that the kernel is for."""


DATA = Path(__file__).parent / "data"
FIRST_TIMES = json.loads((DATA / "few_inputs_taps_us.json").read_text())
"""In µs on an H200: few_inputs.cu's, those of few_inputs_taps.cu's cuts, and the fastest of all that it had."""
NARROW_TIMES = json.loads((DATA / "few_inputs_narrow_us.json").read_text())
"""In µs on an H200, of two to 16 cuts of layers of odd channels or filters."""


def problem_of(layer: str, dtype: DType = DType.FLOAT16) -> ConvProblem:
    return ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC)


STEM = problem_of("224-32-7-64-3-stride2")
SPECTRA = problem_of("224-32-11-96-1-stride4")
"""Windows of one channel: 24 chunks, and 66 where pixels have four."""


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("size", "stride"), list(product((1, 2, 3, 7, 8, 11), (1, 2, 3, 4))))
def test_whatever_it_takes_has_a_cut_on_every_device(size: int, stride: int, dtype: DType) -> None:
    nhwc = ConvProblem(2, 4, 64, 64, 96, size, size, stride, stride, size, size, dtype=dtype, layout=Layout.NHWC)
    for device, layout in product((H200, SMALL), Layout):
        problem = replace(nhwc, layout=layout)
        cut = plans.plan_cut(problem, device)
        assert plans.form_of(cut, problem, device).shared_bytes(cut, problem) <= shared_memory_of(device) - 1024
        assert plans.blocks_of(cut, problem, device) % cut.tiles_of(problem)[2] == 0


@pytest.mark.parametrize("c", [5, 6, 12, 21, *range(8, 65, 8)])
@pytest.mark.parametrize(("r", "s"), list(product((1, 2, 3, 5, 7), (1, 3, 4, 5, 7))))
def test_so_has_whatever_it_takes_of_more_channels(r: int, s: int, c: int) -> None:
    if r * s * -(-c // 8) * 8 > MOST_NARROW_GEMM_K:
        pytest.skip("is not taken")
    like = ConvProblem(2, c, 64, 64, 40, r, s, 2, 2, r, s, dtype=DType.FLOAT16, layout=Layout.NHWC)
    for device, k in product((H200, SMALL), (40, 19, 10)):
        problem = replace(like, k=k)
        cut = plans.plan_cut(problem, device)
        assert plans.form_of(cut, problem, device) is narrow.FORM
        assert narrow.shared_bytes(cut, problem) <= shared_memory_of(device) - 1024


@pytest.mark.parametrize(
    "cut", [*halves.FORM.cuts, *taps.FORM.cuts, *narrow.FORM.cuts, *float32.MMA.cuts, *float32.WGMMA.cuts], ids=str
)
def test_tiles_are_whole_and_cover_y(cut: Cut) -> None:
    tiles_p, tiles_q, tiles_f = cut.tiles_of(STEM)
    assert cut.tile_p * cut.tile_q == cut.tile.pixels
    assert tiles_p * cut.tile_p >= STEM.p
    assert tiles_q * cut.tile_q >= STEM.q
    assert tiles_f * cut.tile.filters >= STEM.k


def test_what_a_block_stages_of_the_stem_by_hand() -> None:
    # 8 rows of 32 pixels see 2 * 7 + 7 rows; 3 pixels of padding after one more make whole runs: 1 + 62 + 8 pixels.
    stage = halves.Stage.of(Cut(HALF_TILES[0], 32), STEM)
    assert (stage.rows, stage.slots, stage.copy_bytes) == (21, 74, 0)
    assert stage.asked_bytes(STEM) == 21 * 72 * 6
    assert halves.shared_bytes(Cut(HALF_TILES[0], 32), STEM) == 64 * 29 * 16 + 21 * 74 * 8 + 21 * 72 * 6


def test_rows_of_no_whole_runs_are_not_asked_for() -> None:
    stage = halves.Stage.of(Cut(HALF_TILES[0], 32), problem_of("227-32-7-64-3-stride2"))
    assert stage.asked_bytes(problem_of("227-32-7-64-3-stride2")) == 0


def test_what_a_block_has_of_more_channels_by_hand() -> None:
    # 16 channels are two chunks, three apart; 18 of a window are nine steps; ten rows of 34 pixels, twice.
    problem, cut = problem_of("256-1-3-16-16"), Cut(NARROW_TILES[10], 32)
    assert (cut.tile_p, cut.tile.filters) == (16, 16)
    assert narrow.shared_bytes(cut, problem) == 16 * (16 * 19 + 1 + 2 * 18 * 34 * 3) + 72


def test_an_odd_stride_has_its_second_copy_in_other_banks() -> None:
    stage = halves.Stage.of(Cut(HALF_TILES[0], 32), problem_of("224-32-3-64-3"))
    assert stage.copy_bytes % 128 == 64
    assert stage.copy_bytes >= 8 * stage.rows * stage.slots


def test_what_a_block_stages_of_the_stem_in_float32_by_hand() -> None:
    # 69 pixels of three elements; the 9 of padding begin 3 behind a multiple of four; 147 of gemm_k are 19 steps.
    stem, cut = problem_of("224-32-7-64-3-stride2", DType.FLOAT32), Cut(Tile(2, 8, warps=8, blocks=2), 32)
    assert float32.Stage.of(cut, stem) == float32.Stage(planes=1, rows=21, pitch=212)
    assert float32.MMA.shared_bytes(cut, stem) == 152 * (64 * 2 * 4 + 4) + 21 * 212 * 4
    assert float32.WGMMA.shared_bytes(cut, stem) == 160 * (64 * 2 * 4 + 4) + 21 * 212 * 4


def test_what_a_block_stages_of_planes_by_hand() -> None:
    # 69 pixels of each of three planes; the 3 of padding begin one behind a multiple of four.
    stem = ConvProblem.parse("224-32-7-64-3-stride2", dtype=DType.FLOAT32, layout=Layout.NCHW)
    cut = Cut(Tile(2, 8, warps=8, blocks=2), 32)
    assert float32.Stage.of(cut, stem) == float32.Stage(planes=3, rows=21, pitch=72)
    assert float32.WGMMA.shared_bytes(cut, stem) == 160 * (64 * 2 * 4 + 4) + 3 * 21 * 72 * 4


def test_float32_takes_three_products_and_both_parts_of_the_weight() -> None:
    cut = Cut(Tile(2, 8, warps=8, blocks=2), 32)
    wide, narrow = (problem_of("224-32-7-64-3-stride2", dtype) for dtype in (DType.FLOAT32, DType.TF32))
    assert float32.MMA.shared_bytes(cut, wide) - float32.MMA.shared_bytes(cut, narrow) == 152 * 64 * 4
    assert float32.MMA.cycles(cut, wide, 100, 2) > 1.5 * float32.MMA.cycles(cut, narrow, 100, 2)
    assert (float32.MMA.defines(cut, wide)["SPLIT"], float32.MMA.defines(cut, narrow)["SPLIT"]) == (1, 0)


def test_only_hopper_multiplies_four_warps_at_a_time() -> None:
    for dtype in (DType.FLOAT32, DType.TF32):
        stem = problem_of("224-32-7-64-3-stride2", dtype)
        assert [plans.forms_of(stem, device) for device in (H200, SMALL)] == [(float32.WGMMA,), (float32.MMA,)]
    assert plans.forms_of(SPECTRA, H200) == (halves.FORM, taps.FORM)
    assert (
        plans.forms_of(SPECTRA, SMALL) == plans.forms_of(replace(SPECTRA, layout=Layout.NCHW), H200) == (halves.FORM,)
    )


@pytest.mark.parametrize("layer", ["224-32-7-64-3-stride2", "224-8-11-96-3-stride4", "224-32-7-64-1", "64-2-9-32-2"])
def test_where_windows_are_hardly_shorter_four_warps_do_not_multiply_together(layer: str) -> None:
    assert plans.forms_of(problem_of(layer), H200) == (halves.FORM,)


def test_no_two_forms_of_a_problem_share_a_cut() -> None:
    assert not set(halves.FORM.cuts) & set(taps.FORM.cuts)


def test_what_four_warps_stage_by_hand() -> None:
    # 16 rows of 16 pixels see 4 * 15 + 11 rows of as many pixels: windows begin every 8 bytes, in one of two copies,
    # the last behind seven chunks. 22 chunks are 12 steps; 71 elements and what may lie before them are ten chunks.
    cut = Cut(Tile(2, 8, warps=8, blocks=2, is_joint=True), 16)
    assert taps.Stage.of(cut, SPECTRA) == taps.Stage(71, 71, 16 * 9, 16 * 10, 2, 128 * 80 + 64)
    assert taps.shared_bytes(cut, SPECTRA) == 64 * 32 * 12 + 2 * (128 * 80 + 64) + 71 * 160 + 4 * 28


@pytest.mark.parametrize(("c", "stride", "copies"), [(1, 1, 8), (1, 2, 4), (1, 4, 2), (2, 1, 4), (2, 2, 2), (2, 4, 1)])
def test_x_is_stored_as_often_as_windows_begin_between_chunks(c: int, stride: int, copies: int) -> None:
    problem = ConvProblem(1, c, 64, 64, 16, 3, 3, stride, stride, dtype=DType.FLOAT16, layout=Layout.NHWC)
    stage = taps.Stage.of(taps.FORM.cuts[0], problem)
    assert stage.copies == copies
    assert stage.copies == 1 or stage.copy_bytes % 128 == 128 // copies


def cut_of(mt: int, nt: int, warps: int, blocks: int, tile_q: int, *, is_joint: bool) -> Cut:
    return Cut(Tile(mt, nt, warps, blocks, is_joint), tile_q)


def ratios_of_taps() -> dict[str, tuple[float, float]]:
    """Of every first layer, the time of the measured cut that is chosen over few_inputs.cu's, and over the fastest."""
    ratios = {}
    for layer, times in FIRST_TIMES.items():
        problem, took = problem_of(layer), {}
        if plans.forms_of(problem, H200) == (halves.FORM, taps.FORM):
            took = {cut_of(*cut, is_joint=True): us for *cut, us in times["taps"]}
        best = min(took, key=lambda cut: plans.expected_cycles(cut, problem, H200), default=None)
        old = [cut for cut in plans.cuts_of(problem, H200) if cut in halves.FORM.cuts]
        others = min(plans.expected_cycles(cut, problem, H200) for cut in old)
        is_taken = best is not None and plans.expected_cycles(best, problem, H200) < others
        us = took[best] if best is not None and is_taken else times["old"]
        ratios[layer] = us / times["old"], us / min(times["old"], times["best"])
    return ratios


def test_four_warps_multiply_first_layers_together_only_where_that_was_faster() -> None:
    ratios = ratios_of_taps()
    over_old = [old for old, _ in ratios.values()]
    assert max(over_old) <= 1
    assert sorted(over_old)[3] < 0.7
    assert geometric_mean(best for _, best in ratios.values()) < 1.03


def test_of_measured_cuts_of_narrow_layers_one_of_the_fastest_is_chosen() -> None:
    ratios = []
    for layer, times in NARROW_TIMES.items():
        problem, took = problem_of(layer), {cut_of(*cut, is_joint=False): us for *cut, us in times}
        chosen = min(took, key=lambda cut: plans.expected_cycles(cut, problem, H200))
        ratios.append(took[chosen] / min(took.values()))
    assert geometric_mean(ratios) < 1.02
    assert max(ratios) < 1.2
