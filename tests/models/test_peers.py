"""What other libraries cost, read from what the benchmark wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.rivals.rows import ADVICE, DEFAULT, ORACLE, TUNED, Row, write
from conv_advisor.data import parquet
from conv_advisor.data.errors import StoreError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.evaluation.peers import PEERS, RULES, read_peers
from conv_advisor.models.evaluation.tuning import Trial

PROBLEM = ConvProblem.parse("7-1-3-8-8", dtype="float16", layout="nhwc")
HEURISTIC_B = "cudnn.graph.heuristic_b"
TIMES_MS = {ORACLE: 1.0, ADVICE: 1.1, "cudnn.graph.heuristic_a": 1.6, HEURISTIC_B: 1.5, DEFAULT: 2.0, TUNED: 1.001}
FIRST_CALLS_S = {DEFAULT: 0.003, TUNED: 0.5}


def rows() -> list[Row]:
    """One layer, each time with a spread of a per cent, and one that has no oracle."""
    timed = [
        Row(
            PROBLEM,
            rule,
            "" if rule in FIRST_CALLS_S else "cudnn.graph.eng1",
            samples_ms=(0.99 * time_ms, time_ms, 1.01 * time_ms),
            first_call_s=FIRST_CALLS_S.get(rule),
            tree="9770108235c3",
        )
        for rule, time_ms in TIMES_MS.items()
    ]
    return [*timed, Row(replace(PROBLEM, n=2), DEFAULT, samples_ms=(1.0,))]


def test_slowdowns_of_peers_are_against_the_oracle_of_the_same_run(tmp_path: Path) -> None:
    write(rows(), tmp_path / "gpu.parquet")
    peers = read_peers(tmp_path / "gpu.parquet")
    found = peers.results
    assert {rule: list(of) for rule, of in found.items()} == {rule: [PROBLEM] for rule in RULES}
    assert (found[DEFAULT][PROBLEM].slowdown, found[DEFAULT][PROBLEM].is_tied) == (2.0, False)
    assert (found[TUNED][PROBLEM].slowdown, found[TUNED][PROBLEM].is_tied) == (1.001, True)
    assert (found[HEURISTIC_B][PROBLEM].slowdown, found[HEURISTIC_B][PROBLEM].is_oracle) == (1.5, True)
    assert peers.oracle == {PROBLEM: "cudnn.graph.eng1"}
    assert peers.trials == {PROBLEM: Trial(1.1, 2.0, 1.001, 0.003, 0.5)}
    assert peers.trees == ("9770108235c3",)


def test_the_shipped_run_has_heuristic_b_and_pytorch() -> None:
    peers = read_peers(PEERS / "nvidia-h200.parquet")
    assert {rule: len(of) for rule, of in peers.results.items()} == {HEURISTIC_B: 1598, DEFAULT: 1599, TUNED: 1599}
    assert len(peers.oracle) == len(peers.trials) == 1599


def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    parquet.write(pa.table({"rule": ["oracle"]}), tmp_path / "gpu.parquet")
    for name in ("gpu.parquet", "missing.parquet"):
        with pytest.raises(StoreError, match=name):
            read_peers(tmp_path / name)
