"""The named edge shapes that every variant is checked on, wherever it claims to apply."""

from __future__ import annotations

from typing import Any

from conv_advisor.data.problem import ConvProblem, DType, Layout

EDGE_SHAPES: dict[str, dict[str, Any]] = {
    "one_element": {"n": 1, "c": 1, "h": 1, "w": 1, "k": 1, "r": 1, "s": 1},
    "pointwise": {"n": 2, "c": 5, "h": 7, "w": 7, "k": 6, "r": 1, "s": 1},
    "pointwise_aligned": {"n": 2, "c": 64, "h": 8, "w": 8, "k": 32, "r": 1, "s": 1},
    "pointwise_deep": {"n": 1, "c": 832, "h": 7, "w": 7, "k": 33, "r": 1, "s": 1},
    "same_3x3": {"n": 2, "c": 3, "h": 13, "w": 13, "k": 5, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_aligned": {"n": 2, "c": 32, "h": 16, "w": 16, "k": 64, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_3x3_deep": {"n": 1, "c": 129, "h": 14, "w": 14, "k": 65, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "same_5x5": {"n": 2, "c": 4, "h": 14, "w": 14, "k": 9, "r": 5, "s": 5, "pad_h": 2, "pad_w": 2},
    "same_5x5_aligned": {"n": 1, "c": 16, "h": 28, "w": 28, "k": 32, "r": 5, "s": 5, "pad_h": 2, "pad_w": 2},
    "same_7x7": {"n": 1, "c": 3, "h": 20, "w": 20, "k": 8, "r": 7, "s": 7, "pad_h": 3, "pad_w": 3},
    "valid_3x3": {"n": 1, "c": 2, "h": 9, "w": 9, "k": 3, "r": 3, "s": 3},
    "filter_is_input": {"n": 2, "c": 3, "h": 4, "w": 4, "k": 5, "r": 4, "s": 4},
    "even_filter": {"n": 1, "c": 2, "h": 10, "w": 10, "k": 3, "r": 2, "s": 2, "pad_h": 1, "pad_w": 1},
    "large_filter": {"n": 1, "c": 1, "h": 40, "w": 40, "k": 1, "r": 32, "s": 32, "pad_h": 16, "pad_w": 16},
    "wide_pad": {"n": 1, "c": 2, "h": 6, "w": 6, "k": 3, "r": 3, "s": 3, "pad_h": 3, "pad_w": 3},
    "rectangle": {"n": 2, "c": 3, "h": 11, "w": 17, "k": 4, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "rectangle_filter": {"n": 2, "c": 3, "h": 11, "w": 17, "k": 4, "r": 3, "s": 5, "pad_h": 1, "pad_w": 2},
    "one_row": {"n": 1, "c": 4, "h": 1, "w": 33, "k": 4, "r": 1, "s": 3, "pad_w": 1},
    "one_pixel_3x3": {"n": 3, "c": 8, "h": 1, "w": 1, "k": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "one_pixel": {"n": 3, "c": 8, "h": 1, "w": 1, "k": 16, "r": 1, "s": 1},
    "one_pixel_many": {"n": 128, "c": 8, "h": 1, "w": 1, "k": 256, "r": 1, "s": 1},
    "wider_than_a_block": {"n": 1, "c": 2, "h": 5, "w": 300, "k": 2, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "batch": {"n": 37, "c": 5, "h": 6, "w": 6, "k": 7, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "few_filters": {"n": 2, "c": 19, "h": 13, "w": 11, "k": 3, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "first_layer": {"n": 1, "c": 3, "h": 64, "w": 64, "k": 16, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1},
    "stride_2": {"n": 2, "c": 8, "h": 15, "w": 15, "k": 16, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    | {"stride_h": 2, "stride_w": 2},
    "stride_2_pointwise": {"n": 2, "c": 16, "h": 14, "w": 14, "k": 8, "r": 1, "s": 1, "stride_h": 2, "stride_w": 2},
    "stem": {"n": 1, "c": 3, "h": 37, "w": 37, "k": 8, "r": 7, "s": 7, "pad_h": 3, "pad_w": 3}
    | {"stride_h": 2, "stride_w": 2},
    "dilation_2": {"n": 1, "c": 8, "h": 17, "w": 17, "k": 8, "r": 3, "s": 3, "pad_h": 2, "pad_w": 2}
    | {"dilation_h": 2, "dilation_w": 2},
    "groups_2": {"n": 2, "c": 16, "h": 12, "w": 12, "k": 8, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": 2},
    "groups_odd": {"n": 3, "c": 15, "h": 9, "w": 11, "k": 21, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": 3}
    | {"stride_h": 2, "stride_w": 2},
    "groups_pointwise": {"n": 3, "c": 40, "h": 7, "w": 5, "k": 90, "r": 1, "s": 1, "groups": 10},
    "groups_48": {"n": 3, "c": 96, "h": 14, "w": 14, "k": 96, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": 2},
    "groups_dilated": {"n": 1, "c": 24, "h": 13, "w": 40, "k": 18, "r": 5, "s": 3, "pad_h": 4, "pad_w": 2, "groups": 2}
    | {"dilation_h": 2, "dilation_w": 3},
    "depthwise": {"n": 1, "c": 16, "h": 14, "w": 14, "k": 16, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": 16},
    "depthwise_stride_2": {"n": 2, "c": 24, "h": 15, "w": 15, "k": 24, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}
    | {"stride_h": 2, "stride_w": 2, "groups": 24},
    "depthwise_5x5": {"n": 3, "c": 40, "h": 7, "w": 7, "k": 40, "r": 5, "s": 5, "pad_h": 2, "pad_w": 2, "groups": 40},
    "depthwise_wide": {"n": 1, "c": 4, "h": 5, "w": 300, "k": 4, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "groups": 4},
    "depthwise_dilated": {"n": 1, "c": 8, "h": 17, "w": 17, "k": 8, "r": 3, "s": 3, "pad_h": 2, "pad_w": 2}
    | {"dilation_h": 2, "dilation_w": 2, "groups": 8},
    "depthwise_multiplied": {"n": 2, "c": 6, "h": 9, "w": 9, "k": 18, "r": 3, "s": 3, "pad_h": 1, "groups": 6},
    "depthwise_even": {"n": 1, "c": 5, "h": 9, "w": 11, "k": 5, "r": 2, "s": 4, "stride_h": 3, "pad_w": 1, "groups": 5},
    "depthwise_scale": {"n": 3, "c": 20, "h": 7, "w": 7, "k": 20, "r": 1, "s": 1, "groups": 20},
}

UNEVEN_SHAPES: dict[str, dict[str, Any]] = {
    "tensorflow_same": {"n": 2, "c": 3, "h": 14, "w": 14, "k": 5, "r": 3, "s": 3, "pad_h_end": 1, "pad_w_end": 1}
    | {"stride_h": 2, "stride_w": 2},
    "same_lower": {"n": 1, "c": 4, "h": 9, "w": 8, "k": 4, "r": 2, "s": 2, "pad_h": 1, "pad_w": 1}
    | {"pad_h_end": 0, "pad_w_end": 0},
    "every_side_its_own": {"n": 2, "c": 4, "h": 7, "w": 9, "k": 6, "r": 3, "s": 3, "pad_h": 0, "pad_w": 3}
    | {"pad_h_end": 4, "pad_w_end": 1},
    "dilated_grouped": {"n": 1, "c": 6, "h": 11, "w": 12, "k": 4, "r": 3, "s": 2, "groups": 2}
    | {"dilation_h": 2, "stride_w": 3, "pad_h": 3, "pad_w": 0, "pad_h_end": 1, "pad_w_end": 5},
    "pointwise_at_the_end": {"n": 2, "c": 5, "h": 6, "w": 7, "k": 3, "r": 1, "s": 1, "pad_h_end": 1, "pad_w_end": 2},
    "causal_row": {"n": 2, "c": 4, "h": 1, "w": 33, "k": 5, "r": 1, "s": 4, "pad_w": 3, "pad_w_end": 0},
}
"""Those whose opposite sides are padded differently."""


def uneven_problem(name: str, dtype: DType, layout: Layout) -> ConvProblem:
    """The shape of this name among those that are padded unevenly, in one precision and layout."""
    return ConvProblem(**UNEVEN_SHAPES[name], dtype=dtype, layout=layout)


def edge_problem(name: str, dtype: DType, layout: Layout) -> ConvProblem:
    """The edge shape of this name in one precision and layout."""
    return ConvProblem(**EDGE_SHAPES[name], dtype=dtype, layout=layout)
