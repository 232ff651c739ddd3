"""What a teacher looks at beside the features."""

from __future__ import annotations

import numpy as np
import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.implicit_gemm.choice import choose_cut
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as tensor
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Tile
from conv_advisor.models.costs import roofline_ms
from conv_advisor.models.training.hints import HINTS, hint_matrix

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
CPU = Device(id="cpu", name="CPU", kind="cpu", processors=8)
ROOFLINES = {(DType.FLOAT32, Layout.NCHW): np.array([1e10, 4e9, 0.002], np.float32)}


def test_times_are_against_the_roofline_and_against_each_other() -> None:
    pointwise, wide = ConvProblem.parse("14-32-1-256-512"), ConvProblem.parse("14-32-3-256-512")
    hints = hint_matrix([pointwise, wide], ROOFLINES, H200)
    assert hints.shape == (2, len(HINTS))
    assert hints.dtype == np.float32
    one, other = (dict(zip(HINTS, row.tolist(), strict=True)) for row in hints)
    cut = choose_cut(wide, H200)
    assert isinstance(cut.tile, Tile)
    expected_ms = tensor.expected(wide, H200)[cut] / 1000
    least_ms = roofline_ms(wide, ROOFLINES[DType.FLOAT32, Layout.NCHW].tolist())
    assert other["log2_implicit_gemm_roofline"] == pytest.approx(np.log2(expected_ms / least_ms), rel=1e-5)
    assert other["log2_implicit_gemm_cluster"] == np.log2(cut.cluster)
    times = one["log2_pointwise_roofline"], one["log2_implicit_gemm_roofline"]
    assert one["log2_pointwise_implicit_gemm"] == pytest.approx(times[0] - times[1], abs=1e-5)
    absent = {one[name] for name in HINTS if "packed" in name}
    assert absent == {other["log2_pointwise_roofline"]}
    assert len(absent) == 1


def test_on_a_cpu_all_problems_look_alike() -> None:
    asked = [ConvProblem.parse("14-32-1-256-512"), ConvProblem.parse("56-1-3-64-64", dtype="float16")]
    hints = hint_matrix(asked, ROOFLINES, CPU)
    assert np.isfinite(hints).all()
    assert (hints == hints[0, 0]).all()


def test_none_asked_is_no_row() -> None:
    assert hint_matrix([], ROOFLINES, H200).shape == (0, len(HINTS))
