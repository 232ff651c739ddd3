"""One layer of the contest on a real GPU, chosen by a first pass over everything there is."""

from __future__ import annotations

import pytest

from benchmarks.contest.choice import CUDNN, OURS
from benchmarks.contest.layer import Order, measure_layer
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.stopping import StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_exclusive]


@pytest.mark.parametrize("has_every_plan", [False, True])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_both_sides_are_timed_warm_and_cold(dtype: DType, layout: Layout, has_every_plan: bool) -> None:
    problem = ConvProblem.parse("14-1-3-24-16", dtype=dtype, layout=layout)
    rule = StopRule(max_samples=6, budget_ms=10)
    fresh = (*CUDNN, *OURS)
    runner = open_runner("cuda:0")
    rows = measure_layer(runner, Order(problem, fresh=fresh, has_every_plan=has_every_plan, rule=rule))
    assert [row.l2 for row in rows] == [L2State.WARM, L2State.COLD]
    for row in rows:
        assert row.device == runner.device.id
        assert row.cudnn is not None
        assert row.cudnn.variant in CUDNN
        assert min(row.cudnn.samples_ms) > 0
        if layout is Layout.NCHW:
            assert row.ours is not None
            assert row.ours.variant in OURS
        assert not [why for why in row.failures.values() if why.startswith(("wrong_result", "crashed"))]
