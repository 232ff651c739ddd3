"""One layer in a worker process: choose where nothing was chosen before, then time the chosen side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from math import inf
from statistics import median
from typing import Final

from benchmarks.contest.choice import CUDNN, Candidate, interleaved, kept_plan, shortlist
from benchmarks.contest.rows import Row, Side
from conv_advisor.app.workers.tasks import report_progress
from conv_advisor.data.errors import LaunchFailed, OutOfMemory, RunError
from conv_advisor.data.measurement import Device, L2State, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import LEAST_PRUNED_MS, OUTCOMES
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.reference import tolerance
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch

QUICK: Final = StopRule(min_samples=3, max_samples=5, max_noise=0.02, budget_ms=10)
"""How a candidate is timed that may not be among the fastest."""
PRUNE_FACTOR: Final = 3.0
"""A candidate whose first launch is so many times slower than the best so far is out."""
OPERANDS: Final = "operands"
"""What is reported to be in hand before the first candidate."""
ROUNDS: Final = 2
"""How often the sides take turns under one L2 state."""


@dataclass(frozen=True)
class Order:
    """What is to be done for one layer.

    Parameters
    ----------
    problem : ConvProblem
    candidates : tuple of Candidate
        Chosen before, on another run.
    fresh : tuple of str
        Variants that are timed here to choose among them.
    has_every_plan : bool
        Whether every plan of the graph API is timed, or the first of each engine; where cuDNN's variants are fresh.
    keep : (int, int)
        How many of cuDNN's and of ours are timed again.
    states : tuple of L2State
    rule : StopRule
        Applies to all rounds together.
    excluded : frozenset of str
        Names of candidates, or ids of variants, that brought a worker down.
    choosing : str
        The run on which the candidates were chosen.
    """

    problem: ConvProblem
    candidates: tuple[Candidate, ...] = ()
    fresh: tuple[str, ...] = ()
    has_every_plan: bool = True
    keep: tuple[int, int] = (3, 2)
    states: tuple[L2State, ...] = (L2State.WARM, L2State.COLD)
    rule: StopRule = field(default_factory=StopRule)
    excluded: frozenset[str] = frozenset()
    choosing: str = ""


@dataclass
class _Layer:
    """The layer that is being measured: its tensors, and what failed so far."""

    runner: Runner
    order: Order
    operands: Operands
    failures: dict[str, str] = field(default_factory=dict)

    def ready(self, candidate: Candidate) -> tuple[Launch, FirstRun] | None:
        """Prepare and verify; None where that fails, which is noted."""
        problem = self.order.problem
        report_progress(0, candidate.name)
        if {candidate.name, candidate.variant} & self.order.excluded:
            return None
        variant = VARIANTS[candidate.variant]
        if variant.why_not(problem, self.runner.device):
            return None
        try:
            plan = json.loads(candidate.plan) if candidate.plan else None
            launch = self.runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES, plan)
            first = self.runner.first_run(problem, launch, self.operands)
        except Exception as error:  # whatever one kernel's launcher does wrong, the others are still compared
            self.note(candidate, error)
            return None
        if not first.max_error <= tolerance(problem):
            self.failures[candidate.name] = f"{Outcome.WRONG_RESULT}: max error {first.max_error:.3g}"
            return None
        return launch, first

    def sample(
        self, candidate: Candidate, launch: Launch, first: FirstRun, rule: StopRule, l2: L2State
    ) -> tuple[float, ...]:
        """Time; nothing where that fails, which is noted."""
        report_progress(0, candidate.name)
        try:
            return self.runner.sample(self.order.problem, launch, self.operands, first.launch_ms, rule, l2).samples_ms
        except Exception as error:  # as above
            self.note(candidate, error)
            return ()

    def note(self, candidate: Candidate, error: Exception) -> None:
        """Write a failure down; one that leaves the context unusable ends the process."""
        if isinstance(error, LaunchFailed):
            raise error
        outcome = OUTCOMES.get(type(error), Outcome.CRASHED) if isinstance(error, RunError) else Outcome.CRASHED
        detail = " ".join(str(error).split())[:200]
        if outcome is not Outcome.NOT_SUPPORTED or not candidate.is_cudnn:  # cuDNN refuses much, by design
            self.failures[candidate.name] = f"{outcome}: {type(error).__name__}: {detail}"


def measure_layer(opener: str, device_id: str, order: Order) -> list[Row]:
    """One row an L2 state.

    Parameters
    ----------
    opener : str
        ``module:function`` that opens the device.
    device_id : str
    order : Order

    Raises
    ------
    LaunchFailed
        The device's context is unusable: the process must end.
    """
    runner = _open(opener, device_id)
    report_progress(0, OPERANDS)
    try:
        operands = runner.make_operands(order.problem, 0)
    except OutOfMemory as error:
        failures = {OPERANDS: f"{Outcome.OUT_OF_MEMORY}: {error}"}
        return [Row(order.problem, l2, None, None, failures=failures, device=runner.device.id) for l2 in order.states]
    layer = _Layer(runner, order, operands)
    candidates = shortlist([*order.candidates, *_choose(layer)], *order.keep)
    prepared = {each: found for each in interleaved(candidates) if (found := layer.ready(each))}
    rows = [_row(layer, l2, prepared) for l2 in order.states]
    runner.release()
    return rows


def describe(opener: str, device_id: str) -> Device:
    """The device that `measure_layer` runs on."""
    return _open(opener, device_id).device


@cache
def _open(opener: str, device_id: str) -> Runner:
    module, _, function = opener.partition(":")
    runner: Runner = getattr(import_module(module), function)(device_id)
    return runner


def _choose(layer: _Layer) -> Iterator[Candidate]:
    """The fresh candidates with their times, each timed quickly."""
    best_ms = {True: inf, False: inf}
    for candidate in _fresh(layer):
        found = layer.ready(candidate)
        if found is None:
            continue
        launch, first = found
        if first.launch_ms > max(LEAST_PRUNED_MS, PRUNE_FACTOR * best_ms[candidate.is_cudnn]):
            continue
        samples = layer.sample(candidate, launch, first, QUICK, L2State.WARM)
        if samples:
            best_ms[candidate.is_cudnn] = min(best_ms[candidate.is_cudnn], median(samples))
            plan = candidate.plan or kept_plan(candidate.variant, json.dumps(launch.plan))
            yield replace(candidate, plan=plan, chosen_ms=median(samples))


def _fresh(layer: _Layer) -> Iterator[Candidate]:
    fresh = layer.order.fresh
    has_plans = layer.order.has_every_plan and any(variant in CUDNN for variant in fresh)
    plans = _plans(layer) if has_plans else {}
    for variant in fresh:
        yield from (Candidate(variant, plan) for plan in plans.get(variant, ("",)))


def _plans(layer: _Layer) -> dict[str, list[str]]:
    """Every plan that the library offers, by variant; without any where asking fails."""
    plans: dict[str, list[str]] = {}
    try:
        for variant, plan in layer.runner.plans(layer.order.problem):
            plans.setdefault(variant, []).append(json.dumps(plan))
    except RunError as error:
        layer.note(Candidate("cudnn.graph"), error)
    return plans


def _row(layer: _Layer, l2: L2State, prepared: dict[Candidate, tuple[Launch, FirstRun]]) -> Row:
    rounds = _rounds(layer, l2, prepared)
    choosing = layer.order.choosing
    chosen_ms = {each: each.chosen_ms for each in rounds}
    if l2 is not L2State.WARM:  # nothing was chosen under this state: the first round chooses, the others are reported
        choosing = f"the first of {ROUNDS} rounds, among the fastest of: {choosing}"
        chosen_ms = {each: median(samples[0]) for each, samples in rounds.items()}
        rounds = {each: samples[1:] or samples for each, samples in rounds.items()}
    timed = {each: tuple(ms for samples in rounds[each] for ms in samples) for each in rounds}
    sides = {
        is_cudnn: min((each for each in timed if each.is_cudnn is is_cudnn), key=chosen_ms.__getitem__, default=None)
        for is_cudnn in (True, False)
    }
    cudnn, ours = (
        None if each is None else Side(each.variant, each.plan, chosen_ms[each], timed[each])
        for each in (sides[True], sides[False])
    )
    others_ms: dict[str, float] = {}
    for each, samples in timed.items():
        if each not in sides.values():
            others_ms[each.variant] = min(others_ms.get(each.variant, inf), median(samples))
    return Row(layer.order.problem, l2, cudnn, ours, choosing, dict(layer.failures), others_ms, layer.runner.device.id)


def _rounds(
    layer: _Layer, l2: L2State, prepared: dict[Candidate, tuple[Launch, FirstRun]]
) -> dict[Candidate, list[tuple[float, ...]]]:
    """The samples of every round, of those that were timed in all of them."""
    rule = _share_of(layer.order.rule, ROUNDS)
    found: dict[Candidate, list[tuple[float, ...]]] = {each: [] for each in prepared}
    for _ in range(ROUNDS):
        for each, (launch, first) in prepared.items():
            found[each].append(layer.sample(each, launch, first, rule, l2))
    return {each: samples for each, samples in found.items() if all(samples)}


def _share_of(rule: StopRule, count: int) -> StopRule:
    """A rule for one of so many rounds."""
    return replace(
        rule,
        min_samples=max(2, -(-rule.min_samples // count)),
        max_samples=max(2, rule.max_samples // count),
        budget_ms=rule.budget_ms / count,
    )
