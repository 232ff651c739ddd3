"""One layer in a worker: variants are prepared and verified, then timed in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, TypeVar

from conv_advisor.app.workers.tasks import report_progress
from conv_advisor.data.errors import LaunchFailed, RunError
from conv_advisor.data.measurement import L2State, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import LEAST_PRUNED_MS, OUTCOMES
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.runner import FirstRun, Operands, Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend, Launch, Variant

T = TypeVar("T")

PRUNE_FACTOR: Final = 3.0
"""A choice whose first launch is so many times slower than the best so far is out."""
ROUNDS: Final = 2
"""How often all take turns on the pass that is reported."""
OPERANDS: Final = "operands"
"""The name of what is in hand before the first variant."""


@dataclass(frozen=True)
class Choice:
    """One variant and, where one plan of an engine is meant, JSON that rebuilds the plan."""

    variant: str
    plan: str = ""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.variant} {self.plan}".strip()


@dataclass(frozen=True)
class Ready:
    """A choice that is prepared and verified, and how long preparing took."""

    launch: Launch
    first: FirstRun
    prepared_s: float


@dataclass
class Layer:
    """The layer that is being measured: its tensors, what can be timed, and what became of the rest.

    Parameters
    ----------
    runner : Runner
    problem : ConvProblem
    operands : Operands
    excluded : frozenset of str
        Names of choices, or ids of variants, that brought a worker down.
    variants : mapping of str to Variant
        By id; those of the catalogue, or such as offer more than it does.
    ready : dict of Choice to Ready
    failures : dict of str to str
        By name: ``outcome: reason``.
    """

    runner: Runner
    problem: ConvProblem
    operands: Operands
    excluded: frozenset[str] = frozenset()
    variants: Mapping[str, Variant] = field(default_factory=lambda: VARIANTS)
    ready: dict[Choice, Ready] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _same: dict[str, Choice] = field(default_factory=dict)
    """The first choice prepared of a variant and plan, by both: two rules may name one plan in two ways."""

    def prepare(self, choice: Choice, best_ms: float = inf) -> Choice | None:
        """Prepare and verify; the same choice as known here, or None, noting why, if it fails or is far behind."""
        if choice in self.ready:
            return choice
        if choice.name in self.failures or not self._may_run(choice):
            return None
        started = time.perf_counter()
        try:
            plan = json.loads(choice.plan) if choice.plan else None
            variant, problem = self.variants[choice.variant], self.problem
            launch = self.runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES, plan)
            prepared_s = time.perf_counter() - started
            known = self._same.setdefault(_identity(choice.variant, launch), choice)
            if known != choice:
                return known if known in self.ready else None
            first = self.runner.first_run(problem, launch, self.operands)
        except Exception as error:  # whatever one launcher does wrong, the others are still compared
            self.note(choice.name, error)
            return None
        if not first.max_error <= tolerance(self.problem):
            self.failures[choice.name] = f"{Outcome.WRONG_RESULT}: max error {first.max_error:.3g}"
        elif first.launch_ms > max(LEAST_PRUNED_MS, PRUNE_FACTOR * best_ms):
            self.failures[choice.name] = f"{Outcome.PRUNED}: first launch took {first.launch_ms:.3g} ms"
        else:
            self.ready[choice] = Ready(launch, first, prepared_s)
        return choice if choice in self.ready else None

    def sample(self, choice: Choice, rule: StopRule, l2: L2State = L2State.WARM) -> tuple[float, ...]:
        """Times in ms; none where the choice is not ready, or where sampling fails, which is noted."""
        ready = self.ready.get(choice)
        if ready is None:
            return ()
        report_progress(0, choice.name)
        try:
            samples = self.runner.sample(self.problem, ready.launch, self.operands, ready.first.launch_ms, rule, l2)
        except Exception as error:  # as above
            self.note(choice.name, error)
            del self.ready[choice]
            return ()
        return samples.samples_ms

    def plan_of(self, choice: Choice) -> str:
        """The plan that rebuilds a choice that is ready."""
        return choice.plan or kept_plan(choice.variant, json.dumps(self.ready[choice].launch.plan))

    def note(self, name: str, error: Exception) -> None:
        """Write a failure down; one that leaves the context unusable ends the process."""
        if isinstance(error, LaunchFailed):
            raise error
        outcome = OUTCOMES.get(type(error), Outcome.CRASHED) if isinstance(error, RunError) else Outcome.CRASHED
        self.failures[name] = f"{outcome}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"

    def _may_run(self, choice: Choice) -> bool:
        report_progress(0, choice.name)
        if {choice.name, choice.variant} & self.excluded:
            return False
        reason = self.variants[choice.variant].why_not(self.problem, self.runner.device)
        if reason:
            self.failures[choice.name] = f"{Outcome.NOT_APPLICABLE}: {reason}"
        return not reason


def take_turns(
    timed: Mapping[T, Callable[[StopRule], tuple[float, ...]]], rule: StopRule
) -> dict[T, list[tuple[float, ...]]]:
    """Sample all once a round, so that what changes meanwhile is the same for all.

    Parameters
    ----------
    timed : mapping of T to callable (rule) -> samples
    rule : StopRule
        Applies to all rounds together.

    Returns
    -------
    dict of T to list of samples
        Those of every round; empty where sampling failed.
    """
    share = replace(
        rule,
        min_samples=max(2, -(-rule.min_samples // ROUNDS)),
        max_samples=max(2, rule.max_samples // ROUNDS),
        budget_ms=rule.budget_ms / ROUNDS,
    )
    rounds: dict[T, list[tuple[float, ...]]] = {key: [] for key in timed}
    for _ in range(ROUNDS):
        for key, sample in timed.items():
            rounds[key].append(sample(share))
    return rounds


def kept_plan(variant: str, plan: str) -> str:
    """The plan where the variant cannot be rebuilt without it: an engine of the graph API has many."""
    return plan if VARIANTS[variant].backend is Backend.CUDNN_GRAPH and json.loads(plan) else ""


def _identity(variant: str, launch: Launch) -> str:
    """Equal for the same variant and plan, whoever offered the plan."""
    plan = {name: value for name, value in launch.plan.items() if name not in ("heuristic", "index")}
    return f"{variant} {json.dumps(plan, sort_keys=True)}"
