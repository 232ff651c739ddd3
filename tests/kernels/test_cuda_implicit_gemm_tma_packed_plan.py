"""What planar float32 is packed for the tensor memory accelerator, in what memory, and what that launches."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.addresses import Address
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import launch as packs
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import packing
from conv_advisor.kernels.cuda.implicit_gemm_tma import launch as multiplies
from conv_advisor.kernels.cuda.implicit_gemm_tma.limits import by_patches, why_no_windows
from conv_advisor.kernels.cuda.implicit_gemm_tma.plan import build_of, plan_cut
from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import launch as launches
from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import plan
from conv_advisor.kernels.cuda.parts.overlap import overlapping
from tests.kernels.accelerator import GPU, SHAPES, FakeDriver
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES

VARIANT = get("cuda.implicit_gemm_tma_packed")
SIZES = {**EDGE_SHAPES, **UNEVEN_SHAPES, **SHAPES}
PROBLEMS = [
    problem
    for sizes in SIZES.values()
    for dtype in (DType.FLOAT32, DType.TF32)
    if VARIANT.why_not(problem := ConvProblem(**sizes, dtype=dtype), GPU) is None
]
X, WEIGHT, Y, BIAS, RESIDUAL = range(10**9, 6 * 10**9, 10**9)


@pytest.mark.parametrize(
    ("layer", "changes", "expected"),
    [
        ("14-1-3-5-3", {}, "applies"),
        ("1x6400-128-1x7-128-128", {}, "applies"),
        ("14-1-3-5-3", {"dtype": "tf32"}, "applies"),
        ("14-1-3-8-8", {"dtype": "float16"}, "dtype is float16, not float32 or tf32"),
        ("14-1-3-8-8", {"layout": "nhwc"}, "layout is nhwc, not nchw"),
        ("14-1-3-8-8", {"groups": 2}, "groups is 2, not 1"),
        ("14-1-3-8-8", {"stride_h": 3, "stride_w": 8, "dilation_h": 2}, "applies"),
        ("14-1-3-8-8", {"stride_w": 9}, "stride is 1x9, above 8"),
        ("32-1-16-8-3-stride16-pad0", {}, "applies"),  # by patches
        ("32-1-16-8-3-stride16", {}, "stride is 16x16, above 8"),
        ("600-1-3-8-8", {"dilation_w": 128}, "the last tap lies 256 rows or columns behind the first, above 255"),
        ("14-1-3-8-8", {"pad_h": 129}, "the first tap lies -129 rows or columns from x's border, outside -128 to 127"),
        ("14-1-3-8-8", {"pad_w_end": 0}, "applies"),
        ("1-1-1-8-8", {}, "applies"),
        ("30000-1-1-1-1", {}, "the packed copies of one image have 7200000064 elements, above 2147483647"),
    ],
)
def test_it_says_why_it_does_not_apply(layer: str, changes: dict[str, Any], expected: str) -> None:
    assert (VARIANT.why_not(ConvProblem.parse(layer, **changes), GPU) or "applies") == expected


def test_it_takes_every_edge_shape_without_groups() -> None:
    assert len(PROBLEMS) == 2 * sum(sizes.get("groups", 1) == 1 for sizes in SIZES.values())


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_what_it_launches_is_compiled(problem: ConvProblem) -> None:
    packed = by_patches(plan.packed(problem, problem.n))
    assert packed.y_shape == (problem.n, problem.p, problem.q, problem.k)
    assert why_no_windows(packed) is None
    source, defines = build_of(plan_cut(packed, GPU), packed)
    assert defines in source.definitions(problem.dtype)
    assert packing.pack_defines(problem) in packing.PACK_SOURCE.definitions(problem.dtype)
    assert plan.unpack_defines(problem) in plan.UNPACK_SOURCE.definitions(problem.dtype)


def test_float32_is_packed_as_it_is_and_tf32_rounded() -> None:
    rounds = {dtype: packing.pack_defines(ConvProblem.parse("14-1-3-8-8", dtype=dtype))["ROUNDS"] for dtype in DType}
    assert rounds == {DType.FLOAT32: 0, DType.TF32: 1, DType.FLOAT16: 0, DType.BFLOAT16: 0}


def test_workspaces_by_hand() -> None:
    aligned, ragged = ConvProblem.parse("1x6400-128-1x7-128-128"), ConvProblem.parse("7-5-3-6-3-stride2")
    assert plan.scratch_bytes(aligned, 2) == (4 * 128 * 7 * 128, 2 * 4 * 6400 * 128, 2 * 4 * 6400 * 128)
    assert VARIANT.workspace_bytes(aligned, GPU) == 4 * 128 * 7 * 128 + 128 * 2 * 4 * 6400 * 128
    # Three channels are padded to four, six filters to eight; the weight to 256 bytes.
    assert plan.scratch_bytes(ragged, 1) == (1024, 4 * 7 * 7 * 4, 4 * 4 * 4 * 8)
    assert plan.least_workspace_bytes(ragged) == 1024 + 784 + 512


def test_chunks_are_equal_and_less_than_the_least_is_refused() -> None:
    problem = ConvProblem.parse("13-37-3-24-12")
    least = plan.least_workspace_bytes(problem)
    of_image = least - plan.scratch_bytes(problem, 0)[0]
    assert plan.images_at_a_time(problem, least) == 1
    assert plan.images_at_a_time(problem, least + 17 * of_image) == 13  # of 18 that fit: 13, 13 and 11
    assert plan.images_at_a_time(problem, least + 36 * of_image) == 37
    with pytest.raises(WorkspaceExceeded) as raised:
        plan.images_at_a_time(problem, least - 1)
    assert raised.value.needed_bytes == least


def test_indices_of_scratch_memory_fit_32_bits() -> None:
    problem = ConvProblem.parse("224-256-3-1-1")  # four channels and four filters when it is packed
    assert plan.images_at_a_time(problem, 2**40) == 256
    large = ConvProblem.parse("1000-500-3-2-2")
    images = plan.images_at_a_time(large, 2**40)
    assert sum(plan.scratch_bytes(large, images)) <= 4 * MAX_ELEMENTS
    assert images < 500


@pytest.mark.parametrize(
    ("layer", "unit"), [("14-1-3-8-8", 4), ("6-1-3-8-8", 4), ("7-1-3-8-8", 1), ("1x6-1-1x3-8-8", 1)]
)
def test_four_pixels_are_stored_together_where_planes_are_fours(layer: str, unit: int) -> None:
    assert plan.unpack_defines(ConvProblem.parse(layer)) == {"UNIT": unit}


def test_the_kernel_and_the_plan_have_the_same_tiles() -> None:
    listed = dict(re.findall(r"^#define ([A-Z]+) (\d+)$", plan.UNPACK_SOURCE.text(), re.M))
    tile = (plan.UNPACK_THREADS, plan.UNPACK_FILTERS, plan.UNPACK_PIXELS)
    assert tuple(int(listed[name]) for name in ("THREADS", "FILTERS", "PIXELS")) == tile
    blocks, sizes = plan.unpack_arguments(ConvProblem.parse("7-5-3-70-3"), 5)
    assert (blocks, sizes[:4]) == (4 * 3, (70, 72, 245, 3))


def test_eight_filters_by_four_pixels_and_a_line_of_either_meet_all_banks() -> None:
    """The arithmetic of nhwc_unpack.cu: what a warp writes at a time, and what it, or a quarter of it, reads."""

    def place_of(filter_: int, pixel: int) -> int:
        return filter_ * 64 + ((pixel // 4 ^ filter_ // 4) * 4 + pixel % 4)

    assert sorted(place_of(f, p) for f in range(32) for p in range(64)) == list(range(32 * 64))
    for element in range(4):
        for first in range(0, 64, 4):
            written = {place_of(lane % 8 * 4 + element, first + lane // 8) % 32 for lane in range(32)}
            assert len(written) == 32
    for f in range(32):
        for first in (0, 32):
            assert len({place_of(f, first + lane) % 32 for lane in range(32)}) == 32
            fours = [place_of(f, first + 4 * lane) for lane in range(8)]
            assert all(place % 4 == 0 for place in fours)
            assert len({place // 4 % 8 for place in fours}) == 8


@dataclass
class Started:
    """One launch of a kernel: its leading parameters, of maps the addresses behind them, and its sizes."""

    kernel: str
    blocks: int
    begins_early: bool
    addresses: tuple[int, ...]
    sizes: list[int]


@dataclass
class FakeScratch:
    """Scratch memory at an address."""

    ptr: int
    nbytes: int


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, map_driver: FakeDriver) -> list[Started]:
    """The launches that were run, in their order."""
    ran: list[Started] = []

    def prepare_start(
        kernel: str, grid: tuple[int, ...], _threads: int, _shared: int, sizes: Any, *, overlaps: bool, **_other: Any
    ) -> Callable[..., None]:
        def start(*leading: Any) -> None:
            mapped = [asked[3].value for asked in map_driver.asked]
            map_driver.asked.clear()
            addresses = (*mapped, *(each for each in leading if isinstance(each, int)))
            ran.append(Started(kernel, grid[0], overlaps, addresses, [int(size) for size in sizes]))

        return start

    for module in (packs, multiplies, launches):
        monkeypatch.setattr(module, "prepare_start", prepare_start)
        monkeypatch.setattr(module, "load_kernel", lambda _source, kernel, _dtype, **_defines: kernel)
    places = iter(range(4096, 2**20, 4096))
    monkeypatch.setattr(launches, "Scratch", lambda nbytes: FakeScratch(next(places), nbytes))
    return ran


@pytest.mark.parametrize("is_asked", [False, True])
def test_each_chunk_is_packed_multiplied_and_unpacked(started: list[Started], *, is_asked: bool) -> None:
    problem = ConvProblem.parse("27-5-5-70-30-bias-residual-relu")
    limit = sum(plan.scratch_bytes(problem, 2))
    with overlapping() if is_asked else nullcontext():
        launch = launches.prepare(problem, GPU, limit)
    assert launch.by_address
    assert launch.workspace_bytes == limit == sum(each.nbytes for each in launch.scratch)
    launch.run(*map(Address, (X, WEIGHT, Y, BIAS, RESIDUAL)))
    # The kernels of a launch always overlap each other; packing overlaps the kernel ahead only where that is asked.
    assert [each.begins_early for each in started] == [is_asked, True, True] * 3
    packed_weight, packed_x, rows = (each.ptr for each in launch.scratch)
    bytes_of_x, bytes_of_y = 4 * 30 * 27 * 27, 4 * 70 * 27 * 27
    chunks = zip((0, 2, 4), (2, 2, 1), zip(*[iter(started)] * 3, strict=True), strict=True)
    for begin, images, (pack, multiply, unpack) in chunks:
        assert (pack.kernel, unpack.kernel) == ("nhwc_pack", "nhwc_unpack")
        assert multiply.kernel.startswith("implicit_gemm_tma")
        assert pack.blocks == packing.pack_arguments(problem, images, has_weight=begin == 0)[0]
        assert pack.addresses == (X + begin * bytes_of_x, WEIGHT, packed_x, packed_weight)
        if begin != 2:  # its maps are those of the chunk before
            assert multiply.addresses == (packed_x, packed_weight, rows)
        assert multiply.sizes[:8] == [32, 70, 5, 5, images * 27 * 27, 27 * 27, 27, 72]
        assert unpack.addresses == (rows, Y + begin * bytes_of_y, BIAS, RESIDUAL + begin * bytes_of_y)
        assert (unpack.blocks, tuple(unpack.sizes)) == plan.unpack_arguments(problem, images)


def test_what_is_multiplied_is_plain_and_has_channels_innermost() -> None:
    packed = plan.packed(ConvProblem.parse("14-8-3-30-30-stride2-bias-relu"), 3)
    assert (packed.layout, packed.n, packed.c, packed.k, bool(packed.epilogue)) == (Layout.NHWC, 3, 32, 30, False)
