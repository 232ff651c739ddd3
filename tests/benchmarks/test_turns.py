"""Turns are fair, and a run knows what brings its worker down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.turns.layer import OPERANDS, ROUNDS, take_turns
from benchmarks.turns.run import MOST_LOST, MOST_RESTARTS, MOST_STRIKES, Run, paced
from conv_advisor.app.workers import tasks
from conv_advisor.data.errors import ConvAdvisorError, LaunchFailed, OutOfMemory, WorkerDied
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.stopping import StopRule


@dataclass(frozen=True)
class Order:
    problem: ConvProblem = field(default_factory=lambda: ConvProblem.parse("5-1-3-4-2"))


@dataclass
class FakeEngine:
    """Ends every task as it is told: what is in hand, and the error."""

    ends: list[tuple[str, ConvAdvisorError | None]]
    n_opened: int = 0
    excluded: list[frozenset[str]] = field(default_factory=list)

    def run(self, task: Callable[..., Any], *args: Any, deadline_s: float, on_progress: Any = None) -> Any:
        if task is tasks.describe_device:
            self.n_opened += 1
            return "a device"
        self.excluded.append(args[-1])
        in_hand, error = self.ends.pop(0)
        on_progress(0, in_hand)
        if error:
            raise error
        return ["a row"]


def run_on(*ends: tuple[str, ConvAdvisorError | None]) -> tuple[FakeEngine, Run[Order, str]]:
    engine = FakeEngine(list(ends))
    return engine, Run(engine, lambda: ["a row"], (), 1.0)  # type: ignore[arg-type]  # the engine is a fake


DIED, POISONED = WorkerDied("it ended"), LaunchFailed("an illegal memory access")


def test_everybody_has_a_turn_in_every_round_and_a_share_of_the_rule() -> None:
    order: list[str] = []

    def sample(name: str) -> Callable[[StopRule], tuple[float, ...]]:
        def take(rule: StopRule) -> tuple[float, ...]:
            order.append(name)
            assert (rule.max_samples, rule.budget_ms) == (20 // ROUNDS, 40 / ROUNDS)
            return () if name == "c" else (float(len(order)),)

        return take

    found = take_turns({name: sample(name) for name in "abc"}, StopRule(max_samples=20, budget_ms=40))
    assert order == list("abc") * ROUNDS
    assert found == {"a": [(1.0,), (4.0,)], "b": [(2.0,), (5.0,)], "c": [(), ()]}


def test_what_was_in_hand_is_left_out_of_the_next_try_and_at_last_of_all() -> None:
    bad = [("cuda.bad plan", DIED), ("cuda.good", None)]
    engine, run = run_on(*bad * MOST_STRIKES, ("cuda.good", None))
    for _ in range(MOST_STRIKES):
        rows, failures = run.measure(Order())
        assert rows == ["a row"]
        assert list(failures) == ["cuda.bad plan"]
        assert failures["cuda.bad plan"].startswith("crashed")
    _, failures = run.measure(Order())
    assert failures == {"cuda.bad": f"crashed: left out after {MOST_STRIKES} workers"}
    assert engine.excluded[:2] == [frozenset(), {"cuda.bad plan"}]
    assert engine.excluded[-1] == {"cuda.bad"}
    assert engine.n_opened == 1 + MOST_STRIKES


def test_a_layer_is_not_tried_for_ever() -> None:
    _, run = run_on(*[(f"cuda.{place}", POISONED) for place in range(MOST_RESTARTS)])
    rows, failures = run.measure(Order())
    assert rows == []
    assert [why.split(":")[0] for why in failures.values()] == ["launch_failed"] * MOST_RESTARTS
    assert not run.is_lost


@pytest.mark.parametrize("between", [[], [("cuda.a", None)]])
def test_a_device_whose_operands_bring_it_down_time_and_again_is_lost(between: list[Any]) -> None:
    _, run = run_on((OPERANDS, DIED), *between, *[(OPERANDS, DIED)] * (MOST_LOST - 1))
    for _ in range(MOST_LOST + len(between)):
        run.measure(Order())
    assert run.is_lost is not bool(between)


def test_an_error_that_leaves_the_worker_alive_costs_the_layer_alone() -> None:
    engine, run = run_on(("cuda.a", OutOfMemory("no memory left")), ("cuda.a", None))
    rows, failures = run.measure(Order())
    assert (rows, list(failures)) == ([], ["cuda.a"])
    assert run.measure(Order()) == (["a row"], {})
    assert engine.n_opened == 1


def test_no_layer_is_begun_after_the_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(paced([Order()] * 3, 3, 0.0)) == []
    assert "ends the run after 0 layers" in capsys.readouterr().err
    assert len(list(paced([Order()] * 3, 3, float("inf")))) == 3
