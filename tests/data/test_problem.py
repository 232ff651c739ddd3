"""A problem: what it computes from its sizes, how it is written and read, and what it refuses."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conv_advisor.data.epilogue import EVERY_EPILOGUE, PLAIN
from conv_advisor.data.errors import InvalidInput, InvalidLayerName, InvalidProblem
from conv_advisor.data.problem import FIELDS, MAX_ELEMENTS, ConvProblem, DType, Layout
from tests.shapes import EDGE_SHAPES, edge_problem

VALID = {"n": 2, "c": 4, "h": 8, "w": 8, "k": 6, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Any small problem that is valid."""
    small = st.integers(1, 12)
    groups = draw(st.integers(1, 4))
    sizes = {name: draw(small) for name in ("n", "h", "w", "r", "s", "stride_h", "stride_w")}
    sizes |= {name: draw(st.integers(1, 3)) for name in ("dilation_h", "dilation_w")}
    sizes |= {"c": groups * draw(small), "k": groups * draw(small), "groups": groups}
    for pad, size, taps, dilation in (("pad_h", "h", "r", "dilation_h"), ("pad_w", "w", "s", "dilation_w")):
        least = max(0, -(-(sizes[dilation] * (sizes[taps] - 1) + 1 - sizes[size]) // 2))
        sizes[pad] = draw(st.integers(least, least + 3))
        if draw(st.booleans()):
            sizes[f"{pad}_end"] = draw(st.integers(max(0, 2 * least - sizes[pad]), least + 3))
    kind = {"dtype": draw(st.sampled_from(DType)), "layout": draw(st.sampled_from(Layout))}
    return ConvProblem(**sizes, **kind, epilogue=draw(st.sampled_from(EVERY_EPILOGUE)))


@given(problems())
def test_what_short_prints_parse_reads(problem: ConvProblem) -> None:
    assert ConvProblem.parse(problem.short, dtype=problem.dtype, layout=problem.layout) == problem


@given(problems())
def test_what_brief_prints_parse_reads(problem: ConvProblem) -> None:
    assert ConvProblem.parse(problem.brief, dtype=problem.dtype, layout=problem.layout) == problem
    assert len(problem.brief) <= len(problem.short)


def test_a_brief_name_leaves_out_what_is_as_usual() -> None:
    stem = ConvProblem.parse("224x224-1-7x7-64-3-stride2x2-pad3x3-dilation1x1-groups1")
    assert stem.brief == "224-1-7-64-3-stride2"
    assert ConvProblem.parse("14-1-3-256-128-bias-relu").brief == "14-1-3-256-128-bias-relu"
    odd = ConvProblem(1, 32, 20, 14, 64, 3, 1, 2, 1, 0, 1, 1, 2, 32, pad_w_end=0)
    assert odd.brief == "20x14-1-3x1-64-32-stride2x1-pad0x1-end0-dilation1x2-groups32"


def test_what_follows_the_short_form_may_say_one_number_for_both_sides_or_nothing() -> None:
    short = ConvProblem.parse("56-1-3-64-64")
    assert ConvProblem.parse("56x56-1-3x3-64-64") == ConvProblem.parse("56-1-3-64-64-pad1-groups1") == short
    strided = ConvProblem.parse("56-1-3-64-64-stride2-groups4-relu")
    assert (strided.stride_h, strided.stride_w, strided.pad_h, strided.groups) == (2, 2, 1, 4)
    assert strided.epilogue.activation == "relu"


@pytest.mark.parametrize("end", ["groups4-stride2", "relu-stride2", "stride", "stride2-tanh"])
def test_what_follows_in_another_order_or_is_unknown_is_refused_with_all_that_may(end: str) -> None:
    with pytest.raises(InvalidLayerName) as caught:
        ConvProblem.parse(f"56-1-3-64-64-{end}")
    words = ("stride", "pad", "end", "dilation", "groups", "bias", "residual", "relu")
    places = [caught.value.allowed.index(word) for word in words]
    assert places == sorted(places)


@given(problems(), problems())
def test_keys_are_equal_exactly_when_problems_are(one: ConvProblem, other: ConvProblem) -> None:
    assert (one.key == other.key) == (one == other)
    assert one.key == ConvProblem(**{each.name: getattr(one, each.name) for each in fields(one)}).key


def test_stored_columns_make_a_plain_problem_with_even_padding() -> None:
    assert FIELDS[9:11] == ("pad_h", "pad_w")
    assert FIELDS[-2:] == ("dtype", "layout")
    one = ConvProblem(*(getattr(edge_problem("stem", DType.FLOAT16, Layout.NHWC), name) for name in FIELDS))
    assert one == edge_problem("stem", DType.FLOAT16, Layout.NHWC)
    assert (one.pad_h_end, one.pad_w_end, one.epilogue) == (3, 3, PLAIN)


def test_sides_may_be_padded_differently() -> None:
    same = ConvProblem(1, 3, 224, 224, 8, 3, 3, stride_h=2, stride_w=2, pad_h_end=1, pad_w_end=1)
    assert (same.p, same.q, same.padded_h, same.padded_w) == (112, 112, 225, 225)
    assert same.has_uneven_padding
    assert same.short == "224x224-1-3x3-8-3-stride2x2-pad0x0-end1x1-dilation1x1-groups1"
    assert ConvProblem.parse(same.short) == same
    assert ConvProblem.parse("14-1-3-256-128", pad_h_end=1) == ConvProblem.parse("14-1-3-256-128")
    more = ConvProblem.parse("14-1-3-256-128", pad_h_end=2)
    assert (more.p, more.q) == (15, 14)
    assert more != ConvProblem.parse("14-1-3-256-128")


def test_the_short_form_is_a_square_layer_with_half_the_filter_as_padding() -> None:
    assert ConvProblem.parse("14-2-3-256-128") == ConvProblem(n=2, c=128, h=14, w=14, k=256, r=3, s=3, pad_h=1, pad_w=1)
    assert ConvProblem.parse("14-2-3-256-128").short == "14-2-3-256-128"
    assert ConvProblem.parse("512-1-2-1-1").pad_h == 1


def test_a_key_never_changes() -> None:
    assert ConvProblem.parse("14-1-3-256-128").key == "14-1-3-256-128-float32-nchw"
    assert edge_problem("stem", DType.FLOAT16, Layout.NHWC).key == (
        "37x37-1-7x7-8-3-stride2x2-pad3x3-dilation1x1-groups1-float16-nhwc"
    )


def test_parse_takes_other_fields_and_they_win() -> None:
    problem = ConvProblem.parse("14-1-3-256-128", dtype="float16", layout="nhwc", n=8)
    assert (problem.dtype, problem.layout, problem.n) == (DType.FLOAT16, Layout.NHWC, 8)


def test_arithmetic_of_a_strided_dilated_grouped_layer_worked_by_hand() -> None:
    problem = ConvProblem(
        **{"n": 2, "c": 4, "h": 9, "w": 11, "k": 6, "r": 3, "s": 2, "stride_h": 2, "stride_w": 3, "pad_h": 1},
        **{"dilation_h": 2, "groups": 2, "dtype": "float16", "layout": "nhwc"},
    )
    assert (problem.p, problem.q) == (4, 4)
    assert problem.x_shape == (2, 9, 11, 4)
    assert problem.weight_shape == (6, 3, 2, 2)
    assert problem.y_shape == (2, 4, 4, 6)
    assert (problem.gemm_m, problem.gemm_n, problem.gemm_k) == (32, 3, 12)
    assert problem.flops == 2 * 32 * 6 * 12
    assert (problem.x_bytes, problem.weight_bytes, problem.y_bytes) == (2 * 792, 2 * 72, 2 * 192)
    assert problem.bytes == 2 * (792 + 72 + 192)


def test_nchw_shapes() -> None:
    problem = ConvProblem.parse("14-2-3-256-128")
    assert problem.x_shape == (2, 128, 14, 14)
    assert problem.weight_shape == (256, 128, 3, 3)
    assert problem.y_shape == (2, 256, 14, 14)


@pytest.mark.parametrize("name", EDGE_SHAPES)
@pytest.mark.parametrize("layout", list(Layout))
def test_every_edge_shape_has_an_output(name: str, layout: Layout) -> None:
    problem = edge_problem(name, DType.TF32, layout)
    assert problem.p >= 1
    assert problem.q >= 1
    assert ConvProblem.parse(problem.short, dtype=DType.TF32, layout=layout) == problem


SIZES = f"an integer from 1 to {MAX_ELEMENTS}"
PADS = f"an integer from 0 to {MAX_ELEMENTS}"
BAD_FIELDS = {
    "zero": ("n", 0, SIZES),
    "negative": ("c", -3, SIZES),
    "beyond_32_bits": ("h", MAX_ELEMENTS + 1, SIZES),
    "bool": ("k", True, SIZES),
    "float": ("w", 8.0, SIZES),
    "text": ("r", "3", SIZES),
    "none": ("s", None, SIZES),
    "zero_stride": ("stride_h", 0, SIZES),
    "negative_stride": ("stride_w", -1, SIZES),
    "zero_dilation": ("dilation_w", 0, SIZES),
    "zero_groups": ("groups", 0, SIZES),
    "negative_pad": ("pad_h", -1, PADS),
    "float_pad": ("pad_w", 0.5, PADS),
    "negative_end": ("pad_h_end", -1, PADS),
    "text_at_the_end": ("pad_w_end", "1", PADS),
    "end_beyond_32_bits": ("pad_w_end", MAX_ELEMENTS + 1, PADS),
    "filter_above_input": ("r", 11, "a dilated filter no larger than the padded input, 10 here"),
    "filter_wider_than_input": ("s", 12, "a dilated filter no larger than the padded input, 10 here"),
    "groups_that_do_not_divide_c": ("groups", 3, "a divisor of c = 4"),
    "groups_that_do_not_divide_k": ("groups", 4, "a divisor of k = 6"),
    "dtype": ("dtype", "float64", "float32, tf32, float16, bfloat16"),
    "dtype_of_another_kind": ("dtype", 32, "float32, tf32, float16, bfloat16"),
    "layout": ("layout", "NCHW", "nchw, nhwc"),
}


@pytest.mark.parametrize(("field", "value", "allowed"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_bad_field_is_named_with_its_value_and_what_is_allowed(field: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        ConvProblem(**(VALID | {field: value}))
    assert (caught.value.field, caught.value.value, caught.value.allowed) == (field, repr(value), allowed)
    assert str(caught.value) == f"{field} is {value!r}; allowed: {allowed}"


def test_dilation_counts_when_a_filter_is_too_large() -> None:
    assert ConvProblem(**(VALID | {"dilation_h": 4})).p == 2
    with pytest.raises(InvalidProblem, match=r"^r is 3; .*10 here$"):
        ConvProblem(**(VALID | {"dilation_h": 5}))


@pytest.mark.parametrize(
    ("tensor", "layer"), [("x", "50000-1-1-1-1"), ("weight", "1-1-1-65536-65536"), ("y", "1000-32-1-70-1")]
)
def test_a_tensor_of_too_many_elements_is_refused(tensor: str, layer: str) -> None:
    with pytest.raises(InvalidProblem, match=rf"^{tensor} is .* at most {MAX_ELEMENTS} elements$"):
        ConvProblem.parse(layer)


MALFORMED = ["", "14", "14-1-3-256", "14-1-3-256-128-7", "14-1-3-256-x", "14-1-3-256--128", "-14-1-3-256-128"]
MALFORMED += ["14 - 1-3-256-128", "14-1-3-256-128 ", "14-1-3-256-128\n", "1e3-1-3-256-128", "14.0-1-3-256-128"]
MALFORMED += ["14x14x14-1-3-256-128", "14-1-3-256-99999999999999999999", "9" * 100_000 + "-1-1-1-1"]


@pytest.mark.parametrize("layer", MALFORMED, ids=lambda layer: layer[:24])
def test_a_malformed_short_form_is_refused_with_the_right_form(layer: str) -> None:
    with pytest.raises(InvalidLayerName) as caught:
        ConvProblem.parse(layer)
    assert caught.value.field == "layer"
    assert len(str(caught.value)) < 300
    assert caught.value.allowed in (
        "size-batch-filter-filters-depth, such as 14-1-3-256-128",
        f"numbers of at most {MAX_ELEMENTS}",
    )


@given(st.one_of(st.text(max_size=40), st.from_regex(r"(\d{1,11}-){4}\d{1,11}", fullmatch=True)))
def test_no_text_breaks_parse_in_another_way(layer: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert ConvProblem.parse(layer).n >= 1


@pytest.mark.parametrize(("layer", "field"), [("0-1-3-256-128", "h"), ("14-0-3-256-128", "n"), ("1-1-4-2-0", "c")])
def test_a_short_form_of_impossible_sizes_names_the_size(layer: str, field: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        ConvProblem.parse(layer)
    assert caught.value.field == field


def test_the_layer_of_a_problem_is_the_same_whatever_batch_dtype_and_layout() -> None:
    problem = ConvProblem.parse("14-1-3-256-128")
    assert ConvProblem.parse("14-8-3-256-128", dtype="float16", layout="nhwc").layer == problem.layer
    assert ConvProblem.parse("14-1-3-255-128").layer != problem.layer
    assert problem.layer.layer == problem.layer


@given(problem=problems())
def test_layouts_are_alike_where_turning_the_channels_moves_no_element(problem: ConvProblem) -> None:
    problem = replace(problem, layout=Layout.NCHW)
    shapes = (problem.x_shape, problem.weight_shape, problem.y_shape)
    tensors = [np.arange(prod(shape)).reshape(shape) for shape in shapes]
    turned = [tensor.transpose(0, 2, 3, 1).ravel() for tensor in tensors]
    is_alike = all((tensor.ravel() == other).all() for tensor, other in zip(tensors, turned, strict=True))
    assert problem.is_alike_in_layouts == is_alike
    assert replace(problem, layout=Layout.NHWC).is_alike_in_layouts == is_alike


@pytest.mark.parametrize(
    ("layer", "is_alike"),
    [
        ("1x1-8-1-16-32", True),
        ("1x1-8-1-32-32-groups4", True),
        ("1x1-8-3x3-16-32-pad1", False),
        ("1x1-8-3x3-32-32-pad1-groups32", True),
        ("1x1-8-1-16-32-pad1", False),
        ("2x1-8-1-16-32", False),
        ("14x14-8-3x3-1-1", True),
    ],
)
def test_layers_of_one_pixel_are_alike_in_both_layouts(layer: str, is_alike: bool) -> None:
    assert ConvProblem.parse(layer).is_alike_in_layouts is is_alike
