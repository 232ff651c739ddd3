"""How far outputs are from float64 and to which side they lean, without a GPU: on a CPU, beside a made-up peer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import leaning
from benchmarks.leaning import Distance, distance, distances, row
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import open_runner
from tests.benchmarks.peers import FakePeer

HOPPER = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)


def test_errors_towards_zero_lean_below_it_whatever_the_sign() -> None:
    expected = np.array([1.0, -2.0, 4.0, -1.0])
    assert distance(expected * 0.75, expected) == Distance(0.25, -0.25)
    assert distance(expected * 1.25, expected) == Distance(0.25, 0.25)
    assert distance(expected + np.array([0.5, 0.5, -0.5, -0.5]), expected) == Distance(0.125, 0.0)


def test_a_variant_is_compared_on_the_layers_that_it_computes() -> None:
    layers = [ConvProblem.parse(layer) for layer in ("9-2-3-4-4", "9-2-3-4-4-stride2", "9-2-5-4-4")]
    found = distances(open_runner("cpu"), FakePeer(), catalog.get("cpu.winograd"), layers)
    assert 0 < len(found) < len(layers)
    for ours, peers in found:
        assert 0 < ours.error < 1e-5
        assert abs(ours.leaning) < 1e-6
        assert peers == ours  # it leaves y as it was


def test_named_layers_have_a_line_each_in_both_layouts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leaning, "VARIANTS", {"cpu.winograd": (), "cpu.direct": ()})
    monkeypatch.setattr(leaning, "open_peer", lambda *_: FakePeer())
    monkeypatch.setattr("sys.argv", ["leaning", "--device", "cpu", "--layers", "9-2-3-4-4", "7-1-3-8-8"])
    leaning.main()
    names = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert {"| `cpu.winograd` 9-2-3-4-4-nchw", "| `cpu.direct` 7-1-3-8-8-nhwc"} <= set(names)
    assert len(names) == len(set(names))


def test_errors_are_averaged_as_ratios_and_leanings_as_they_are() -> None:
    found = [
        (Distance(1e-7, -3e-8), Distance(1e-6, 2e-8)),
        (Distance(1e-5, 1e-8), Distance(1e-6, -2e-8)),
    ]
    assert row("`cuda.x`", found) == "| `cuda.x` | 2 | 1.0e-06 | -1e-08 | 1.0e-06 | +0e+00 |"


@pytest.mark.parametrize("id_", leaning.VARIANTS)
def test_every_variant_has_layers(id_: str) -> None:
    asked = [replace(layer, dtype=dtype) for layer in leaning.VARIANTS[id_] for dtype in (DType.FLOAT32, DType.TF32)]
    assert sum(not catalog.get(id_).why_not(problem, HOPPER) for problem in asked) >= 2
