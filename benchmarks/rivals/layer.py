"""One layer in a worker: all that any rule would run; one pass chooses the oracle, and another is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from itertools import chain
from math import inf
from statistics import median
from typing import Any, Final

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS
from benchmarks.rivals.pytorch import MODES, Called, Peer
from benchmarks.rivals.rows import ADVICE, LAYER, ORACLE, THREE, Row
from benchmarks.turns.layer import OPERANDS, Choice, Layer, take_turns
from conv_advisor.app.workers.tasks import report_progress, runner
from conv_advisor.data.errors import ConvAdvisorError, OutOfMemory
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

POOL: Final = (*CUDNN, *reversed((*LIBRARIES, *OURS)))
"""Every variant; of ours the fast ones before the plain ones, since those that come first set the mark for pruning."""
CHOOSING: Final = StopRule(min_samples=3, max_samples=8, max_noise=0.005, budget_ms=15)
"""How all are timed to choose the oracle among them."""
MEASURED: Final = 3
"""How many of a ranking `THREE` chooses among."""


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
    abstains : bool or None
        Whether the tree says that its ranking is a guess.
    near_best : tuple of Choice
        Beside all choices, what the oracle is chosen among.
    is_fresh : bool
        Whether every variant is tried, where nobody has measured the layer.
    rule : StopRule
        Applies to the pass that is reported, all rounds together.
    networks, tree : str
        As in `Row`.
    """

    problem: ConvProblem
    choices: Mapping[str, tuple[Choice, ...]]
    predicted_ms: float | None = None
    abstains: bool | None = None
    near_best: tuple[Choice, ...] = ()
    is_fresh: bool = False
    rule: StopRule = field(default_factory=StopRule)
    networks: str = ""
    tree: str = ""


@dataclass(frozen=True)
class Calls:
    """PyTorch's calls of the layer that is being measured."""

    peer: Peer
    layer: Layer

    def first(self, mode: str) -> Called | None:
        """PyTorch's first call in this mode; None where it fails. A failure or a wrong result is noted."""
        report_progress(0, mode)
        layer = self.layer
        if mode in layer.excluded:
            return None
        try:
            called = self.peer.call(layer.problem, layer.operands, mode)
        except Exception as error:  # PyTorch has its own tree
            layer.note(mode, error)
            return None
        if not called.first.max_error <= tolerance(layer.problem):
            layer.failures[mode] = f"{Outcome.WRONG_RESULT}: max error {called.first.max_error:.3g}"
        return called

    def sample(self, called: Called, captured: dict[str, bool], rule: StopRule) -> tuple[float, ...]:
        """Times in ms; none where sampling fails, which is noted. `captured` gets whether graphs were replayed."""
        report_progress(0, called.mode)
        try:
            samples_ms, captured[called.mode] = self.peer.sample(called, rule)
        except Exception as error:  # as above
            self.layer.note(called.mode, error)
            return ()
        return samples_ms


def measure(peer_opener: str, device_id: str, order: Order, excluded: frozenset[str]) -> list[Row]:
    """`measure_layer` on the device of this worker.

    Parameters
    ----------
    peer_opener : str
        ``module:function`` that opens PyTorch on it.
    device_id : str
    order : Order
    excluded : frozenset of str
    """
    return measure_layer(runner(), peer_of(peer_opener, device_id), order, excluded)


def measure_layer(runner: Runner, peer: Peer, order: Order, excluded: frozenset[str] = frozenset()) -> list[Row]:
    """One row a rule, and one of the oracle.

    Parameters
    ----------
    runner : Runner
    peer : Peer
        PyTorch on the same device.
    order : Order
    excluded : frozenset of str
        Names of choices, modes of PyTorch, or ids of variants, that brought a worker down.

    Raises
    ------
    LaunchFailed
        The device's context is unusable: the process must end.
    """
    report_progress(0, OPERANDS)
    blank = Row(order.problem, LAYER, networks=order.networks, tree=order.tree, device=runner.device.id)
    try:
        operands = runner.make_operands(order.problem, 0)
    except OutOfMemory as error:
        return [replace(blank, failure=f"{Outcome.OUT_OF_MEMORY}: {error}")]
    layer = Layer(runner, order.problem, operands, excluded)
    choices = {**order.choices, **_asked(layer)}
    picked = {rule: _first_that_runs(layer, candidates) for rule, candidates in choices.items()}
    ranked = [ready for choice in order.choices.get(ADVICE, ())[:MEASURED] if (ready := layer.prepare(choice))]
    chosen_ms = _choosing_pass(layer, order)
    picked = {rule: choice if choice in chosen_ms else None for rule, choice in picked.items()}
    picked[THREE] = min((choice for choice in ranked if choice in chosen_ms), key=chosen_ms.__getitem__, default=None)
    if chosen_ms:
        picked[ORACLE] = min(chosen_ms, key=chosen_ms.__getitem__)
    rows = _told(layer, order, peer, picked, chosen_ms, choices, replace(blank, software=software(runner, peer)))
    runner.release()
    peer.release()
    return rows


@cache
def peer_of(opener: str, device_id: str) -> Peer:
    """What ``module:function`` opens beside the runner of this worker, opened once."""
    module, _, function = opener.partition(":")
    peer: Peer = getattr(import_module(module), function)(runner(), device_id)
    return peer


def _first_that_runs(layer: Layer, choices: Iterable[Choice]) -> Choice | None:
    """Prepare one choice after the other until one runs."""
    return next((ready for choice in choices if (ready := layer.prepare(choice))), None)


def _asked(layer: Layer) -> dict[str, tuple[Choice, ...]]:
    """What cuDNN's heuristics choose here; nothing where asking fails."""
    try:
        picks = layer.runner.picks(layer.problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    except ConvAdvisorError as error:
        layer.note("picks", error)
        return {}
    return {
        pick.source: (Choice(pick.variant, json.dumps(pick.plan) if pick.plan else ""),)
        for pick in picks
        if pick.variant in VARIANTS
    }


def _choosing_pass(layer: Layer, order: Order) -> dict[Choice, float]:
    """Medians of all that runs: of the choices, then of whatever else may be the oracle."""
    chosen_ms: dict[Choice, float] = {}

    def take(choice: Choice) -> None:
        samples = layer.sample(choice, CHOOSING)
        if samples:
            chosen_ms[choice] = median(samples)

    for choice in list(layer.ready):
        take(choice)
    for choice in [*order.near_best, *(map(Choice, POOL) if order.is_fresh else ())]:
        ready = layer.prepare(choice, min(chosen_ms.values(), default=inf))
        if ready and ready not in chosen_ms:
            take(ready)
    return chosen_ms


def _told(
    layer: Layer,
    order: Order,
    peer: Peer,
    picked: Mapping[str, Choice | None],
    chosen_ms: Mapping[Choice, float],
    choices: Mapping[str, tuple[Choice, ...]],
    blank: Row,
) -> list[Row]:
    """The pass that is reported: all take turns."""
    calls, captured = Calls(peer, layer), dict.fromkeys(MODES, True)
    called = {mode: first for mode in MODES if (first := calls.first(mode)) is not None}
    timed: dict[Choice | str, Callable[[StopRule], tuple[float, ...]]] = {
        choice: partial(layer.sample, choice) for choice in picked.values() if choice
    }
    timed |= {mode: partial(calls.sample, call, captured) for mode, call in called.items()}
    samples = {key: tuple(chain(*rounds)) for key, rounds in take_turns(timed, order.rule).items()}
    ours = [
        _row_of(layer, order, rule, choice, samples, chosen_ms, choices.get(rule, ()), blank)
        for rule, choice in picked.items()
    ]
    return ours + [
        _row_of_peer(layer, mode, called.get(mode), samples.get(mode, ()), captured[mode], blank) for mode in MODES
    ]


def _row_of(
    layer: Layer,
    order: Order,
    rule: str,
    choice: Choice | None,
    samples: Mapping[Any, tuple[float, ...]],
    chosen_ms: Mapping[Choice, float],
    choices: tuple[Choice, ...],
    blank: Row,
) -> Row:
    failed = [candidate for candidate in choices if candidate.name in layer.failures]
    failure = "; ".join(f"{candidate.name}: {layer.failures[candidate.name]}" for candidate in failed)
    row = replace(blank, rule=rule, failure=failure)
    if choice is None or choice not in layer.ready:
        return replace(row, failure=failure or "nothing of it was chosen, or it is left out")
    ready = layer.ready[choice]
    return replace(
        row,
        variant=choice.variant,
        plan=layer.plan_of(choice),
        samples_ms=samples[choice],
        chosen_ms=chosen_ms[choice],
        predicted_ms=order.predicted_ms if rule == ADVICE and choice == choices[0] else None,
        abstains=order.abstains if rule == ADVICE else None,
        first_call_s=ready.prepared_s,
        max_error=ready.first.max_error,
        others_ms={candidate.name: time_ms for candidate, time_ms in chosen_ms.items()} if rule == ORACLE else {},
    )


def _row_of_peer(
    layer: Layer, mode: str, called: Called | None, samples_ms: tuple[float, ...], is_captured: bool, blank: Row
) -> Row:
    failure = layer.failures.get(mode, "" if called else f"{Outcome.CRASHED}: left out")
    row = replace(blank, rule=mode, samples_ms=samples_ms, is_captured=is_captured, failure=failure)
    if called is None:
        return row
    return replace(row, first_call_s=called.first_call_s, max_error=called.first.max_error)


def software(runner: Runner, peer: Peer) -> str:
    """Versions of all that ran."""
    return f"{peer.version}; {runner.device.software}"
