"""PyTorch's place taken by a peer that computes nothing: its times and troubles are told by the environment."""

from __future__ import annotations

import json
import os

from benchmarks.endings.rows import AUTOTUNED, COMPILED, EAGER
from benchmarks.rivals.pytorch import Called
from benchmarks.rivals.rows import DEFAULT
from conv_advisor.data.errors import LaunchFailed
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Launch

OPENER = "tests.benchmarks.peers:open_peer"
TROUBLE = "TESTS_PEER_TROUBLE"
"""JSON: a mode of PyTorch, and how its first call fails: refused, wrong, poisons."""
TIMES_MS = {DEFAULT: 3.0, "pytorch.benchmark": 2.5, COMPILED: 2.4, AUTOTUNED: 2.3}


class FakePeer:
    """Takes as long as `TIMES_MS` says, a tenth longer for an epilogue of its own kernels, and 0.5 s more to tune."""

    version = "a peer for tests"

    def call(self, problem: ConvProblem, operands: Operands, mode: str) -> Called:
        trouble = json.loads(os.environ.get(TROUBLE, "{}")).get(mode)
        if trouble == "refused":
            raise RuntimeError("GET was unable to find an engine to execute this computation")
        if trouble == "poisons":
            raise LaunchFailed("an illegal memory access was encountered")
        error = 0.5 if trouble == "wrong" else 0.0
        first_call_s = TIMES_MS[mode] / 1e3 + (0.0 if mode == DEFAULT else 0.5)
        launch = Launch(lambda *_operands: None)
        return Called(mode, problem, operands, launch, FirstRun(error, TIMES_MS[mode]), first_call_s)

    def sample(self, called: Called, _rule: StopRule) -> tuple[tuple[float, ...], bool]:
        of_plain = 1.1 if called.problem.epilogue and called.mode == EAGER else 1.0
        return (of_plain * TIMES_MS[called.mode],) * 3, True

    def release(self) -> None:
        return


def open_peer(_runner: Runner, _device_id: str) -> FakePeer:
    return FakePeer()
