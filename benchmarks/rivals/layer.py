"""One layer in a worker: all that any rule would run, the oracle chosen on one pass, everything told on another."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any, Final

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS, kept_plan
from benchmarks.rivals.pytorch import MODES, Called, Peer
from benchmarks.rivals.rows import ADVICE, LAYER, ORACLE, Row
from conv_advisor.data.errors import ConvAdvisorError, LaunchFailed, OutOfMemory, RunError
from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import LEAST_PRUNED_MS, OUTCOMES
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.reference import tolerance
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch

POOL: Final = (*CUDNN, *reversed((*LIBRARIES, *OURS)))
"""Every variant; of ours the fast ones before the plain ones, since those that come first set the mark for pruning."""
CHOOSING: Final = StopRule(min_samples=3, max_samples=8, max_noise=0.005, budget_ms=15)
"""How all are timed to choose the oracle among them."""
PRUNE_FACTOR: Final = 3.0
"""A choice of the oracle whose first launch is so many times slower than the best so far is out."""
ROUNDS: Final = 2
"""How often everybody takes turns on the pass that is told."""
OPERANDS: Final = "operands"
"""What is said to be in hand before the first variant."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """One variant, and where that is an engine of which one plan is meant, JSON that rebuilds the plan."""

    variant: str
    plan: str = ""

    @property
    def name(self) -> str:
        """What a message calls it."""
        return f"{self.variant} {self.plan}".strip()


@dataclass(frozen=True)
class Order:
    """What is to be done for one layer.

    Parameters
    ----------
    problem : ConvProblem
    choices : mapping of rule to tuple of Choice
        What each rule would run, best first: the first that runs counts. Heuristics of cuDNN are asked on the device.
    predicted_ms : float or None
        The time predicted of the first choice of advice.
    near_best : tuple of Choice
        Beside all choices, what the oracle is chosen among.
    is_fresh : bool
        Whether every variant is tried, where nobody has measured the layer.
    rule : StopRule
        Applies to the pass that is told, all rounds together.
    excluded : frozenset of str
        Names of candidates, modes of PyTorch, or ids of variants, that brought a worker down.
    networks, tree : str
        As in `Row`.
    """

    problem: ConvProblem
    choices: Mapping[str, tuple[Choice, ...]]
    predicted_ms: float | None = None
    near_best: tuple[Choice, ...] = ()
    is_fresh: bool = False
    rule: StopRule = field(default_factory=StopRule)
    excluded: frozenset[str] = frozenset()
    networks: str = ""
    tree: str = ""


@dataclass(frozen=True)
class _Ready:
    """One choice, prepared and verified."""

    launch: Launch
    first: FirstRun
    prepared_s: float


@dataclass
class _Layer:
    """The layer that is being measured: its tensors, and what became of each choice."""

    runner: Runner
    peer: Peer
    order: Order
    operands: Operands
    tell: Tell
    ready: dict[Choice, _Ready] = field(default_factory=dict)
    same: dict[str, Choice] = field(default_factory=dict)
    """What was prepared first of a variant and plan, by both: two rules may name one plan in two ways."""
    failures: dict[str, str] = field(default_factory=dict)

    def prepare(self, choice: Choice, best_ms: float = inf) -> Choice | None:
        """Prepare and verify; the choice by which it is known here. None, noting why, if it fails or is far behind."""
        if choice in self.ready:
            return choice
        if choice.name in self.failures or not self._may_run(choice):
            return None
        started = time.perf_counter()
        try:
            plan = json.loads(choice.plan) if choice.plan else None
            variant, problem = VARIANTS[choice.variant], self.order.problem
            launch = self.runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES, plan)
            prepared_s = time.perf_counter() - started
            known = self.same.setdefault(_identity(choice.variant, launch), choice)
            if known != choice:
                return known if known in self.ready else None
            first = self.runner.first_run(problem, launch, self.operands)
        except Exception as error:  # whatever one launcher does wrong, the others are still compared
            self.note(choice.name, error)
            return None
        if not first.max_error <= tolerance(self.order.problem):
            self.failures[choice.name] = f"{Outcome.WRONG_RESULT}: max error {first.max_error:.3g}"
        elif first.launch_ms > max(LEAST_PRUNED_MS, PRUNE_FACTOR * best_ms):
            self.failures[choice.name] = f"{Outcome.PRUNED}: first launch took {first.launch_ms:.3g} ms"
        else:
            self.ready[choice] = _Ready(launch, first, prepared_s)
        return choice if choice in self.ready else None

    def sample(self, choice: Choice, rule: StopRule) -> tuple[float, ...]:
        """Times in ms; nothing where that fails, which is noted."""
        self.tell(choice.name)
        ready, problem = self.ready[choice], self.order.problem
        try:
            found = self.runner.sample(problem, ready.launch, self.operands, ready.first.launch_ms, rule, L2State.WARM)
        except Exception as error:  # as above
            self.note(choice.name, error)
            del self.ready[choice]
            return ()
        return found.samples_ms

    def call(self, mode: str) -> Called | None:
        """PyTorch's first call in this mode; None where it fails. That, or a wrong result, is noted."""
        self.tell(mode)
        if mode in self.order.excluded:
            return None
        try:
            called = self.peer.call(self.order.problem, self.operands, mode)
        except Exception as error:  # PyTorch has its own tree
            self.note(mode, error)
            return None
        if not called.first.max_error <= tolerance(self.order.problem):
            self.failures[mode] = f"{Outcome.WRONG_RESULT}: max error {called.first.max_error:.3g}"
        return called

    def note(self, name: str, error: Exception) -> None:
        """Write a failure down; one that leaves the context unusable ends the process."""
        if isinstance(error, LaunchFailed):
            raise error
        outcome = OUTCOMES.get(type(error), Outcome.CRASHED) if isinstance(error, RunError) else Outcome.CRASHED
        self.failures[name] = f"{outcome}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def _may_run(self, choice: Choice) -> bool:
        self.tell(choice.name)
        if {choice.name, choice.variant} & self.order.excluded:
            return False
        reason = VARIANTS[choice.variant].why_not(self.order.problem, self.runner.device)
        if reason:
            self.failures[choice.name] = f"{Outcome.NOT_APPLICABLE}: {reason}"
        return not reason


def measure_layer(runner: Runner, peer: Peer, order: Order, tell: Tell) -> list[Row]:
    """One row a rule, and one of the oracle.

    Parameters
    ----------
    runner : Runner
    peer : Peer
        PyTorch on the same device.
    order : Order
    tell : callable (name)
        Told what is in hand, so that whoever waits knows what brought the process down.

    Raises
    ------
    LaunchFailed
        The device's context is unusable: the process must end.
    """
    tell(OPERANDS)
    blank = Row(order.problem, LAYER, networks=order.networks, tree=order.tree, device=runner.device.id)
    try:
        operands = runner.make_operands(order.problem, 0)
    except OutOfMemory as error:
        return [replace(blank, failure=f"{Outcome.OUT_OF_MEMORY}: {error}")]
    layer = _Layer(runner, peer, order, operands, tell)
    choices = {**order.choices, **_asked(layer)}
    picked = {rule: _first_that_runs(layer, given) for rule, given in choices.items()}
    chosen_ms = _choosing_pass(layer)
    picked = {rule: choice if choice in chosen_ms else None for rule, choice in picked.items()}
    if chosen_ms:
        picked[ORACLE] = min(chosen_ms, key=chosen_ms.__getitem__)
    rows = _told(layer, picked, chosen_ms, choices, replace(blank, software=_software(runner, peer)))
    runner.release()
    peer.release()
    return rows


def _identity(variant: str, launch: Launch) -> str:
    """Equal for the same variant and plan, whoever offered the plan."""
    plan = {name: value for name, value in launch.plan.items() if name not in ("heuristic", "index")}
    return f"{variant} {json.dumps(plan, sort_keys=True)}"


def _first_that_runs(layer: _Layer, given: Iterable[Choice]) -> Choice | None:
    """Prepare one after the other until one runs."""
    return next((ready for choice in given if (ready := layer.prepare(choice))), None)


def _asked(layer: _Layer) -> dict[str, tuple[Choice, ...]]:
    """What cuDNN's heuristics choose here; nothing where asking fails."""
    try:
        picks = layer.runner.picks(layer.order.problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    except ConvAdvisorError as error:
        layer.note("picks", error)
        return {}
    return {
        pick.source: (Choice(pick.variant, json.dumps(pick.plan) if pick.plan else ""),)
        for pick in picks
        if pick.variant in VARIANTS
    }


def _choosing_pass(layer: _Layer) -> dict[Choice, float]:
    """Medians of all that runs: of the choices, then of whatever else may be the oracle."""
    chosen_ms: dict[Choice, float] = {}

    def take(choice: Choice) -> None:
        samples = layer.sample(choice, CHOOSING)
        if samples:
            chosen_ms[choice] = median(samples)

    for choice in list(layer.ready):
        take(choice)
    for choice in [*layer.order.near_best, *(map(Choice, POOL) if layer.order.is_fresh else ())]:
        ready = layer.prepare(choice, min(chosen_ms.values(), default=inf))
        if ready and ready not in chosen_ms:
            take(ready)
    return chosen_ms


def _told(
    layer: _Layer,
    picked: Mapping[str, Choice | None],
    chosen_ms: Mapping[Choice, float],
    choices: Mapping[str, tuple[Choice, ...]],
    blank: Row,
) -> list[Row]:
    """The pass that is reported: all take turns."""
    wanted = list(dict.fromkeys(each for each in picked.values() if each))
    called = {mode: found for mode in MODES if (found := layer.call(mode)) is not None}
    rule = _share_of(layer.order.rule, ROUNDS)
    samples: dict[Choice | str, tuple[float, ...]] = dict.fromkeys([*wanted, *called], ())
    is_captured = dict.fromkeys(called, True)
    for _ in range(ROUNDS):
        for choice in wanted:
            if choice in layer.ready:
                samples[choice] += layer.sample(choice, rule)
        for mode, call in called.items():
            more, is_captured[mode] = _sample_peer(layer, call, rule)
            samples[mode] += more
    ours = [
        _row_of(layer, rule, choice, samples, chosen_ms, choices.get(rule, ()), blank)
        for rule, choice in picked.items()
    ]
    return ours + [
        _row_of_peer(layer, mode, called.get(mode), samples.get(mode, ()), is_captured.get(mode, True), blank)
        for mode in MODES
    ]


def _sample_peer(layer: _Layer, called: Called, rule: StopRule) -> tuple[tuple[float, ...], bool]:
    layer.tell(called.mode)
    try:
        return layer.peer.sample(called, rule)
    except Exception as error:  # as in `_Layer.call`
        layer.note(called.mode, error)
        return (), True


def _row_of(
    layer: _Layer,
    rule: str,
    choice: Choice | None,
    samples: Mapping[Any, tuple[float, ...]],
    chosen_ms: Mapping[Choice, float],
    given: tuple[Choice, ...],
    blank: Row,
) -> Row:
    failed = [each for each in given if each.name in layer.failures]
    failure = "; ".join(f"{each.name}: {layer.failures[each.name]}" for each in failed)
    row = replace(blank, rule=rule, failure=failure)
    if choice is None or choice not in layer.ready:
        return replace(row, failure=failure or "nothing of it was chosen, or it is left out")
    ready = layer.ready[choice]
    return replace(
        row,
        variant=choice.variant,
        plan=choice.plan or kept_plan(choice.variant, json.dumps(ready.launch.plan)),
        samples_ms=samples[choice],
        chosen_ms=chosen_ms[choice],
        predicted_ms=layer.order.predicted_ms if rule == ADVICE and choice == given[0] else None,
        first_call_s=ready.prepared_s,
        max_error=ready.first.max_error,
        others_ms={each.name: time_ms for each, time_ms in chosen_ms.items()} if rule == ORACLE else {},
    )


def _row_of_peer(
    layer: _Layer, mode: str, called: Called | None, samples_ms: tuple[float, ...], is_captured: bool, blank: Row
) -> Row:
    failure = layer.failures.get(mode, "" if called else f"{Outcome.CRASHED}: left out")
    row = replace(blank, rule=mode, samples_ms=samples_ms, is_captured=is_captured, failure=failure)
    if called is None:
        return row
    return replace(row, first_call_s=called.first_call_s, max_error=called.first.max_error)


def _software(runner: Runner, peer: Peer) -> str:
    versions = " ".join(f"{name} {version}" for name, version in sorted(runner.device.versions.items()))
    return f"{peer.version}; {versions}"


def _share_of(rule: StopRule, count: int) -> StopRule:
    """A rule for one of so many rounds."""
    return replace(
        rule,
        min_samples=max(2, -(-rule.min_samples // count)),
        max_samples=max(2, rule.max_samples // count),
        budget_ms=rule.budget_ms / count,
    )
