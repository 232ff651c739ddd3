"""One layer in a worker process: choose where nothing was chosen before, then time the chosen side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from statistics import median
from typing import Final

from benchmarks.contest.choice import CUDNN, interleaved, is_cudnn, shortlist
from benchmarks.contest.rows import Row, Side
from benchmarks.turns.layer import OPERANDS, ROUNDS, Choice, Layer, take_turns
from conv_advisor.app.workers.tasks import report_progress, runner
from conv_advisor.data.errors import OutOfMemory, RunError
from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.stopping import StopRule

QUICK: Final = StopRule(min_samples=3, max_samples=5, max_noise=0.02, budget_ms=10)
"""How to time a variant that may not be among the fastest."""


@dataclass(frozen=True)
class Order:
    """What is to be done for one layer.

    Parameters
    ----------
    problem : ConvProblem
    chosen_ms : dict of Choice to float
        Times on another run, which chooses.
    fresh : tuple of str
        Variants that are timed here to choose among them.
    has_every_plan : bool
        Whether every plan of the graph API is timed, or the first of each engine; where cuDNN's variants are fresh.
    keep : (int, int)
        How many of cuDNN's and of ours are timed again.
    states : tuple of L2State
    rule : StopRule
        Applies to all rounds together.
    choosing : str
        The run that chooses.
    """

    problem: ConvProblem
    chosen_ms: Mapping[Choice, float] = field(default_factory=dict, hash=False)
    fresh: tuple[str, ...] = ()
    has_every_plan: bool = True
    keep: tuple[int, int] = (3, 2)
    states: tuple[L2State, ...] = (L2State.WARM, L2State.COLD)
    rule: StopRule = field(default_factory=StopRule)
    choosing: str = ""


def measure(order: Order, excluded: frozenset[str]) -> list[Row]:
    """`measure_layer` on the device of this worker."""
    return measure_layer(runner(), order, excluded)


def measure_layer(runner: Runner, order: Order, excluded: frozenset[str] = frozenset()) -> list[Row]:
    """One row an L2 state.

    Parameters
    ----------
    runner : Runner
    order : Order
    excluded : frozenset of str
        Names of choices, or ids of variants, that brought a worker down.

    Raises
    ------
    LaunchFailed
        The device's context is unusable: the process must end.
    """
    report_progress(0, OPERANDS)
    try:
        operands = runner.make_operands(order.problem, 0)
    except OutOfMemory as error:
        failures = {OPERANDS: f"{Outcome.OUT_OF_MEMORY}: {error}"}
        return [Row(order.problem, l2, None, None, failures=failures, device=runner.device.id) for l2 in order.states]
    layer = Layer(runner, order.problem, operands, excluded)
    chosen_ms = {**order.chosen_ms, **_choose(layer, order)}
    kept = [ready for choice in interleaved(shortlist(chosen_ms, *order.keep)) if (ready := layer.prepare(choice))]
    rows = [_row(layer, order, l2, {choice: chosen_ms[choice] for choice in kept}) for l2 in order.states]
    runner.release()
    return rows


def _choose(layer: Layer, order: Order) -> dict[Choice, float]:
    """Times of the fresh choices, each timed quickly."""
    best_ms = {True: inf, False: inf}
    chosen_ms = {}
    for choice in _fresh(layer, order):
        if not layer.prepare(choice, best_ms[is_cudnn(choice)]):
            continue
        samples = layer.sample(choice, QUICK)
        if samples:
            chosen_ms[choice] = median(samples)
            best_ms[is_cudnn(choice)] = min(best_ms[is_cudnn(choice)], chosen_ms[choice])
        layer.ready.pop(choice, None)  # with its scratch memory: there may be hundreds of plans
    return chosen_ms


def _fresh(layer: Layer, order: Order) -> Iterator[Choice]:
    has_plans = order.has_every_plan and any(variant in CUDNN for variant in order.fresh)
    plans = plans_of(layer) if has_plans else {}
    for variant in order.fresh:
        yield from (Choice(variant, plan) for plan in plans.get(variant, ("",)))


def plans_of(layer: Layer) -> dict[str, list[str]]:
    """Every plan that the library offers, by variant; without any where asking fails."""
    plans: dict[str, list[str]] = {}
    try:
        for variant, plan in layer.runner.plans(layer.problem):
            plans.setdefault(variant, []).append(json.dumps(plan))
    except RunError as error:
        layer.note("cudnn.graph", error)
    return plans


def _row(layer: Layer, order: Order, l2: L2State, chosen_ms: dict[Choice, float]) -> Row:
    turns = take_turns({choice: partial(layer.sample, choice, l2=l2) for choice in chosen_ms}, order.rule)
    rounds = {choice: samples for choice, samples in turns.items() if all(samples)}
    choosing = order.choosing
    if l2 is not L2State.WARM:  # nothing was chosen under this state: the first round chooses, the others are reported
        choosing = f"the first of {ROUNDS} rounds, among the fastest of: {choosing}"
        chosen_ms = {choice: median(samples[0]) for choice, samples in rounds.items()}
        rounds = {choice: samples[1:] for choice, samples in rounds.items()}
    timed = {choice: tuple(ms for samples in rounds[choice] for ms in samples) for choice in rounds}
    cudnn, ours = (
        min((choice for choice in timed if is_cudnn(choice) is of_cudnn), key=chosen_ms.__getitem__, default=None)
        for of_cudnn in (True, False)
    )
    sides = [
        None if choice is None else Side(choice.variant, layer.plan_of(choice), chosen_ms[choice], timed[choice])
        for choice in (cudnn, ours)
    ]
    others_ms: dict[str, float] = {}
    for choice, samples in timed.items():
        if choice not in (cudnn, ours):
            others_ms[choice.variant] = min(others_ms.get(choice.variant, inf), median(samples))
    return Row(order.problem, l2, sides[0], sides[1], choosing, faults(layer), others_ms, layer.runner.device.id)


def faults(layer: Layer) -> dict[str, str]:
    """What failed, without variants that do not apply or are far behind, and without what cuDNN refuses by design."""
    usual = (Outcome.NOT_APPLICABLE, Outcome.PRUNED)
    return {
        name: why
        for name, why in layer.failures.items()
        if not why.startswith((*usual, Outcome.NOT_SUPPORTED) if name.startswith("cudnn.") else usual)
    }
