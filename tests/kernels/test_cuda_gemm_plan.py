"""How a product by cuBLAS takes images of one pixel: all of them together, or each for itself."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean

import pytest

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.gemm.plan import is_apart

TIMES = json.loads((Path(__file__).parent / "data" / "gemm_one_pixel_us.json").read_text())
"""Layers of one pixel on an H200: dtype, n, k, c, us of one product of all images (NHWC), us of each apart (NCHW)."""


@pytest.mark.parametrize("layout", Layout)
def test_the_rule_takes_the_faster_way_of_one_pixel(layout: Layout) -> None:
    behind = []
    for dtype, n, k, c, together, apart in TIMES:
        problem = ConvProblem(n=n, c=c, h=1, w=1, k=k, r=1, s=1, dtype=dtype, layout=layout)
        behind.append((apart if is_apart(problem) else together) / min(together, apart))
    assert geometric_mean(behind) < 1.025
    assert max(behind) < 1.8
    assert geometric_mean(together / min(together, apart) for *_, together, apart in TIMES) > 1.35
    assert geometric_mean(apart / min(together, apart) for *_, together, apart in TIMES) > 1.4


@pytest.mark.parametrize(
    "layer", ["2x1-16-1-8-8", "1x1-16-3x3-8-8-pad1", "1x1-16-1-8-8-stride2", "1x1-16-1-8-8-groups2"]
)
def test_elsewhere_the_layout_decides(layer: str) -> None:
    assert is_apart(ConvProblem.parse(layer, layout=Layout.NCHW))
    assert not is_apart(ConvProblem.parse(layer, layout=Layout.NHWC))
