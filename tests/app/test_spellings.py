"""What others call the parameters of a layer: each spelling means a problem that ours mean too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conv_advisor.app.wire.layers import named, problem_from, problems_from
from conv_advisor.app.wire.spellings import AutoPad
from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout

SIZES = {"n": 2, "c": 4, "h": 9, "w": 8, "k": 6, "r": 3, "s": 2}
OURS = ConvProblem(**SIZES)
SAME: dict[str, tuple[dict[str, Any], ConvProblem]] = {
    "torch": (
        {"batch_size": 2, "in_channels": 4, "h": 9, "w": 8, "out_channels": 6, "kernel_size": (3, 2), "padding": (1, 0)}
        | {"stride": (2, 1), "dtype": "torch.float16", "memory_format": "torch.channels_last"},
        ConvProblem(**SIZES, pad_h=1, stride_h=2, dtype=DType.FLOAT16, layout=Layout.NHWC),
    ),
    "onnx": (
        {"n": 2, "c": 4, "h": 9, "w": 8, "k": 6, "kernel_shape": [3, 2], "strides": [2, 2], "pads": [0, 1, 2, 3]}
        | {"dilations": [1, 2], "group": 2},
        ConvProblem(**SIZES, stride_h=2, stride_w=2, pad_w=1, pad_h_end=2, pad_w_end=3, dilation_w=2, groups=2),
    ),
    "text": (
        {**SIZES, "pad": "2x1", "stride": "(2, 3)", "dtype": "half", "layout": "NHWC"},
        ConvProblem(**SIZES, pad_h=2, pad_w=1, stride_h=2, stride_w=3, dtype=DType.FLOAT16, layout=Layout.NHWC),
    ),
    "words": ({**SIZES, "dtype": "bf16", "layout": "channels_first"}, ConvProblem(**SIZES, dtype=DType.BFLOAT16)),
    "sides by themselves": ({**SIZES, "pad": 1, "pad_h_end": 0}, ConvProblem(**SIZES, pad_h=1, pad_w=1, pad_h_end=0)),
    "one side moves its end": ({**SIZES, "pad": 2, "pad_h": 1}, ConvProblem(**SIZES, pad_h=1, pad_w=2)),
    "valid": ({**SIZES, "padding": "valid"}, OURS),
    "each side by itself": (
        {**SIZES, "padding": "0,1,2,3"},
        ConvProblem(**SIZES, pad_w=1, pad_h_end=2, pad_w_end=3),
    ),
    "notset": ({**SIZES, "auto_pad": "NOTSET", "pad": 1}, ConvProblem(**SIZES, pad_h=1, pad_w=1)),
    "same": ({**SIZES, "padding": "same"}, ConvProblem(**SIZES, pad_h=1, pad_w=0, pad_w_end=1)),
    "lower": ({**SIZES, "auto_pad": "same_lower"}, ConvProblem(**SIZES, pad_h=1, pad_w=1, pad_w_end=0)),
    "pads that agree": (
        {**SIZES, "auto_pad": "SAME_UPPER", "pads": (1, 0, 1, 1)},
        ConvProblem(**SIZES, pad_h=1, pad_w_end=1),
    ),
    "a row": (
        {"n": 2, "in_channels": 4, "length": 50, "out_channels": 6, "kernel_size": 5, "stride": 2, "pads": (4, 0)}
        | {"dilation": 1},
        ConvProblem(2, 4, 1, 50, 6, 1, 5, stride_w=2, pad_w=4, pad_w_end=0),
    ),
    "a row by numbers": (
        {"n": 2, "c": 4, "length": 50, "k": 6, "kernel_size": "5", "padding": "same"},
        ConvProblem(2, 4, 1, 50, 6, 1, 5, pad_w=2),
    ),
    "an epilogue": (
        {"layer": "14-1-3-256-128", "bias": True, "activation": "silu"},
        ConvProblem.parse("14-1-3-256-128", epilogue=Epilogue(bias=True, activation=Activation.SILU)),
    ),
    "no epilogue": ({**SIZES, "bias": False, "residual": False, "activation": "none"}, OURS),
    "a short form with one": (
        {"layer": "14-1-3-256-128-bias-residual-relu", "dtype": "fp16"},
        ConvProblem.parse("14-1-3-256-128-bias-residual-relu", dtype="float16"),
    ),
    "behind a call": (
        {"layer": "Conv2d(4, 6, 3, padding=same, bias=False) 2x4x9x9"},
        ConvProblem(*(2, 4, 9, 9, 6, 3, 3), pad_h=1, pad_w=1),
    ),
    "behind a row": ({"layer": "(a): Conv1d(4, 6, 3, bias=False), 2x4x9"}, ConvProblem(*(2, 4, 1, 9, 6, 1, 3))),
    "beside a call": (
        {"layer": "Conv2d(4, 6, 3)", "input": "2x4x9x9", "activation": "relu", "dtype": "tf32"},
        ConvProblem(*(2, 4, 9, 9, 6, 3, 3), dtype=DType.TF32, epilogue=Epilogue(bias=True, activation=Activation.RELU)),
    ),
}


@pytest.mark.parametrize(("given", "expected"), SAME.values(), ids=SAME)
def test_a_spelling_means_what_ours_means(given: dict[str, Any], expected: ConvProblem) -> None:
    assert problem_from(given) == expected
    listed = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    (one, other), sizes = problems_from(["8-1-3-4-4", named(listed)])
    assert (one, other) == (ConvProblem.parse("8-1-3-4-4"), expected)
    assert sizes.shape == (2, 16)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "auto_pad": ({**SIZES, "auto_pad": "SAME"}, "auto_pad is 'SAME'; allowed: NOTSET, VALID, SAME_UPPER, SAME_LOWER"),
    "contradiction": (
        {**SIZES, "auto_pad": "SAME_UPPER", "pads": (0, 0, 0, 0)},
        "pads is [0, 0, 0, 0]; allowed: [1, 0, 1, 1], which auto_pad SAME_UPPER means here; or no auto_pad",
    ),
    "valid and pads": ({**SIZES, "auto_pad": "VALID", "pad": 1}, "pads is [1, 1, 1, 1]; allowed: [0, 0, 0, 0]"),
    "three pads": ({**SIZES, "pads": (1, 1, 1)}, "pads is (1, 1, 1); allowed: four numbers: top, left, bottom, right"),
    "four pads of a row": (
        {"n": 1, "c": 1, "length": 9, "k": 1, "kernel_size": 3, "pads": (1, 1, 1, 1)},
        "pads is (1, 1, 1, 1); allowed: two numbers: left, right",
    ),
    "a filter in three dimensions": (
        {"kernel_size": (3, 3, 3)},
        "kernel_size is (3, 3, 3); allowed: a number from 1, or",
    ),
    "twice": ({**SIZES, "pad": 1, "padding": 2}, "pad is 1; allowed: not together with padding, which sets it"),
    "twice by others": ({**SIZES, "strides": 2, "stride": 2}, "not together with"),
    "channels twice": ({**SIZES, "in_channels": 4}, "in_channels is 4; allowed: not together with c, which sets it"),
    "unknown activation": ({**SIZES, "activation": "tanh"}, "activation is 'tanh'; allowed: none, relu, relu6,"),
    "bias of another kind": ({**SIZES, "bias": 1}, "bias is 1; allowed: true or false"),
    "epilogue twice": (
        {"layer": "14-1-3-256-128-bias", "activation": "relu"},
        "activation is 'relu'; allowed: not together with layer, which sets bias",
    ),
    "stride twice": (
        {"layer": "14-1-3-256-128-stride2", "stride": 1},
        "stride_h is 1; allowed: not together with layer, which sets 2",
    ),
    "stride twice, in the long form": (
        {"layer": "14x14-1-3x3-256-128-stride2x2-pad1x1-dilation1x1-groups1", "stride_w": 1},
        "stride_w is 1; allowed: not together with layer, which sets 2",
    ),
    "padding twice": (
        {"layer": "14-1-3-256-128-pad0", "pads": [1, 1, 1, 1]},
        "pad_h is 1; allowed: not together with layer, which sets 0",
    ),
    "end twice": (
        {"layer": "14-1-3-256-128-end2", "pads": [1, 1, 1, 1]},
        "pad_h_end is 1; allowed: not together with layer, which sets 2",
    ),
    "groups twice": ({"layer": "14-1-3-256-128-groups4", "groups": 2}, "groups is 2; allowed: not together with layer"),
    "dtype": ({**SIZES, "dtype": "fp8"}, "dtype is 'fp8'; allowed: float32, tf32, float16, bfloat16"),
    "layout": ({**SIZES, "layout": "hwcn"}, "layout is 'hwcn'; allowed: nchw, nhwc"),
    "input of a name": ({"layer": "14-1-3-256-128", "input": "1x1x1x1"}, "input is '1x1x1x1'; allowed: only together"),
    "a call and more": (
        {"layer": "Conv2d(4, 6, 3)", "input": "2x4x9x9", "stride": 2},
        "stride_h is 2; allowed: not together with Conv2d(...), which sets it",
    ),
    "a call alone": (
        {"layer": "Conv2d(4, 6, 3)"},
        "layer is 'Conv2d(4, 6, 3)'; allowed: with the shape of its input behind, Conv2d(...) 1x4x56x56; or as input",
    ),
    "a row alone": ({"layer": "Conv1d(4, 6, 3)"}, "with the shape of its input behind, Conv1d(...) 1x4x56; or as"),
    "a shape behind it that is none": ({"layer": "Conv2d(4, 6, 3) 2x4"}, "input is '2x4'; allowed: batch x channels"),
    "no padding": (
        {**SIZES, "padding": "samee"},
        "padding is 'samee'; allowed: a number from 0, two as 1x2 or 1,2, four as top,left,bottom,right, same or valid",
    ),
    "padding below 0": ({**SIZES, "padding": "-1"}, "padding is '-1'; allowed: a number from 0, two as"),
    "three of padding": ({**SIZES, "padding": "1,2,3"}, "padding is '1,2,3'; allowed: a number from 0, two as 1x2"),
    "a pad below 0": ({**SIZES, "pads": "-1,0,0,0"}, "pads is '-1,0,0,0'; allowed: four numbers: top"),
    "a stride of none": ({**SIZES, "stride": "-1"}, "stride is '-1'; allowed: a number from 1, or two as 3x3 or 3,3"),
    "another kind": (
        {"layer": "ConvTranspose2d(4, 6, 3)", "input": "2x4x9x9"},
        "ConvTranspose2d is a transposed convolution, which is not computed here",
    ),
}


@pytest.mark.parametrize(("given", "said"), BAD.values(), ids=BAD)
def test_a_bad_spelling_is_named_with_its_value_and_what_is_allowed(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        problem_from(given)
    assert said in str(caught.value)


def test_padding_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^r is 11; allowed: .* no larger than the padded input, 10 here"):
        problem_from({**SIZES, "r": 11, "pads": (0, 5, 1, 5)})


@given(
    *(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.integers(1, 3)),
    st.sampled_from([AutoPad.SAME_UPPER, AutoPad.SAME_LOWER]),
)
def test_same_gives_one_output_a_stride(size: int, taps: int, stride: int, dilation: int, auto_pad: AutoPad) -> None:
    sizes = {"n": 1, "c": 1, "h": size, "w": 1, "k": 1, "r": taps, "s": 1, "stride_h": stride, "dilation_h": dilation}
    problem = problem_from({**sizes, "auto_pad": auto_pad})
    assert problem.p == -(-size // stride)
    odd = problem.pad_h_end - problem.pad_h
    assert odd in ((0, 1) if auto_pad is AutoPad.SAME_UPPER else (0, -1))
