"""float32 by float16 parts in large tiles fed by the tensor memory accelerator, emulated: layouts and accuracy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.rounding import in_scaled_halves, nearest
from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import TILES_OF_HALVES, Tile, tiles_for

CHANNELS = 32
"""Of a stage, which are 128 bytes of a row."""
Array = np.ndarray


def swizzled(row: int, byte: int) -> int:
    """Where a byte of a row of 128 lies in shared memory."""
    return row * 128 + ((byte // 16) ^ row % 8) * 16 + byte % 16


def loaded(rows: Array) -> Array:
    """Bytes of shared memory after the accelerator has loaded float32 (rows, 32)."""
    memory = np.zeros(rows.size * 4, np.uint8)
    for row, values in enumerate(rows.astype(np.float32)):
        for byte, value in enumerate(values.view(np.uint8)):
            memory[swizzled(row, byte)] = value
    return memory


def parts(values: Array) -> tuple[Array, Array]:
    """Two halves of scaled values."""
    high = values.astype(np.float16)
    return high, (values.astype(np.float32) - high.astype(np.float32)).astype(np.float16)


def part_in_place(memory: Array, filters: int) -> None:
    """What `WeightParts::part` does to unscaled weights, by warp and lane."""
    for warp in range(1, 4):
        for i in range(-(-filters // 8 // 3)):
            if warp - 1 + i * 3 >= filters // 8:
                break
            written: dict[int, Array] = {}
            for lane in range(32):
                piece, line = lane % 8, lane // 8 % 2 * 4 + lane // 16 % 2
                rows = ((warp - 1) * 8 + line + i * 24) * 128
                for half in range(2):
                    at = rows + half * 2 * 128 + (piece ^ line ^ half * 2) * 16
                    high, low = parts(memory[at : at + 16].view(np.float32))
                    own, chunk = rows + half * 2 * 128 + piece % 4 * 4, (piece // 4 * 2) ^ line ^ half * 2
                    pairs = (high[:2], high[2:], low[:2], low[2:])
                    for moved, pair in zip((0, 1, 4, 5), pairs, strict=True):
                        place = chunk ^ moved
                        assert own + place * 16 not in written
                        written[own + place * 16] = pair.view(np.uint8)
            for at, pair in written.items():
                memory[at : at + 4] = pair


def operand_b(memory: Array, filters: int, first_byte: int) -> Array:
    """What wgmma reads as b (filters, 16) from a descriptor that begins so far into the first row."""
    places = [[swizzled(row, first_byte + k * 2) // 2 for k in range(16)] for row in range(filters)]
    operand: Array = memory.view(np.float16)[np.array(places)]
    return operand


def operand_a(memory: Array, step: int) -> tuple[Array, Array]:
    """Both parts of a (16, 16), put together from a warp's registers, in rows of pixels."""
    high, low = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    for lane in range(32):
        quarter, fragment_row = lane % 4, lane // 4
        pixel = fragment_row % 2 * 4 + fragment_row // 2
        for half in range(2):
            at = (half * 8 + pixel) * 128 + ((step * 4 + quarter) ^ pixel) * 16
            of_high, of_low = parts(memory[at : at + 16].view(np.float32))
            for register, pair in ((half, slice(0, 2)), (half + 2, slice(2, 4))):
                # PTX: register 0 and 2 are rows lane / 4, 1 and 3 eight below; 2 and 3 columns eight to the right.
                assert register % 2 == half
                columns = slice(quarter * 2 + register // 2 * 8, quarter * 2 + register // 2 * 8 + 2)
                high[half * 8 + pixel, columns], low[half * 8 + pixel, columns] = of_high[pair], of_low[pair]
    return high, low


@pytest.mark.parametrize("filters", [8, 64, 128, 192])
def test_operands_meet_their_partners(filters: int) -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((16, CHANNELS)), random.standard_normal((filters, CHANNELS))
    of_x, of_weight = loaded(x), loaded(weight)
    part_in_place(of_weight, filters)
    sums = np.zeros((16, filters))
    for step in range(2):
        high, low = operand_a(of_x, step)
        b_high, b_low = (operand_b(of_weight, filters, part * 64 + step * 32).astype(np.float64) for part in range(2))
        sums += low.astype(np.float64) @ b_high.T + high.astype(np.float64) @ (b_high + b_low).T
    np.testing.assert_allclose(sums, x.astype(np.float32).astype(np.float64) @ weight.astype(np.float32).T, atol=1e-5)


def test_a_warp_reads_and_writes_all_banks() -> None:
    """Sixteen bytes by eight lanes at a time, and four by all of them."""
    for first in range(0, 32, 8):
        lanes = np.arange(first, first + 8)
        pixel = lanes // 4 % 2 * 4 + lanes // 8
        assert len({int(chunk) for chunk in lanes % 4 ^ pixel}) == 8
    lanes = np.arange(32)
    line, piece = lanes // 8 % 2 * 4 + lanes // 16, lanes % 8
    for half in (0, 2):
        chunk = piece // 4 * 2 ^ line ^ half
        assert len(set((chunk * 4 + piece % 4).tolist())) == 32


Operands = Callable[[np.random.Generator], tuple[Array, Array]]
PIXELS, FILTERS, GEMM_K = 96, 64, 9 * 64


def _normal(random: np.random.Generator) -> tuple[Array, Array]:
    return random.standard_normal((PIXELS, GEMM_K)), random.standard_normal((FILTERS, GEMM_K))


def _after_relu(random: np.random.Generator) -> tuple[Array, Array]:
    x, weight = _normal(random)
    return np.maximum(x, 0), weight


def _wide_by_pixel(random: np.random.Generator) -> tuple[Array, Array]:
    x, weight = _normal(random)
    return x * 10 ** random.uniform(-6, 6, (PIXELS, 1)), weight * 10 ** random.uniform(-6, 6, (FILTERS, 1))


def _wide_by_channel(random: np.random.Generator) -> tuple[Array, Array]:
    x, weight = _normal(random)
    return x * 10 ** random.uniform(-6, 6, GEMM_K), weight


def _largest(random: np.random.Generator) -> tuple[Array, Array]:
    x, weight = _normal(random)
    return np.clip(x, -1, 1) * 3e38, weight * 1e-6


def _least(random: np.random.Generator) -> tuple[Array, Array]:
    x, weight = _normal(random)
    return x * 1e-28, weight


def _with_zeros(random: np.random.Generator) -> tuple[Array, Array]:
    """Whole stages of pixels and filters are zeros, as behind padding."""
    x, weight = _normal(random)
    x[::3, :320], weight[::2, :64] = 0, 0
    return x, weight


@pytest.mark.parametrize(
    "operands", [_normal, _after_relu, _wide_by_pixel, _wide_by_channel, _largest, _least, _with_zeros]
)
def test_products_of_halves_are_as_good_as_float32(operands: Operands) -> None:
    """Each pixel and filter by its own largest output: a fifth of the error that FFMA may have."""
    x, weight = (nearest(values) for values in operands(np.random.default_rng(0)))
    y, exact = in_scaled_halves(x, weight.T).T, (x @ weight.T).T
    largest = np.abs(exact).max(axis=1, keepdims=True)
    assert np.isfinite(y).all()
    assert np.abs((y - exact) / largest).max() < 4e-7
    by_pixel = np.abs(exact / np.abs(weight).max(axis=1, keepdims=True))
    off = np.abs((y - exact) / np.abs(weight).max(axis=1, keepdims=True)).max(axis=0)
    assert (off / by_pixel.max(axis=0)).max() < 4e-7


def test_whole_numbers_stay_exact() -> None:
    random = np.random.default_rng(0)
    x, weight = random.integers(-4, 5, (PIXELS, GEMM_K)), random.integers(-4, 5, (FILTERS, GEMM_K))
    assert np.array_equal(in_scaled_halves(x.astype(np.float64), weight.T.astype(np.float64)), x @ weight.T)


def test_stages_scales_and_boxes_fit_and_every_build_is_selectable() -> None:
    of_halves = [defines for defines in plan.definitions(DType.FLOAT32) if defines["IS_OF_HALVES"]]
    assert len(of_halves) == sum(4 if tile.is_shareable else 2 for tile in TILES_OF_HALVES)
    assert {tile.of_halves for tile in tiles_for(DType.FLOAT32)} == {False, True}
    for tile in TILES_OF_HALVES:
        assert tile.shared_bytes <= 227 * 1024 - 512, "barriers need some too"
        assert tile.ring_bytes == tile.stages * (tile.bp + tile.bf) * 128
    assert Tile(128, 128, 4, products=3).ring_bytes == 4 * 384 * 128
