"""How a depthwise convolution is cut; pure arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.cuda.depthwise import cost
from conv_advisor.kernels.cuda.depthwise import cut as plans
from conv_advisor.kernels.cuda.depthwise import plan as choice
from conv_advisor.kernels.cuda.depthwise.cut import Channels, Plain, Planes, Scale, Staged
from conv_advisor.kernels.cuda.parts.division import divider
from conv_advisor.kernels.cuda.parts.shapes import Shapes

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
A100 = Device(id="nvidia-a100", name="NVIDIA A100", kind="cuda", capability="8.0", processors=108)


def depthwise(layer: str, **changes: object) -> ConvProblem:
    """A layer whose groups are its channels."""
    return ConvProblem.parse(layer, groups=int(layer.rsplit("-", maxsplit=1)[-1]), **changes)


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Any that the tiled kernels are for, and some that they are not."""
    r, s, stride, dilation = draw(st.sampled_from([*plans.WINDOWS, (1, 1, 1, 1), (4, 4, 2, 1), (3, 3, 3, 1)]))
    c, multiplier = draw(st.integers(1, 600)), draw(st.sampled_from([1, 1, 2, 3]))
    h, w = draw(st.integers(dilation * (r - 1) + 1, 120)), draw(st.integers(dilation * (s - 1) + 1, 300))
    pads = draw(st.integers(0, r)), draw(st.integers(0, s))
    dtype, layout = draw(st.sampled_from(list(DType))), draw(st.sampled_from(list(Layout)))
    sizes = (draw(st.integers(1, 64)), c, h, w, c * multiplier, r, s, stride, stride, *pads, dilation, dilation, c)
    try:
        problem = ConvProblem(*sizes, dtype=dtype, layout=layout)
    except InvalidProblem:  # a few have more elements than a tensor may have
        assume(False)
    return problem


@given(divisor=st.integers(1, 2**31 - 1), value=st.integers(0, 2**31 - 1))
def test_a_divider_divides(divisor: int, value: int) -> None:
    magic, shift = divider(divisor)
    assert 0 <= magic < 2**32
    for numerator in (value, value // divisor * divisor, max(0, value // divisor * divisor - 1)):
        assert (numerator * magic >> 32 if magic else numerator) >> shift == numerator // divisor


@pytest.mark.parametrize(
    ("layer", "changes", "expected"),
    [
        ("14-8-3-16-16", {}, {Planes}),
        ("14-8-3-16-16", {"layout": "nhwc"}, {Staged, Channels}),
        ("14-8-3-32-16", {"layout": "nhwc"}, {Channels}),
        ("14-8-3-15-15", {"layout": "nhwc", "dtype": "float16"}, {Channels}),
        ("14-8-3-15-15", {"layout": "nhwc"}, {Staged, Channels}),
        ("14-8-1-16-16", {}, {Scale}),
        ("14-8-1-32-16", {}, {Plain}),
        ("14-8-1-16-16", {"stride_h": 2, "stride_w": 2}, {Planes}),
        ("14-8-4-16-16", {}, {Plain}),
        ("14-8-3-16-16", {"stride_h": 2}, {Plain}),
        ("14-8-3-16-16", {"dilation_h": 2}, {Plain}),
    ],
)
def test_each_kind_of_layer_has_its_kernels(layer: str, changes: dict[str, object], expected: set[type]) -> None:
    assert {type(cut) for cut in choice.expected(depthwise(layer, **changes), H200)} == expected


def test_a_wide_row_is_not_staged() -> None:
    problem = ConvProblem(1, 2, 3, 60_000, 2, 3, 3, pad_h=1, pad_w=1, groups=2)
    cut = choice.plan_cut(problem, H200)
    assert isinstance(cut, Planes)
    assert cut.staged == 0


@pytest.mark.parametrize(
    ("layer", "changes", "tq", "expected"),
    [
        ("14-8-3-16-16", {}, 2, 2),
        ("14-8-5-16-16", {}, 2, 1),
        ("14-8-3-16-16", {}, 1, 0),
        ("13-8-3-16-16", {}, 2, 0),
        ("14-8-3-16-16", {"stride_h": 2, "stride_w": 2}, 1, 2),
        ("14-8-3-16-16", {"pad_w": 0, "s": 2}, 2, 0),
    ],
)
def test_elements_are_loaded_in_twos_where_rows_are_even(
    layer: str, changes: dict[str, int], tq: int, expected: int
) -> None:
    assert Planes(2, tq, 1, 128).pairs_of(depthwise(layer, **changes)) == expected


def test_shared_memory_by_hand() -> None:
    whole = depthwise("14-8-3-16-16")
    cut = Planes(7, 2, 2, 128)
    # 14 threads a plane: 9 planes; 3 columns around the run, and what its first vector has before it.
    assert cut.share_of(whole) == (9, 14)
    assert cut.shared_elements(whole) == (9 * 196 + 2 * 8 + 4, 9 * 196 + 4)
    band = depthwise("224-1-3-4-4")
    assert cut.share_of(band) == (1, 7)
    assert cut.shared_elements(band) == (9 * 224 + 2 * 8 + 4, 7 * 224 + 4)
    channels = Staged(4, 4, 2, 2, 64, 128)
    # 16 threads' channels are 4 a pixel, so that 32 tiles of 4 x 2 share a block: 4 down, 7 across.
    assert channels.share_of(depthwise("14-8-3-64-64", layout="nhwc")) == (16, 14)
    assert channels.shared_bytes(depthwise("14-8-3-64-64", layout="nhwc")) == 18 * 16 * 64


planes_defines, staged_defines, channels_defines = map(
    cache, (choice.planes_defines, choice.staged_defines, choice.channels_defines)
)


@settings(deadline=None, max_examples=150)
@given(problem=problems())
def test_every_cut_covers_the_outputs_fits_and_is_compiled(problem: ConvProblem) -> None:
    for cut in choice.expected(problem, H200):
        if isinstance(cut, Scale | Plain):
            continue
        window = plans.window(problem)
        blocks, threads = cut.grid_of(problem)
        assert 0 < blocks < 2**31
        assert threads <= plans.MOST_THREADS
        if isinstance(cut, Planes):
            planes, rows = cut.share_of(problem)
            assert blocks * planes * rows >= problem.n * problem.k * problem.p
            assert rows == problem.p or (planes == 1 and rows % cut.strip == 0)
            assert planes == 1 or planes % plans.multiplier_of(problem) == 0
            assert cut.shared_bytes(problem) <= plans.MOST_SHARED_BYTES
            assert cut.defines(window, cut.pairs_of(problem)) in planes_defines(problem.dtype)
        elif isinstance(cut, Staged):
            (lanes, parts), (rows, columns) = cut.lanes_of(problem), cut.share_of(problem)
            copy = plans.copy_of(problem)
            assert lanes * copy <= cut.pitch
            assert lanes * parts * copy >= problem.c * problem.dtype.itemsize_bytes
            assert (rows % cut.strip, columns % cut.tq) == (0, 0)
            assert blocks == problem.n * parts * ceil(problem.p / rows) * ceil(problem.q / columns)
            assert cut.shared_bytes(problem) <= plans.MOST_SHARED_BYTES
            assert cut.defines(window, copy) in staged_defines(problem.dtype)
        else:
            assert (
                blocks * threads * cut.vec * cut.tp * cut.repeats * cut.tq
                >= problem.n * problem.k * problem.p * problem.q
            )
            assert cut.defines(window) in channels_defines(problem.dtype)


@settings(deadline=None, max_examples=150)
@given(problem=problems())
def test_the_model_chooses_what_it_expects_to_be_fastest(problem: ConvProblem) -> None:
    chosen, expected = choice.plan_cut(problem, H200), choice.expected(problem, H200)
    assert expected[chosen] == min(expected.values())
    assert (expected[chosen] == 0) == isinstance(chosen, Scale | Plain)


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.id)
@settings(deadline=None, max_examples=40)
@given(shapes=st.lists(problems(), min_size=1, max_size=5))
def test_each_is_planned_the_same_whatever_stands_beside_it(device: Device, shapes: list[ConvProblem]) -> None:
    alike = [replace(shape, dtype=shapes[0].dtype, layout=shapes[0].layout) for shape in shapes]
    together = Shapes.of_table(sizes_of(alike), alike[0].dtype, alike[0].layout)
    assert choice.plan_cuts(together, device) == [choice.plan_cut(each, device) for each in alike]


def test_a_multiprocessor_holds_what_its_own_shared_memory_has_room_for() -> None:
    problem, cut = depthwise("28-8-3-64-64"), Planes(7, 4, 2, 128)
    window = plans.window(problem)
    assert 228 // 7 > cut.shared_bytes(problem) / 1024 + 1 > 164 // 7
    assert [int(cost.work_of(cut, problem, window, device).residents) for device in (H200, A100)] == [7, 6]


def test_a_single_image_gets_more_threads_than_a_large_batch_would_have() -> None:
    for layout in Layout:
        one, many = (choice.plan_cut(depthwise(f"14-{n}-3-96-96", layout=layout), H200) for n in (1, 256))
        assert not isinstance(one, Scale | Plain)
        assert not isinstance(many, Scale | Plain)
        assert one.strip * one.tq < many.strip * many.tq
