"""One layer with its epilogue in a worker: one pass chooses for each side, and another is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from statistics import median
from typing import Final

from benchmarks.contest import choice as catalogue
from benchmarks.contest.layer import QUICK, faults, plans_of
from benchmarks.endings.pytorch import MODES
from benchmarks.endings.rows import CHOSEN, CUDNN, EAGER, EAGER_PLAIN, OURS, PLAIN, POOL, Row, Timed
from benchmarks.rivals.layer import Calls, peer_of, software
from benchmarks.rivals.pytorch import Peer
from benchmarks.turns.layer import OPERANDS, Choice, Layer, take_turns
from conv_advisor.app.workers.tasks import report_progress, runner
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import OutOfMemory
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Ending

CANDIDATES: Final = (*catalogue.CUDNN, *reversed(catalogue.OURS))
"""Every variant of cuDNN and of ours; of ours the fast ones before the plain ones, which are then seen to be behind."""


@dataclass(frozen=True)
class Order:
    """What is to be done for one layer.

    Parameters
    ----------
    problem : ConvProblem
    rule : StopRule
        Applies to the pass that is reported, all rounds together.
    modes : tuple of str
        Modes of PyTorch.
    networks : str
        As in `Row`.
    """

    problem: ConvProblem
    rule: StopRule = field(default_factory=StopRule)
    modes: tuple[str, ...] = MODES
    networks: str = ""


def measure(peer_opener: str, device_id: str, order: Order, excluded: frozenset[str]) -> list[Row]:
    """`measure_layer` on the device of this worker."""
    return [measure_layer(runner(), peer_of(peer_opener, device_id), order, excluded)]


def measure_layer(runner: Runner, peer: Peer, order: Order, excluded: frozenset[str] = frozenset()) -> Row:
    """Time one layer on every side.

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
    problem = order.problem
    blank = Row(problem, networks=order.networks, device=runner.device.id, software=software(runner, peer))
    try:
        layer = Layer(runner, problem, runner.make_operands(problem, 0), excluded)
        plain = Layer(runner, problem.plain, runner.make_operands(problem.plain, 0), excluded)
    except OutOfMemory as error:
        return replace(blank, failures={OPERANDS: f"{Outcome.OUT_OF_MEMORY}: {error}"})
    chosen_ms = _choosing_pass(layer)
    picked = {side: choice for side in CHOSEN if (choice := _chosen(layer, side, chosen_ms))}
    timed = _told(layer, plain, peer, order, picked)
    for side, choice in picked.items():
        if side in timed:
            with_plan = replace(timed[side], variant=choice.variant, plan=layer.plan_of(choice))
            timed[side] = replace(with_plan, chosen_ms=chosen_ms[choice])
    alone = {f"alone: {name}": why for name, why in faults(plain).items()}
    runner.release()
    peer.release()
    row = replace(blank, timed=timed, failures=faults(layer) | alone, tried_ms=_by_variant(chosen_ms))
    return replace(row, refused=_refused(layer.failures, row.tried_ms))


def side_of(variant: str, epilogue: Epilogue) -> str:
    """The side that a variant runs for, or `POOL` where it does not fuse: it then runs for all of them alone."""
    ending = VARIANTS[variant].ending_of(epilogue)
    return {Ending.LIBRARY: CUDNN, Ending.FUSED: OURS}.get(ending, POOL) if ending else POOL


def _choosing_pass(layer: Layer) -> dict[Choice, float]:
    """Median of every variant and plan; none is left out for being behind those of another side."""
    chosen_ms: dict[Choice, float] = {}
    best_ms = dict.fromkeys(CHOSEN, inf)
    for choice in _candidates(layer):
        side = side_of(choice.variant, layer.problem.epilogue)
        if not layer.prepare(choice, best_ms[side]):
            continue
        samples = layer.sample(choice, QUICK)
        if samples:
            chosen_ms[choice] = median(samples)
            best_ms[side] = min(best_ms[side], chosen_ms[choice])
        layer.ready.pop(choice, None)  # with its scratch memory: there may be hundreds of plans
    return chosen_ms


def _candidates(layer: Layer) -> Iterator[Choice]:
    """Every variant that can compute the epilogue, and of cuDNN's graph API every plan of its three heuristics."""
    plans = plans_of(layer)
    for variant in CANDIDATES:
        if variant in layer.variants:
            yield from (Choice(variant, plan) for plan in plans.get(variant, ("",)))


def _chosen(layer: Layer, side: str, chosen_ms: Mapping[Choice, float]) -> Choice | None:
    """The fastest of a side that still runs."""
    of_side = [choice for choice in chosen_ms if side in (POOL, side_of(choice.variant, layer.problem.epilogue))]
    return next((choice for choice in sorted(of_side, key=chosen_ms.__getitem__) if layer.prepare(choice)), None)


def _by_variant(chosen_ms: Mapping[Choice, float]) -> dict[str, float]:
    """The time of each variant's fastest plan."""
    tried_ms: dict[str, float] = {}
    for choice, time_ms in chosen_ms.items():
        tried_ms[choice.variant] = min(time_ms, tried_ms.get(choice.variant, inf))
    return tried_ms


def _refused(failures: Mapping[str, str], tried_ms: Mapping[str, float]) -> tuple[str, ...]:
    """The variants without a supported plan."""
    outcomes: dict[str, set[str]] = {}
    for name, why in failures.items():
        outcomes.setdefault(name.partition(" ")[0], set()).add(why.partition(":")[0])
    return tuple(
        name for name, ends in sorted(outcomes.items()) if name not in tried_ms and ends == {Outcome.NOT_SUPPORTED}
    )


def _told(layer: Layer, plain: Layer, peer: Peer, order: Order, picked: Mapping[str, Choice]) -> dict[str, Timed]:
    """The pass that is reported: all take turns; a choice that runs for two sides is timed once."""
    calls, captured = Calls(peer, layer), dict.fromkeys(order.modes, True)
    timed: dict[Choice | str, Callable[[StopRule], tuple[float, ...]]] = {
        choice: partial(layer.sample, choice) for choice in picked.values()
    }
    if OURS in picked and (alone := plain.prepare(picked[OURS])):
        timed[PLAIN] = partial(plain.sample, alone)
    for mode in order.modes:
        if called := calls.first(mode):
            timed[mode] = partial(calls.sample, called, captured)
    alone_captured: dict[str, bool] = {}
    if EAGER in order.modes and (called := Calls(peer, plain).first(EAGER)):
        timed[EAGER_PLAIN] = partial(Calls(peer, plain).sample, called, alone_captured)
    turns = {key: tuple(chain(*rounds)) for key, rounds in take_turns(timed, order.rule).items() if all(rounds)}
    sides: dict[str, Choice | str] = {**picked, **{name: name for name in (PLAIN, EAGER_PLAIN, *order.modes)}}
    captured[EAGER_PLAIN] = alone_captured.get(EAGER, True)
    return {
        side: Timed(turns[key], is_captured=captured.get(side, True)) for side, key in sides.items() if key in turns
    }
