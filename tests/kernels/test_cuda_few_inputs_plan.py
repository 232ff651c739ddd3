"""How the implicit GEMM of few input channels is cut: what fits, what covers y, and where it is worth a try."""

from __future__ import annotations

from itertools import product

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.few_inputs import plan as plans
from conv_advisor.kernels.cuda.few_inputs.menu import CUTS, TILES, Cut
from conv_advisor.kernels.cuda.parts.multiprocessor import shared_memory_of

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
SMALL = Device(id="small", name="Small", kind="cuda", capability="8.6", processors=20)
"""With the least shared memory of all that the kernel is for."""


def half(layer: str) -> ConvProblem:
    return ConvProblem.parse(layer, dtype=DType.FLOAT16, layout=Layout.NHWC)


STEM = half("224-32-7-64-3-stride2")


@pytest.mark.parametrize(("size", "stride"), list(product((1, 2, 3, 7, 8, 11), (1, 2, 3, 4))))
def test_whatever_it_takes_has_a_cut_on_every_device(size: int, stride: int) -> None:
    problem = ConvProblem(
        2, 3, 64, 64, 96, size, size, stride, stride, size, size, dtype=DType.FLOAT16, layout=Layout.NHWC
    )
    for device in (H200, SMALL):
        cut = plans.plan_cut(problem, device)
        assert plans.shared_bytes(cut, problem) <= shared_memory_of(device) - 1024
        assert plans.blocks_of(cut, problem, device) % plans.tiles_of(cut, problem)[2] == 0


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_tiles_are_whole_and_cover_y(cut: Cut) -> None:
    tiles_p, tiles_q, tiles_f = plans.tiles_of(cut, STEM)
    assert cut.tile_p * cut.tile_q == cut.tile.pixels
    assert tiles_p * cut.tile_p >= STEM.p
    assert tiles_q * cut.tile_q >= STEM.q
    assert tiles_f * cut.tile.filters >= STEM.k


def test_what_a_block_stages_of_the_stem_by_hand() -> None:
    # 8 rows of 32 pixels see 2 * 7 + 7 rows; 3 pixels of padding after one more make whole runs: 1 + 62 + 8 pixels.
    stage = plans.Stage.of(Cut(TILES[0], 32), STEM)
    assert (stage.rows, stage.slots, stage.copy_bytes) == (21, 74, 0)
    assert plans.shared_bytes(Cut(TILES[0], 32), STEM) == 64 * 29 * 16 + 21 * 74 * 8


def test_an_odd_stride_has_its_second_copy_in_other_banks() -> None:
    stage = plans.Stage.of(Cut(TILES[0], 32), half("224-32-3-64-3"))
    assert stage.copy_bytes % 128 == 64
    assert stage.copy_bytes >= 8 * stage.rows * stage.slots
