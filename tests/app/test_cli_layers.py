"""Layers as people write them: with options, pasted from PyTorch, and in files of three kinds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from conv_advisor.app.cli.layers import Written, read_layers, written
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.pasted import is_call
from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout

PLAIN = Written(DType.FLOAT32, Layout.NCHW, {}, None)
BIAS = Epilogue(bias=True)
STEM = ConvProblem(1, 3, 224, 224, 64, 7, 7, 2, 2, 3, 3, epilogue=BIAS)


def test_options_change_a_layer_given_by_name() -> None:
    how = written(DType.TF32, Layout.NHWC, "2x1", "0,3", "2", 2, None)
    problem = how.read("56-8-3-64-32")
    expected = ConvProblem.parse(
        "56-8-3-64-32",
        dtype="tf32",
        layout="nhwc",
        stride_h=2,
        stride_w=1,
        pad_h=0,
        pad_w=3,
        dilation_h=2,
        dilation_w=2,
        groups=2,
    )
    assert problem == expected


def test_options_say_what_follows_and_pad_each_side() -> None:
    ending = {"bias": True, "residual": True, "activation": Activation.RELU6}
    how = written(DType.FLOAT16, Layout.NHWC, None, "0,0,1,2", None, None, None, **ending)
    expected = ConvProblem(
        *(1, 3, 8, 8, 4, 3, 3),
        pad_h_end=1,
        pad_w_end=2,
        dtype=DType.FLOAT16,
        layout=Layout.NHWC,
        epilogue=Epilogue(bias=True, residual=True, activation=Activation.RELU6),
    )
    assert how.read("8-1-3-4-3") == expected
    assert written(DType.TF32, Layout.NCHW, None, "valid", None, None, None).read("8-1-3-4-3").pad_h == 0
    with pytest.raises(InvalidInput, match=r"^padding is 'wide'; allowed: a number from 0, two"):
        written(DType.TF32, Layout.NCHW, None, "wide", None, None, None).read("8-1-3-4-3")


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "1x", "1x2x3", "9" * 11, "٣"])
def test_a_pair_that_is_none_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--stride is .*; allowed: a number, or two"):
        written(DType.TF32, Layout.NCHW, text, None, None, None, None)


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        (
            "Conv2d(64, 128, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)",
            "1x64x56x56",
            ConvProblem(1, 64, 56, 56, 128, 3, 3, 2, 2, 1, 1),
        ),
        ("Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3))", "1x3x224x224", STEM),
        ("nn.Conv2d(3, 64, 7, 2, 3)", "(1, 3, 224, 224)", STEM),
        ("torch.nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=True)", "1×3×224×224", STEM),
        ("  (conv1): Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3))", "1x3x224x224", STEM),
        (
            "Conv2d(32, 32, kernel_size=(1, 5), padding='same', dilation=(1, 2), groups=32)",
            "8x32x9x9",
            ConvProblem(8, 32, 9, 9, 32, 1, 5, pad_h=0, pad_w=4, dilation_w=2, groups=32, epilogue=BIAS),
        ),
        ("Conv2d(4, 8, 2, padding=valid)", "1x4x5x5", ConvProblem(1, 4, 5, 5, 8, 2, 2, epilogue=BIAS)),
        ("Conv2d(4, 8, 2, padding='valid')", "1x4x5x5", ConvProblem(1, 4, 5, 5, 8, 2, 2, epilogue=BIAS)),
        (
            "Conv2d(4, 8, 2, padding='same', bias=False)",
            "1x4x5x5",
            ConvProblem(1, 4, 5, 5, 8, 2, 2, pad_h_end=1, pad_w_end=1),
        ),
        (
            "Conv1d(4, 8, kernel_size=(3,), stride=(2,), padding=(1,), bias=False)",
            "2x4x50",
            ConvProblem(2, 4, 1, 50, 8, 1, 3, stride_w=2, pad_w=1),
        ),
    ],
)
def test_a_layer_is_read_as_pytorch_prints_it(text: str, shape: str, expected: ConvProblem) -> None:
    assert is_call(text)
    assert problem_from({"layer": text, "input": shape}) == expected


def test_what_pytorch_prints_is_what_its_layer_computes() -> None:
    torch = pytest.importorskip("torch", reason="what prints the layer needs the extra torch")
    layer = torch.nn.Conv2d(6, 8, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
    problem = problem_from({"layer": str(layer), "input": "2x6x11x13"})
    assert layer(torch.zeros(problem.x_shape)).shape == problem.y_shape
    assert layer.weight.shape == problem.weight_shape


@pytest.mark.parametrize(
    ("text", "shape", "said"),
    [
        ("Conv2d(3, 64)", "1x3x8x8", "kernel_size is missing"),
        ("Conv2d(3, 64, 3, strides=2)", "1x3x8x8", "strides is unknown"),
        ("Conv2d(3, 64, 3", "1x3x8x8", "of numbers"),
        ("Conv2d(3, 64, kernel)", "1x3x8x8", "of numbers"),
        ("Conv2d(3, 64, __import__('os').system('true'))", "1x3x8x8", "of numbers"),
        ("Conv2d(3, 64, 3).cuda", "1x3x8x8", "of numbers"),
        (f"Conv2d(3, 64, {'(' * 500}3{')' * 500})" + " " * 1000, "1x3x8x8", "of numbers"),
        ("Conv2d(3, 64, 3, stride=same)", "1x3x8x8", "of numbers"),
        ("Conv2d(3, 64, 3, padding=samee)", "1x3x8x8", "padding is 'samee'; allowed: a number from 0, two"),
        ("Conv2d(3, 64, 3, padding_mode=reflect)", "1x3x8x8", "padding_mode is 'reflect'; allowed: zeros"),
        ("Conv2d(3, 64, 3, padding_mode='reflect')", "1x3x8x8", "padding_mode is 'reflect'; allowed: zeros"),
        ("Conv2d(3, 64, 3, stride=2, padding='same')", "1x3x8x8", "numbers, with a stride of 2"),
        ("Conv1d(3, 64, 3)", "1x3x8x8", "input is '1x3x8x8'; allowed: batch x channels x length"),
        ("Conv3d(3, 64, 3)", "1x3x8x8", "Conv3d is a convolution in three dimensions, which is not computed here"),
        ("nn.ConvTranspose2d(3, 64, 3)", "1x3x8x8", "ConvTranspose2d is a transposed convolution, which is not"),
        ("ConvTranspose3d(3, 64, 3)", "1x3x8x8", "ConvTranspose3d is a transposed convolution"),
        ("Conv4d(3, 64, 3)", "1x3x8x8", "Conv4d is another layer"),
        ("Conv2d(3, 64, (3, 3, 3))", "1x3x8x8", "kernel_size is"),
        ("Conv2d(3, 64, 3)", "3x8x8", "input is '3x8x8'; allowed: batch x channels"),
        ("Conv2d(3, 64, 3)", "1x8x8x3", "input is '1x8x8x3'; allowed: 3 channels"),
        ("Conv2d(3, 64, 3.5)", "1x3x8x8", "r is 3.5"),
        ("Conv2d(3, True, 3)", "1x3x8x8", "k is True"),
        ("Conv2d(3, 64, 3, padding='wide')", "1x3x8x8", "padding is 'wide'"),
        ("Conv2d(3, 64, 9)", "1x3x8x8", ""),
    ],
)
def test_a_pasted_layer_that_is_none_says_what_is_wrong(text: str, shape: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        problem_from({"layer": text, "input": shape})
    assert said in str(caught.value)


LISTS = {
    "names": "14-1-3-256-128\n\n# a remark\n56-32-1-64-256 float16 nhwc  # another\n",
    "csv": "layer,dtype,layout\n14-1-3-256-128,,\n56-32-1-64-256,float16,nhwc\n",
    "csv of sizes": "n,c,h,w,k,r,s,pad,dtype,layout\n1,128,14,14,256,3,3,1,,\n\n32,256,56,56,64,1,1,,float16,nhwc\n",
    "json lines": '{"layer": "14-1-3-256-128"}\n\n{"layer": "56-32-1-64-256", "dtype": "float16", "layout": "nhwc"}\n',
    "with a mark of its order and ends of another system": "\ufeff14-1-3-256-128\r\n56-32-1-64-256 float16 nhwc\r\n",
}
LISTED = [ConvProblem.parse("14-1-3-256-128"), ConvProblem.parse("56-32-1-64-256", dtype="float16", layout="nhwc")]


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_any_kind_is_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "layers").write_text(LISTS[kind], encoding="utf-8", newline="")
    assert read_layers(str(tmp_path / "layers"), PLAIN) == LISTED


def test_a_list_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LISTS["names"].encode())))
    assert read_layers("-", PLAIN) == LISTED


def test_options_hold_for_layers_that_do_not_say_otherwise(tmp_path: Path) -> None:
    how = Written(DType.TF32, Layout.NHWC, {"stride_h": 2, "stride_w": 2}, None)
    (tmp_path / "layers").write_text('{"layer": "9-1-3-4-4"}\n{"layer": "9-1-3-4-4", "stride": 1, "dtype": "float16"}')
    common = {"layout": "nhwc"}
    assert read_layers(str(tmp_path / "layers"), how) == [
        ConvProblem.parse("9-1-3-4-4", dtype="tf32", stride_h=2, stride_w=2, **common),
        ConvProblem.parse("9-1-3-4-4", dtype="float16", **common),
    ]


def test_pasted_layers_may_stand_in_a_list(tmp_path: Path) -> None:
    (tmp_path / "layers").write_text("(conv1): Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3))\n")
    how = Written(DType.FLOAT32, Layout.NCHW, {}, "1x3x224x224")
    assert read_layers(str(tmp_path / "layers"), how) == [STEM]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("14-1-3-256-128\n14-1-3\n", "layers line 2"),
        ("14-1-3-256-128 float16 nhwc more\n", "layers line 1"),
        ("14-1-3-256-128 int8\n", "layers line 1: dtype is 'int8'; allowed: float32"),
        ("Conv2d(3, 8, 3)\n", "layers line 1: --input is None; allowed: beside Conv2d(...) the shape of its input"),
        ('{"layer": "14-1-3-256-128"}\n{"layers": "x"}\n', "layers line 2"),
        ('{"layer": "14-1-3-256-128"}\n{"layer":\n', "line 2"),
        ('{"layer": "14-1-3-256-128"}\n[1]\n', "line 2"),
        ('{"n": 1.5}\n', "layers line 1"),
        ("layer,dtype\n14-1-3-256-128,float32,nchw\n", "line 2"),
        ("layer,dtype\n14-1-3-256-128,int8\n", "layers line 2"),
        ("layer\n\n14-1-3\n", "layers line 3"),
        ("", "at least one layer"),
        ("# nothing\n", "at least one layer"),
        ("layer,dtype\n", "at least one layer"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "layers").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_layers(str(tmp_path / "layers"), PLAIN)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "layers").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="readable text"):
        read_layers(str(tmp_path / "layers"), PLAIN)
