"""One layer with its epilogue, with real PyTorch beside real kernels, on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.endings.layer import Order, measure_layer
from benchmarks.endings.pytorch import open_peer
from benchmarks.endings.rows import SIDES
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.stopping import StopRule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.gpu_exclusive,
    pytest.mark.filterwarnings("default"),  # PyTorch's own, when it compiles
]


@pytest.mark.parametrize("layout", Layout)
def test_every_side_is_timed_in_replayed_graphs(layout: Layout) -> None:
    pytest.importorskip("torch", reason="PyTorch is who is compared with")
    problem = ConvProblem.parse("14-8-1-256-64-bias-residual-relu", dtype=DType.FLOAT16, layout=layout)
    runner = open_runner("cuda:0")
    order = Order(problem, StopRule(max_samples=6, budget_ms=10))
    row = measure_layer(runner, open_peer(runner, "cuda:0"), order)
    assert set(row.timed) == set(SIDES), row.failures
    for timed in row.timed.values():
        assert min(timed.samples_ms) > 0
        assert timed.is_captured
