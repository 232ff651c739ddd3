"""How the form that multiplies rows of taps is cut: what fits, what covers y, and which form is chosen."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_outputs import MOST_FILTERS, MOST_LONE_TAPS, MOST_ROW, plan, rows
from conv_advisor.kernels.cuda.few_outputs.choice import choose, cuts_of, expected_cycles
from conv_advisor.kernels.cuda.few_outputs.rows import RowCut
from conv_advisor.kernels.cuda.parts.multiprocessor import shared_memory_of

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
SMALL = Device(id="small", name="Small", kind="cuda", capability="8.6", processors=20)
"""With the least shared memory of all that the kernel is for."""


TIMES = json.loads((Path(__file__).parent / "data" / "few_outputs_rows_us.json").read_text())
"""In µs on an H200: the other form's, where it takes the layer, and those of two to 16 cuts of this one."""


def problem_of(layer: str, dtype: DType = DType.FLOAT16) -> ConvProblem:
    return ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC)


@pytest.mark.parametrize("c", range(1, 8))
@pytest.mark.parametrize("r", [1, 2, 3, 7, MOST_LONE_TAPS])
def test_whatever_only_it_takes_has_a_cut_and_its_build_on_every_device(r: int, c: int) -> None:
    builds = rows.SOURCE.definitions(DType.BFLOAT16)
    for s, k, (h, w) in product((1, 3, 5, MOST_LONE_TAPS), range(1, MOST_FILTERS + 1), ((1, 1), (64, 64))):
        if s * k > MOST_ROW:
            continue
        problem = ConvProblem(2, c, h, w, k, r, s, pad_h=r, pad_w=s, dtype=DType.BFLOAT16, layout=Layout.NHWC)
        for device in (H200, SMALL):
            cut = choose(problem, device)
            assert isinstance(cut, RowCut)
            assert cut.shared_bytes(problem) <= shared_memory_of(device) - 1024
            assert rows.defines_of(cut, problem) in builds
            assert cut.tile_q(problem) > 1


def test_tiles_are_whole_and_cover_y() -> None:
    for layer in ("64-1-3-3-64", "37-2-5-4-3", "101-1-9-3-64"):
        problem = problem_of(layer)
        for cut in rows.cuts_of(problem, H200):
            tiles_p, tiles_q = cut.tiles_of(problem)
            assert cut.tile_p * cut.groups == cut.warps * cut.mt
            assert tiles_p * cut.tile_p >= problem.p
            assert tiles_q * cut.tile_q(problem) >= problem.q
            assert cut.pieces(problem) * cut.chunks * rows.CHUNK >= problem.c


def test_what_a_block_has_by_hand() -> None:
    # 27 columns are 32; nine rows of four chunks are 18 steps, twice; 16 rows of 80 pixels have four chunks each.
    cut, problem = RowCut(8, 5, 5, 4, 2), problem_of("256-1-9-3-64")
    assert (cut.tile_p, cut.tile_q(problem), cut.pieces(problem), cut.steps(problem)) == (8, 72, 2, 18)
    assert cut.buffer_bytes(problem) == 16 * 16 * 80 * 4
    assert cut.shared_bytes(problem) == 16 * 32 * (2 * 18 * 2 + 1) + 2 * 16 * 16 * 80 * 4
    # Seven columns are eight; of one chunk a pixel, seven rows are four steps; the products are larger than 14 rows.
    alone = problem_of("1024-1-7-1-3")
    assert RowCut(8, 4, 4, 1, 1).shared_bytes(alone) == 16 * 8 * 9 + 4 * 7 * (512 + 4)


def test_a_buffer_has_room_for_the_products() -> None:
    problem = problem_of("64-1-1-8-8")
    cut = RowCut(4, 4, 1, 1, 1)
    assert cut.buffer_bytes(problem) == max(16 * 16 * 16, 4 * 8 * (16 * 16 + 4))


@pytest.mark.parametrize("cut", rows.cuts_of(problem_of("256-1-3-3-64"), H200), ids=str)
def test_products_of_a_warp_lie_in_different_banks(cut: RowCut) -> None:
    banks = [(lane % 4 * 2 * cut.products_pitch + lane // 4) % 32 for lane in range(32)]
    assert sorted(banks) == list(range(32))


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_eight_neighbours_of_a_piece_lie_in_different_banks(chunks: int) -> None:
    """As `stage` stores them: chunk `run` of a pixel is swizzled by its column."""
    for run, first in product(range(chunks), (0, 8, 16)):
        swizzled = [c * chunks + (run ^ (c * chunks // 8 & chunks - 1)) for c in range(first, first + 8)]
        assert sorted(place % 8 for place in swizzled) == list(range(8))


def test_the_faster_form_is_chosen() -> None:
    for layer in ("16-1-3-1-1024", "256-1-9-3-64", "512-2-3-3-64"):
        problem = problem_of(layer)
        cuts = cuts_of(problem, H200)
        assert {type(cut) for cut in cuts} == {plan.Cut, RowCut}
        chosen = choose(problem, H200)
        assert expected_cycles(chosen, problem, H200) == min(expected_cycles(cut, problem, H200) for cut in cuts)
    assert isinstance(choose(problem_of("256-1-9-3-64", DType.TF32), H200), plan.Cut)


def test_of_what_was_measured_one_of_the_fastest_is_chosen() -> None:
    over_all, over_cuts = [], []
    for layer, times in TIMES.items():
        problem, took = problem_of(layer), {RowCut(*cut): us for *cut, us in times["rows"]}
        chosen = min(took, key=lambda cut: rows.expected_cycles(cut, problem, H200))
        us, best, other = took[chosen], min(took.values()), times["old"]
        if len(took) > 2:
            over_cuts.append(us / best)
        if other is not None:
            windows = expected_cycles(plan.plan_cut(problem, H200), problem, H200)
            us = other if windows < expected_cycles(chosen, problem, H200) else us
            best = min(best, other)
        over_all.append(us / best)
    assert geometric_mean(over_all) < 1.02
    assert max(over_all) < 1.45
    assert geometric_mean(over_cuts) < 1.02
    assert max(over_cuts) < 1.06
