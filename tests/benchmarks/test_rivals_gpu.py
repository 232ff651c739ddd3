"""One layer with real PyTorch beside real kernels, on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.rivals.layer import POOL, Order, measure_layer
from benchmarks.rivals.pytorch import open_peer
from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, TUNED
from benchmarks.turns.layer import Choice
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.stopping import StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.gpu_exclusive]


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_everybody_is_timed_in_replayed_graphs_and_tuning_happens(dtype: DType, layout: Layout) -> None:
    pytest.importorskip("torch", reason="PyTorch is who is compared with")
    problem = ConvProblem.parse("14-8-3-64-32", dtype=dtype, layout=layout)
    advised = {ADVICE: tuple(map(Choice, POOL))}
    order = Order(problem, advised, is_fresh=True, rule=StopRule(max_samples=6, budget_ms=10))
    runner = open_runner("cuda:0")
    rows = {row.rule: row for row in measure_layer(runner, open_peer(runner, "cuda:0"), order)}
    for rule in (ADVICE, ORACLE, "cudnn.heuristic_v7", "cudnn.graph.heuristic_a", DEFAULT, TUNED):
        assert min(rows[rule].samples_ms) > 0
        assert rows[rule].is_captured
        assert not (rule in (DEFAULT, TUNED) and rows[rule].failure)
    assert rows[TUNED].first_call_s > rows[TUNED].time_ms / 1e3
    assert rows[ORACLE].chosen_ms == min(rows[ORACLE].others_ms.values())
