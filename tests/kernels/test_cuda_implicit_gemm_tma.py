"""The implicit GEMM that the tensor memory accelerator feeds, without one: its maps, its launches and its rule."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import reference
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.cuda.implicit_gemm_tma import encoding, launch, limits, maps, plan, split
from conv_advisor.kernels.cuda.implicit_gemm_tma.menu import (
    BOX,
    BOX_ROW_BYTES,
    BOXES_BYTES,
    CLUSTERS,
    GROUPS,
    SPLIT_BOX,
    THREADS,
    TILES,
    TILES_BY_TURNS,
    Tile,
    multiplied_bytes,
    row_bytes_of,
    stages_of,
    tiles_for,
)
from conv_advisor.kernels.cuda.implicit_gemm_tma.small import SmallTile
from conv_advisor.kernels.cuda.implicit_gemm_tma.straight import StraightTile
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.shapes import Shapes, is_dense
from tests.kernels.accelerator import FOURS, GPU, SHAPES, FakeDriver, box_of, pixels_of, problem_of, shapes_of
from tests.shapes import EDGE_SHAPES

TABLE = json.loads((Path(__file__).parent / "data" / "implicit_gemm_tma_us.json").read_text())
"""Times of every promising cut on an H200, without tiles by turns and small ones."""
EVERY_CUT = json.loads((Path(__file__).parent / "data" / "implicit_gemm_tma_turns_us.json").read_text())
"""The same with these, of 1x1 layers from batch 8 on that were lost, and others."""
SMALL = [
    (dtype, name)
    for dtype in (DType.TF32, DType.FLOAT16)
    for name in shapes_of(dtype)
    if not name.endswith(("wide", "waves"))
]
"""What the emulation gets through in a moment."""
EVERY = {**EDGE_SHAPES, **SHAPES, **FOURS}
SMALLEST = Tile(128, 64, stages=8)


def emulated(problem: ConvProblem, tile: Tile, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """y (pixels, K) in float64, tile by tile, each the product of all that the maps read for its stages."""
    of_x, of_weight, of_y = (
        maps.x_map(problem, tile.bp),
        maps.weight_map(problem, tile.bf),
        maps.y_map(problem, is_split=False),
    )
    pixels, plane = maps.pixels_of(problem), problem.p * problem.q
    stages = list(product(range(problem.r * problem.s), range(0, problem.c, of_weight.box[0])))
    y = np.zeros(of_y.sizes[::-1])
    for pixel in range(0, pixels, tile.bp):
        image, inner = divmod(pixel, plane)
        p, q = divmod(inner, problem.q)
        first = (q * problem.stride_w - problem.pad_w, p * problem.stride_h - problem.pad_h, image)
        a = []
        for tap, c in stages:
            r, s = divmod(tap, problem.s)
            if isinstance(of_x, maps.TiledMap):
                a.append(box_of(of_x, x, c, pixel))
            else:
                a.append(pixels_of(of_x, x, (c, *first), (s * problem.dilation_w, r * problem.dilation_h)))
        for filter_ in range(0, problem.k, tile.bf):
            b = [box_of(of_weight, weight, c, tap, filter_)[:, 0] for tap, c in stages]
            sums = np.concatenate(a, axis=1).astype(np.float64) @ np.concatenate(b, axis=1).astype(np.float64).T
            stored = y[pixel : pixel + tile.bp, filter_ : filter_ + tile.bf]
            stored[:] = sums[: len(stored), : stored.shape[1]]
    return y


@pytest.mark.parametrize(("dtype", "name"), SMALL)
def test_what_the_maps_read_gives_the_convolution(dtype: DType, name: str) -> None:
    problem = problem_of(shapes_of(dtype)[name], dtype)
    x, weight = reference.random_operands(problem, 0)
    y = emulated(problem, SMALLEST, x, weight)
    np.testing.assert_allclose(y.reshape(problem.y_shape), reference.convolve(problem, x, weight), atol=1e-9)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_and_columns_of_a_map_are_those_of_y(name: str) -> None:
    problem = problem_of(SHAPES[name])
    assert limits.why_not(problem) is None
    described = maps.x_map(problem, TILES[0].bp)
    if is_dense(problem):
        assert isinstance(described, maps.TiledMap)
        return
    assert isinstance(described, maps.Im2colMap)
    spans = [
        size + upper - lower - 1
        for size, lower, upper in zip(described.sizes[1:3], described.lower, described.upper, strict=True)
    ]
    counts = [span // step + 1 for span, step in zip(spans, described.steps, strict=True)]
    assert counts == [problem.q, problem.p]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", EVERY)
def test_maps_keep_the_limits_of_the_driver(name: str, dtype: DType) -> None:
    problem = problem_of(EVERY[name], dtype)
    if problem.groups > 1 or limits.why_not(problem) is not None:
        return
    for tile in tiles_for(dtype):
        of_x, of_weight, of_y = (
            maps.x_map(problem, tile.bp),
            maps.weight_map(problem, tile.bf),
            maps.y_map(problem, tile.box_row_bytes(dtype), is_split=False),
        )
        assert tile.bf % of_y.box[0] == 0
        for described in (of_x, of_weight, of_y):
            assert all(stride % 16 == 0 for stride in described.strides_bytes)
        for described in (of_weight, of_y, *([of_x] if isinstance(of_x, maps.TiledMap) else [])):
            assert max(described.box) <= 256
            assert described.box[0] * dtype.itemsize_bytes == described.row_bytes
        if isinstance(of_x, maps.Im2colMap):
            assert of_x.channels <= 256
            assert of_x.pixels <= 1024
            assert all(-128 <= corner <= 127 for corner in (*of_x.lower, *of_x.upper))
            assert all(1 <= step <= 8 for step in of_x.steps)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"c": 4}, "c and k are 4 and 8, not multiples of 8"),
        ({"k": 12}, "not multiples of 8"),
        ({"c": 6, "dtype": DType.TF32}, "c and k are 6 and 8, not multiples of 4"),
        ({"k": 2, "dtype": DType.TF32}, "not multiples of 4"),
        ({"stride_w": 9}, "stride is 1x9"),
        ({"dilation_w": 128, "pad_w": 128}, "the last tap lies 256"),
        ({"pad_h": 129}, "outside -128 to 127"),
        ({"dilation_h": 65}, "outside -128 to 127"),
    ],
)
def test_what_no_map_can_say_is_refused(sizes: dict[str, Any], words: str) -> None:
    smallest = {"n": 1, "c": 8, "h": 300, "w": 300, "k": 8, "r": 3, "s": 3, "dtype": DType.FLOAT16}
    assert words in (limits.why_not(ConvProblem(**{**smallest, **sizes}, layout=Layout.NHWC)) or "")


def test_it_applies_in_channels_first_where_the_bytes_are_the_same() -> None:
    variant = VARIANTS["cuda.implicit_gemm_tma"]
    for dtype in DType:
        one_pixel, row = (ConvProblem.parse(layer, dtype=dtype) for layer in ("1x1-8-1-16-32", "1x2-8-1-16-32"))
        assert variant.why_not(one_pixel, GPU) is None
        assert variant.why_not(row, GPU) == "layout is nchw, not nhwc"
        cut = plan.plan_cut(one_pixel, GPU)
        assert cut == plan.plan_cut(replace(one_pixel, layout=Layout.NHWC), GPU)


@pytest.mark.parametrize(
    ("layer", "dtype", "row"),
    [
        ("24-2-4-8-3-stride4-pad0", DType.TF32, (12, 4, 1)),
        ("48-2-8-8-3-stride8-pad0", DType.FLOAT16, (24, 8, 1)),
        ("64-2-16-8-3-stride16-pad0", DType.FLOAT16, (48, 8, 2)),
        ("96-1-32-8-1-stride32-pad0", DType.BFLOAT16, (32, 8, 4)),
        ("48-1-12-8-2-stride12-pad0", DType.FLOAT16, (24, 6, 2)),
        ("36x30-1-3x2-8-4-stride2x2-pad1x0-dilation2x1", DType.FLOAT16, (8, 3, 1)),
        ("24-2-4-8-8-stride4-pad0", DType.FLOAT16, (32, 4, 1)),
        ("24-2-2-8-96-stride2-pad0", DType.FLOAT16, (192, 2, 1)),
        ("24-2-2-8-64-stride2-pad0", DType.FLOAT16, (64, 2, 2)),
    ],
)
def test_patches_are_the_same_layer_whose_rows_a_map_can_say(
    layer: str, dtype: DType, row: tuple[int, int, int]
) -> None:
    problem = ConvProblem.parse(layer, dtype=dtype, layout=Layout.NHWC)
    viewed = limits.by_patches(problem)
    assert (viewed.c, viewed.r, viewed.s) == row
    assert viewed.y_shape == problem.y_shape
    assert limits.why_not(problem) is None
    x, weight = reference.random_operands(problem, 0)
    found = emulated(viewed, SMALLEST, x.reshape(viewed.x_shape), weight.reshape(viewed.weight_shape))
    np.testing.assert_allclose(found.reshape(problem.y_shape), reference.convolve(problem, x, weight), atol=1e-9)


def test_a_map_is_encoded_as_the_driver_takes_it(map_driver: FakeDriver) -> None:
    problem = problem_of(SHAPES["uneven_pad"], DType.BFLOAT16)
    encoding.encoded(maps.x_map(problem, SMALLEST.bp), problem.dtype, 4096)
    kind, dtype, rank, address, sizes, strides, lower, upper, channels, pixels, steps, *rest = map_driver.asked[0]
    assert (kind, dtype, rank, address.value) == ("im2col", 9, 4, 4096)
    assert (sizes, strides) == ([64, 15, 14, 2], [128, 128 * 15, 128 * 15 * 14])
    # 15 columns: the last of 7 begins in 12, of rows the last of 7 in 12, so that 2 and 1 are left of x.
    assert (lower, upper, steps) == ([0, 0], [-2, -1], [1, 2, 2, 1])
    assert (channels.value, pixels.value, rest) == (64, 128, [0, 3, 2, 0])


@pytest.mark.parametrize(("n", "version", "is_cleared"), [(1, 13010, True), (1, 13020, False), (64, 13010, False)])
def test_the_bit_of_large_tensors_is_cleared_for_small_ones(
    map_driver: FakeDriver, n: int, version: int, is_cleared: bool
) -> None:
    map_driver.version = version
    problem = problem_of({"n": n, "c": 64, "h": 16, "w": 16, "k": 64, "r": 1, "s": 1})
    words = encoding.encoded(maps.x_map(problem, TILES[0].bp), problem.dtype, 4096)
    assert (words[1] >> 21 & 1 == 0) is is_cleared


@pytest.mark.parametrize(
    ("tile", "cluster"), [*product(TILES, (1, 3)), *((tile, 1) for tile in TILES_BY_TURNS)], ids=str
)
@pytest.mark.parametrize("epilogue", ["", "bias-relu", "bias-residual", "residual"])
@pytest.mark.parametrize(
    ("dtype", "types"),
    [(DType.FLOAT32, [7, 7, 7, 7]), (DType.TF32, [11, 11, 7, 7]), (DType.FLOAT16, [6, 6, 6, 6])],
)
def test_a_launch_passes_a_map_of_each_tensor_and_what_follows(
    map_driver: FakeDriver,
    dtype: DType,
    types: list[int],
    epilogue: str,
    tile: Tile,
    cluster: int,
    tma_launches: list[Any],
) -> None:
    ends = Epilogue.parse(epilogue) if epilogue else Epilogue()
    problem = replace(problem_of(SHAPES["same_3x3_tails"], dtype), epilogue=ends)
    x, weight, y, bias, residual = (SimpleNamespace(data=SimpleNamespace(ptr=4096 * place)) for place in range(1, 6))
    given = (bias if ends.bias else None, residual if ends.residual else None)
    prepared = launch.launch(problem, GPU, Cut(tile, cluster))
    for _ in range(2):
        prepared.run(x, weight, y, *given)
    mapped = [4096, 8192, 12288] + [20480] * ends.residual
    assert [call[3].value for call in map_driver.asked] == mapped, "maps are made once"
    assert [call[1] for call in map_driver.asked] == types[: len(mapped)], (
        "what is multiplied is rounded, what is added not"
    )
    (grid, threads, shared_bytes, sizes), options = tma_launches[0]
    assert tma_launches[1] == tma_launches[2]
    assert tma_launches[1][len(mapped) :] == tuple(end.data.ptr for end in given if end)
    tiles = sizes[-2] * sizes[-1]
    assert grid == (3 * tiles if cluster == 3 else min(tiles, GPU.processors), 1, 1)
    assert options == {"cluster": cluster, "is_structure": True, "overlaps": False}
    assert threads == 384
    assert shared_bytes <= 227 * 1024
    assert sizes[-2] * tile.bp >= problem.n * problem.p * problem.q
    assert sizes[-1] * tile.bf >= problem.k


@pytest.mark.parametrize(("is_split", "pixels"), [(False, BOX), (True, SPLIT_BOX)])
def test_the_kernel_and_its_menu_give_a_block_the_same_threads_and_boxes(is_split: bool, pixels: int) -> None:
    listed = re.findall(r"^#define ([A-Z_]+) (.+?)(?: //.*)?$", plan.SOURCE.text(), re.M)
    macros = dict(reversed(listed) if is_split else listed)  # of two the first is for IS_SPLIT

    def value(expression: str) -> int:
        replaced = re.sub(r"[A-Z_]+", lambda match: str(value(macros[match[0]])), expression)
        return int(eval(replaced.replace("/", "//")))  # noqa: S307 - numbers, products and sums of our own source

    assert value("GROUPS") == GROUPS
    assert value("THREADS") == THREADS
    assert value("BOX") == pixels
    assert value("BOX_ROW_BYTES") == BOX_ROW_BYTES
    assert value("FILLERS * BOXES * BOX * BOX_ROW_BYTES") == BOXES_BYTES


@pytest.mark.parametrize("dtype", DType)
def test_every_cut_is_compiled(dtype: DType) -> None:
    for c in (8, 16, 32, 40, 512):
        problem = problem_of({**SHAPES["same_3x3"], "c": c}, dtype)
        row_bytes = row_bytes_of(problem)
        assert row_bytes == (64 if c * dtype.itemsize_bytes <= 64 and dtype is not DType.FLOAT32 else 128)
        for cut in plan.expected(problem, GPU):
            source, defines = plan.build_of(cut, problem)
            assert defines in source.definitions(dtype)
            if not isinstance(cut.tile, StraightTile):
                assert defines.get("ROW_BYTES", split.ROW_BYTES) == row_bytes
    assert {each["BP"] * each["BF"] for each in plan.definitions(dtype)} == {
        tile.bp * tile.bf for tile in tiles_for(dtype)
    }


@pytest.mark.parametrize(
    ("c", "dtype", "row_bytes", "multiplied"),
    [
        (64, DType.FLOAT16, 128, 128),
        (96, DType.FLOAT16, 128, 96),
        (104, DType.FLOAT16, 128, 128),
        (136, DType.FLOAT16, 128, 320 / 3),
        (16, DType.FLOAT16, 64, 32),
        (24, DType.FLOAT16, 64, 64),
        (48, DType.TF32, 128, 96),
        (48, DType.FLOAT32, 128, 128),
    ],
)
def test_a_half_of_a_stage_without_channels_is_not_multiplied(
    c: int, dtype: DType, row_bytes: int, multiplied: float
) -> None:
    problem = problem_of({**SHAPES["same_3x3"], "c": c}, dtype)
    assert row_bytes_of(problem) == row_bytes
    assert multiplied_bytes(problem) == pytest.approx(multiplied)


@pytest.mark.parametrize(
    ("name", "changes", "row_bytes"),
    [
        ("same_3x3_c96", {}, 64),
        ("same_3x3_c96", {"c": 64}, 128),
        ("same_3x3_c96", {"c": 104}, 128),
        ("same_3x3_c96", {"c": 160}, 64),
        ("same_3x3_c96", {"c": 224}, 128),
        ("same_3x3_c96", {"n": 5}, 128),
        ("dense_waves", {"c": 96}, 128),
        ("dense_waves", {"c": 32}, 64),
    ],
)
def test_rows_are_halved_where_they_would_leave_a_half_empty_and_pixels_are_many(
    name: str, changes: dict[str, int], row_bytes: int
) -> None:
    problem = problem_of({**SHAPES[name], **changes})
    assert row_bytes_of(problem) == row_bytes_of(Shapes.of(problem))[0] == row_bytes


@pytest.mark.parametrize("dtype", DType)
def test_blocks_that_share_a_tile_have_stages_boxes_and_room_for_what_they_receive(dtype: DType) -> None:
    deep, shallow = (problem_of(SHAPES[name], dtype) for name in ("same_3x3_tails", "dense"))
    cuts = [(cut.tile, cut.cluster) for cut in plan.expected(deep, GPU) if isinstance(cut.tile, Tile)]
    assert {tile for tile, cluster in cuts if cluster == max(CLUSTERS)} == {
        tile for tile in tiles_for(dtype) if tile.is_shareable
    }
    for tile, cluster in cuts:
        boxes = tile.boxes(dtype, SPLIT_BOX)
        owned = [[box // cluster for box in range(boxes) if box % cluster == rank] for rank in range(cluster)]
        sums = tile.bp * tile.bf // boxes
        room = max(len(slots) for slots in owned) * (cluster - 1) * sums * 4
        assert all(slots == list(range(len(slots))) for slots in owned)
        assert room == plan.received_bytes(tile, cluster, dtype) <= tile.ring_bytes
    few = problem_of(SHAPES["same_3x3_few"], dtype)
    clusters = {
        problem: {cut.cluster for cut in plan.expected(problem, GPU) if not isinstance(cut.tile, StraightTile)}
        for problem in (shallow, few)
    }
    assert max(clusters[shallow]) == stages_of(shallow) < max(CLUSTERS)
    assert dtype is DType.FLOAT32 or clusters[few] == {1}


@pytest.mark.parametrize("dtype", TABLE["us"])
def test_the_rule_takes_a_cut_about_as_fast_as_the_fastest(dtype: str) -> None:
    assert TABLE["tiles"] == [f"{tile.bp}x{tile.bf}" for tile in TILES]
    slowdowns = []
    for layer, of_tiles in TABLE["us"][dtype].items():
        problem = ConvProblem.parse(layer, dtype=DType(dtype), layout=Layout.NHWC)
        us: dict[Cut[plan.AnyTile], float] = {
            Cut(tile, cluster): time
            for tile, times in zip(TILES, of_tiles, strict=True)
            for cluster, time in enumerate(times, 1)
            if time is not None
        }
        expected = plan.expected(problem, GPU)
        chosen = min((cut for cut in expected if cut in us), key=expected.__getitem__)
        slowdowns.append(us[chosen] / min(us.values()))
    assert len(slowdowns) == 45
    assert geometric_mean(slowdowns) < 1.02
    assert max(slowdowns) < 1.18


def name_of(cut: Cut[plan.AnyTile]) -> str:
    size = f"{cut.tile.bp}x{cut.tile.bf}"
    if isinstance(cut.tile, SmallTile):
        return f"{size} small {cut.tile.blocks}"
    if isinstance(cut.tile, Tile) and cut.tile.by_turns:
        return f"{size} by turns"
    return f"{size} by {cut.cluster}" if cut.cluster > 1 else size


@pytest.mark.parametrize("dtype", EVERY_CUT["us"])
def test_of_all_kinds_of_tiles_the_rule_takes_one_about_as_fast_as_the_fastest(dtype: str) -> None:
    slowdowns = []
    for layer, us in EVERY_CUT["us"][dtype].items():
        problem = ConvProblem.parse(layer, dtype=DType(dtype), layout=Layout.NHWC)
        expected = {name_of(cut): time for cut, time in plan.expected(problem, GPU).items() if name_of(cut) in us}
        assert len(expected) >= len(us) - 2
        slowdowns.append(us[min(expected, key=expected.__getitem__)] / min(us.values()))
    assert geometric_mean(slowdowns) < 1.03
    assert max(slowdowns) < 1.13


@pytest.mark.parametrize(
    ("layer", "changes", "is_small"),
    [
        ("28-128-3-512-512", {}, False),
        ("14-1-1-96-480", {}, True),
        ("28-128-3-512-512", {"dtype": DType.FLOAT32}, False),
        ("14-1-3-256-256", {"dtype": DType.FLOAT32}, True),
    ],
)
def test_small_tiles_are_for_few_outputs(layer: str, changes: dict[str, Any], is_small: bool) -> None:
    problem = ConvProblem.parse(layer, **{"dtype": DType.FLOAT16, "layout": Layout.NHWC, **changes})
    assert isinstance(plan.plan_cut(problem, GPU).tile, Tile) is not is_small
