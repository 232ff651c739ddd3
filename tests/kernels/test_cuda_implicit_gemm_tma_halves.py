"""float32 by float16 parts in large tiles fed by the tensor memory accelerator, emulated: layouts and accuracy."""

from __future__ import annotations

import ctypes
import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest

from benchmarks.rounding import in_scaled_halves, nearest
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.builds import kept_build
from conv_advisor.kernels.cuda.implicit_gemm_tma import plan
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import TILES_OF_HALVES, Tile, tiles_for
from conv_advisor.kernels.cuda.implicit_gemm_tma.split import SplitTile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.source import path_of
from tests.kernels.accelerator import GPU

Array = np.ndarray
TABLE = json.loads((Path(__file__).parent / "data" / "implicit_gemm_tma_halves_us.json").read_text())
"""Times of promising cuts on an H200, by form (of halves, of tf32 parts, split), size and blocks of a cluster."""
SHIM = Path(__file__).with_name("halves_shim.h")
HEADER = path_of(plan.SOURCE.name).with_name("three_products_of_halves.cuh")
STAGES = 5
EMULATED = [tile for tile in TILES_OF_HALVES if (tile.bp, tile.bf) in ((256, 128), (128, 192))]
"""One of several products of 64 pixels, one of several of a part of the filters."""


@pytest.fixture(scope="module", params=EMULATED, ids=lambda tile: f"{tile.bp}x{tile.bf}")
def emulated(request: pytest.FixtureRequest) -> tuple[Tile, Any]:
    """A tile, and its products compiled by g++."""
    if shutil.which("g++") is None or platform.machine() != "x86_64":
        pytest.skip("g++ is not installed, or not for a processor with instructions for float16")
    tile: Tile = request.param
    text = HEADER.read_text()
    in_ptx = [text.index(f"__device__ __forceinline__ {name}(") for name in ("void part_pair", "float4 scaled")]
    text, shim = text[: in_ptx[0]] + text[in_ptx[1] :], SHIM.read_text()  # which has it in C++
    defines = (f"-DBP={tile.bp}", f"-DBF={tile.bf}", f"-DSTAGES={STAGES}")
    command = ("g++", "-std=c++20", "-O2", "-mf16c", "-w", "-fPIC", "-shared", "-pthread", *defines)

    def build(folder: Path) -> None:
        (folder / "source.cuh").write_text(text)
        (folder / "shim.cpp").write_text(shim)
        files = (folder / "shim.cpp", "-o", folder / "products.so")
        built = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr

    return tile, ctypes.CDLL(str(kept_build("g++", [text, shim, *command], build) / "products.so"))


def multiplied(emulated: tuple[Tile, Any], x: Array, weight: Array) -> Array:
    """y (pixels, filters) of x (pixels, gemm_k) and weight (filters, gemm_k)."""
    tile, library = emulated

    def in_stages(rows: Array, count: int) -> Any:
        laid_out = np.zeros((STAGES, count, 32), np.float32)
        laid_out[:, : len(rows)] = rows.reshape(len(rows), STAGES, 32).swapaxes(0, 1)
        return laid_out

    operands = in_stages(x, tile.bp), in_stages(weight, tile.bf)
    y = np.full((tile.bp, tile.bf), np.nan, np.float32)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (*operands, y))
    library.multiply(*pointers, len(weight), STAGES)
    return y[:, : len(weight)]


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("growth", [1, 30], ids=["scales that stay", "scales that fall in every stage"])
def test_the_kernel_multiplies_as_its_emulation_does(
    emulated: tuple[Tile, Any], growth: int, *, is_whole: bool
) -> None:
    tile, _ = emulated
    random = np.random.default_rng(0)
    x = random.standard_normal((tile.bp, STAGES * 32)) * 10 ** random.uniform(-6, 6, (tile.bp, 1))
    weight = random.standard_normal((tile.bf if is_whole else tile.bf - 52, STAGES * 32))
    weight *= float(growth) ** (np.arange(STAGES * 32) // 32) * 10 ** random.uniform(-6, 6, (len(weight), 1))
    x[::3, 32:64], weight[::5, :32] = 0, 0
    x, weight = nearest(x), nearest(weight)
    y, expected = multiplied(emulated, x, weight), in_scaled_halves(x, weight.T, is_restored=False)
    size = np.sqrt(x**2 @ weight.T**2)  # of sums of random sign
    assert np.abs((y - x @ weight.T) / size).max() < 1e-6
    assert np.abs((y - expected) / size).max() < 3e-7
    assert (y == expected).mean() > 0.98


def test_not_a_number_and_infinity_spread_in_their_pixel_or_filter_alone(emulated: tuple[Tile, Any]) -> None:
    tile, _ = emulated
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((tile.bp, STAGES * 32)), random.standard_normal((tile.bf, STAGES * 32))
    x[5, 40], x[100, 3], weight[7, 70], weight[50, 159] = np.nan, -np.inf, np.inf, np.nan
    is_off = np.zeros((tile.bp, tile.bf), bool)
    is_off[[5, 100]], is_off[:, [7, 50]] = True, True
    assert np.array_equal(~np.isfinite(multiplied(emulated, x, weight)), is_off)


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


def name_of(cut: Cut[plan.AnyTile]) -> str:
    form = "s" if isinstance(cut.tile, SplitTile) else "h" if isinstance(cut.tile, Tile) and cut.tile.of_halves else "t"
    return f"{form}{cut.tile.bp}x{cut.tile.bf}/{cut.cluster}"


def test_of_all_forms_the_rule_takes_a_cut_about_as_fast_as_the_fastest() -> None:
    """Of all that were timed, those that are built no more too."""
    slowdowns, ratios = [], []
    for layer, us in TABLE["float32"].items():
        problem = ConvProblem.parse(layer, dtype=DType.FLOAT32, layout=Layout.NHWC)
        expected = {name_of(cut): time for cut, time in plan.expected(problem, GPU).items() if name_of(cut) in us}
        chosen = min(expected, key=expected.__getitem__)
        slowdowns.append(us[chosen] / min(us.values()))
        ratios.append(expected[chosen] / us[chosen])
    assert len(slowdowns) == 57
    assert geometric_mean(slowdowns) < 1.01
    assert max(slowdowns) < 1.08
    assert geometric_mean(ratios) == pytest.approx(1, abs=0.03)
