"""What Winograd with tiles of 4x4 outputs launches, told addresses alone; the kernels themselves run on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.addresses import Address
from conv_advisor.kernels.cuda.winograd_large import launch as launches
from conv_advisor.kernels.cuda.winograd_large import plan as plans
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
X, WEIGHT, Y, BIAS, RESIDUAL = range(10**9, 6 * 10**9, 10**9)


@dataclass
class Started:
    """One launch of a kernel."""

    kernel: str
    blocks: int
    sizes: list[int]
    begins_early: bool
    addresses: tuple[int, ...] = ()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """The launches that were run, in their order."""
    ran: list[Started] = []

    def prepare_start(
        kernel: str, grid: tuple[int, int, int], _threads: int, _shared: int, sizes: Any, *, overlaps: bool
    ) -> Any:
        said = Started(kernel, grid[0], [int(size) for size in sizes], overlaps)
        return lambda *addresses: ran.append(replace(said, addresses=addresses))

    monkeypatch.setattr(launches, "prepare_start", prepare_start)
    monkeypatch.setattr(launches, "load_kernel", lambda _source, kernel, _dtype, **_defines: kernel)
    places = iter(range(100, 1000, 100))
    monkeypatch.setattr(launches, "Scratch", lambda _nbytes: Address(next(places)))
    return ran


@pytest.mark.parametrize("layout", Layout)
def test_images_are_transformed_multiplied_and_transformed_back_by_the_chunk(
    layout: Layout, started: list[Started]
) -> None:
    problem = ConvProblem.parse("28-5-3-64-32-bias-residual-relu", layout=layout)
    cut = replace(plans.plan_cut(problem, H200, DEFAULT_WORKSPACE_LIMIT_BYTES), images=2)
    launch = launches.launch(problem, H200, cut)
    assert launch.by_address
    launch.run(*map(Address, (X, WEIGHT, Y, BIAS, RESIDUAL)))
    steps = ["winograd_transform", "winograd_gemm", "winograd_transform_y"]
    assert [each.kernel for each in started] == ["winograd_maxima", *steps * 3]

    assert [each.begins_early for each in started] == [False, *[True] * 9]  # nothing overlaps the launch before

    maxima, *rest = started
    parts = plans.image_parts(problem, H200)
    assert (maxima.blocks, maxima.addresses, maxima.sizes[:2]) == (5 * parts + 64, (X, WEIGHT, 400), [parts, 5])
    bytes_of_x, bytes_of_y = 4 * 32 * 28 * 28, 4 * 64 * 28 * 28
    for begin, (transform, multiply, back) in zip((0, 2, 4), zip(*[iter(rest)] * 3, strict=True), strict=True):
        images = min(2, 5 - begin)
        scales = (500 + 4 * begin, 500 + 4 * 5)
        assert transform.addresses[:2] == (X + begin * bytes_of_x, WEIGHT)
        assert transform.addresses[2:] == (400 + 4 * begin * parts, 400 + 4 * 5 * parts, 100, 200, *scales)
        assert transform.sizes[1] == back.sizes[-16] == images
        assert multiply.addresses == ((200, 100, 300) if plans.has_tiles_left(problem) else (100, 200, 300))
        assert back.addresses[:4] == (300, *scales, Y + begin * bytes_of_y)
        assert back.addresses[4:] == (BIAS, RESIDUAL + begin * bytes_of_y)
    blocks = [each.blocks for each in rest[::3]]
    tiles, slices = plans.tiles_of(problem), plans.slices_of(problem)
    assert blocks[1] == -(-2 * tiles // plans.BLOCK_TILES) * slices
    assert blocks[0] - blocks[1] == -(-plans.rows_u(problem, cut.tile) // plans.BLOCK_TILES) * slices
