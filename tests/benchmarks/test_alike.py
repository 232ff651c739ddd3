"""What dilated, one-dimensional and rectangular layers are held against, and the table of two sweeps."""

from __future__ import annotations

import pytest

from benchmarks.alike import KINDS, alike, drawn, kind_of, report
from conv_advisor.data.problem import ConvProblem

_DILATED = "65x65-8-3x3-256-512-stride1x1-pad12x12-dilation12x12-groups1"
_WIDE = "1x999-8-1x3-512-512-stride1x2-pad0x0-dilation1x1-groups1"
_FLAT = "17x17-8-1x7-192-160-stride1x1-pad0x3-dilation1x1-groups1"


def _parse(short: str) -> ConvProblem:
    return ConvProblem.parse(short, dtype="float16", layout="nhwc")


@pytest.mark.parametrize(
    ("short", "kind"),
    [(_DILATED, "dilated"), (_WIDE, "one-dimensional"), (_FLAT, "rectangular"), ("14-8-3-64-64", None)],
)
def test_kinds_are_told_apart(short: str, kind: str | None) -> None:
    assert kind_of(_parse(short)) == kind


def test_a_dilated_layer_is_held_against_itself_without_dilation() -> None:
    assert alike(_parse(_DILATED)) == _parse("65-8-3-256-512")


def test_without_padding_the_plane_shrinks_so_that_outputs_stay() -> None:
    layer = _parse("65x65-8-3x3-256-512-stride1x1-pad0x0-dilation4x4-groups1")
    assert (alike(layer).p, alike(layer).q) == (layer.p, layer.q)


@pytest.mark.parametrize("short", [_WIDE, _FLAT])
def test_other_layers_are_held_against_squares_of_about_their_operations(short: str) -> None:
    layer = _parse(short)
    other = alike(layer)
    assert (other.r, other.s, other.stride_w, other.k) == (3, 3, 1, layer.k)
    assert other.flops == pytest.approx(layer.flops, rel=0.05)


def test_layers_are_drawn_of_every_kind_and_the_same_by_the_same_seed() -> None:
    layers = drawn(3, 0)
    assert [kind_of(layer) for layer in layers] == [kind for kind in KINDS for _ in range(3)]
    assert layers == drawn(3, 0) != drawn(3, 1)


def test_the_variant_of_the_first_sweep_is_told_by_the_second() -> None:
    layer = _parse(_DILATED)
    first = {layer: {"cuda.a": 1.0, "cudnn.b": 2.0}, alike(layer): {"cuda.a": 1.0}}
    again = {layer: {"cuda.a": 3.0, "cudnn.b": 0.5}, alike(layer): {"cuda.a": 1.5}}
    line = next(line for line in report([layer], first, again).splitlines() if line.startswith("| dilated"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["dilated", "1", "2.00", "2.00", "1"]
