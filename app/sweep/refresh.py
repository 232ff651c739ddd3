"""After an upgrade: a few known times are measured again, and say which variants moved and which layers regressed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conv_advisor.app.sweep.attempt import Result, Runs
from conv_advisor.app.sweep.chosen import Measuring, OnProgress
from conv_advisor.app.sweep.sweep import default_run_id
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import ModelRejected, NotEnoughData, WorkerError
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import problem_of
from conv_advisor.data.summary import Attempt, summary_of
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.sources import sources_digest
from conv_advisor.models.adapting.adapt import adapted
from conv_advisor.models.adapting.correction import Fit
from conv_advisor.models.costs import Costs
from conv_advisor.models.tree.arrays import DOMAIN
from conv_advisor.models.upgrades.moves import say
from conv_advisor.models.upgrades.refresh import LEAST_MEASURED, MOST_SHARE, Asked, Findings, Refresh

if TYPE_CHECKING:
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.data.store import Store
    from conv_advisor.models.registry.on_disk import Registry
    from conv_advisor.models.tree.file import TreeModel

_LOST: Final = (
    *(Outcome.NOT_APPLICABLE, Outcome.NOT_SUPPORTED, Outcome.WORKSPACE_EXCEEDED),
    *(Outcome.COMPILE_FAILED, Outcome.WRONG_RESULT),
)
"""What says that a variant which ran before does not any more; a GPU that is busy says nothing of it."""
_PROBLEMS_AT_ONCE: Final = 512
REFRESHED: Final = "refreshed"
"""Field of a tree's card: which tree it was, and until when the times that it was compared with were measured."""


@dataclass(frozen=True)
class Refreshed:
    """What came of a refresh.

    Parameters
    ----------
    device : Device
        As it is now.
    before : Device
        As it was when its tree was trained.
    outcomes : dict of str to int
        What came of the attempts.
    ended : str
        Why it ended early; empty where it measured what it wanted.
    found : Findings or None
        None where too little was measured, as `missing` says.
    model : TreeModel or None
        The repaired tree; None where nothing moved.
    missing : str
    """

    device: Device
    before: Device
    outcomes: dict[str, int]
    ended: str
    found: Findings | None
    model: TreeModel | None = None
    missing: str = ""

    @property
    def changed(self) -> dict[str, tuple[str, str]]:
        """The versions that differ, before and now."""
        old, new = self.before.versions, self.device.versions
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        return {name: (old.get(name, ""), new.get(name, "")) for name in names}

    @property
    def is_better(self) -> bool:
        """Whether the repaired tree is nearer to the times of now than the one before it."""
        return self.model is not None and self.found is not None and self.found.off_after <= self.found.off_before

    def to_dict(self, *, is_forced: bool = False, most: int | None = None) -> dict[str, Any]:
        """As JSON takes it, with so many of the layers that regressed."""
        return {
            "device": self.device.id,
            "changed": {name: list(versions) for name, versions in self.changed.items()},
            "outcomes": self.outcomes,
            "ended": self.ended or None,
            "model": self.model.id if self.model else None,
            "promoted": self.is_better or (is_forced and self.model is not None),
            "reasons": [self.missing] if self.missing else [],
        } | (self.found.to_dict(most) if self.found else {})


def refresh(
    store: Store,
    engine: Runs,
    device: Device,
    registry: Registry,
    *,
    limit_s: float,
    share: float = MOST_SHARE,
    seed: int = 0,
    options: BenchOptions | None = None,
    asked: Asked = say,
    on_progress: OnProgress | None = None,
    guard: Callable[[], None] | None = None,
) -> Refreshed:
    """Measure again some of what is known of a device, and say what has changed since.

    Parameters
    ----------
    store : Store
        Every attempt joins it as it comes; another refresh of the same driver, libraries and kernels goes on.
    engine : Runs
        With the device.
    device : Device
        As it is now.
    registry : Registry
        Has the tree to repair.
    limit_s : float
        No problem is begun after this time.
    share : float
        Of the times that are known, how many may be measured again.
    seed : int
    options : BenchOptions, optional
    asked : callable
        As `models.upgrades.refresh.Asked`.
    on_progress : callable, optional
    guard : callable, optional
        Called before each problem; what it raises ends the refresh without a tree.

    Raises
    ------
    InvalidInput, NotEnoughData, UnknownDevice, ModelRejected, StoreError

    Notes
    -----
    An interrupt, and a device that is lost, end the measuring: what was measured until then is judged.
    """
    options = options or BenchOptions(seed=seed)
    tree = base_of(device, registry)
    run_id, ended = f"refresh-{default_run_id(device, options)}-{sources_digest()}", ""
    since_us = store.began_us(run_id) or int(time.time() * 1e6)
    until_us = min(since_us, registry.active(device.id).card.get(REFRESHED, {}).get("until_us", since_us))
    records = Records(store)
    if on_progress:
        on_progress(0.0, "reading what is known")
    known = known_before(records, device.id, until_us)
    state = Refresh(known, share=share, seed=seed, never=held_out_layers(), asked=asked)
    _take_again(state, store, device.id, since_us)
    measuring = Measuring(
        *(store, engine, device, options, run_id, limit_s),
        on_progress=on_progress,
        guard=guard,
        on_result=lambda result: _take(state, result),
    )
    try:
        for wanted in state.rounds():
            if not measuring.run(_by_problem(wanted)):
                ended = "its time was over"
                break
    except KeyboardInterrupt:
        ended = "it was interrupted"
    except WorkerError as error:
        ended = f"its worker was lost: {error}"
    done = Refreshed(device, tree.device, measuring.outcomes, ended, None)
    if state.n_timed < LEAST_MEASURED:
        return replace(done, missing=_missing(state, measuring.outcomes))
    found = state.findings()
    return replace(done, found=found, model=_repaired(tree, device, state, found, known, until_us))


def base_of(device: Device, registry: Registry) -> TreeModel:
    """The tree that a refresh repairs: that in use, or where this was refreshed before, the one that it was.

    Raises
    ------
    NotEnoughData, UnknownDevice, UnknownModel, ModelRejected
    """
    if device.id not in registry.devices():
        raise NotEnoughData(
            f"device {device.id} has no tree of its own to refresh:"
            f" conv-advisor calibrate, or sweep and train, makes one"
        )
    tree = registry.active(device.id)
    return registry.get(device.id, tree.card[REFRESHED]["model"]) if REFRESHED in tree.card else tree


def known_before(records: Records, device_id: str, until_us: int) -> Costs:
    """The times of plain convolutions that were measured in full on a device before a moment.

    Raises
    ------
    NotEnoughData
    """
    keys, problems, times = records.measured_keys(device_id), [], []
    for start in range(0, len(keys), _PROBLEMS_AT_ONCE):
        some = [problem for problem in map(problem_of, keys[start : start + _PROBLEMS_AT_ONCE]) if not problem.epilogue]
        attempts = records.attempts(some, device_id)
        for problem in some:
            found = _times(each for each in attempts.get(problem.key, ()) if each.measured_at_us < until_us)
            if found:
                problems.append(problem)
                times.append(found)
    if not problems:
        raise NotEnoughData(f"device {device_id}: no time is known from before, with which to compare")
    variants = sorted({name for found in times for name in found})
    column = {name: place for place, name in enumerate(variants)}
    shape = (len(problems), len(variants))
    time_ms, noise = np.full(shape, np.nan), np.full(shape, np.nan)
    for row, found in enumerate(times):
        for name, (each_ms, each_noise) in found.items():
            time_ms[row, column[name]], noise[row, column[name]] = each_ms, each_noise
    nothing, is_known = np.zeros(shape, bool), np.isfinite(time_ms)
    unknown = np.full(shape, np.nan)
    return Costs(tuple(variants), tuple(problems), time_ms, noise, nothing, nothing, is_known, unknown)


def _times(attempts: Iterator[Attempt]) -> dict[str, tuple[float, float]]:
    """Time and noise of each variant that was measured in full."""
    by_variant: dict[str, list[Attempt]] = {}
    for each in attempts:
        if each.outcome == Outcome.MEASURED and each.time_ms:
            by_variant.setdefault(each.variant, []).append(each)
    summaries = {name: summary_of(rows) for name, rows in by_variant.items()}
    return {name: (each.time_ms, each.noise or 0.0) for name, each in summaries.items() if each.time_ms}


def _take_again(state: Refresh, store: Store, device_id: str, since_us: int) -> None:
    """What was measured since a refresh began that now goes on."""
    for key, attempts in store.attempts(store.measured_keys(device_id), device_id).items():
        for each in attempts:
            if each.measured_at_us >= since_us and each.outcome == Outcome.MEASURED and each.time_ms:
                state.take(problem_of(key), each.variant, each.time_ms, each.noise or 0.0)


def _take(state: Refresh, result: Result) -> None:
    for each in result.measurements:
        if each.outcome is Outcome.MEASURED and each.time_ms:
            state.take(each.problem, each.variant, each.time_ms, each.noise or 0.0)
        elif each.outcome in _LOST:
            state.take(each.problem, each.variant, None)


def _by_problem(cells: list[tuple[ConvProblem, str]]) -> Iterator[tuple[ConvProblem, tuple[str, ...]]]:
    """What is to be measured of each problem, in the order in which they come first."""
    names: dict[ConvProblem, list[str]] = {}
    for problem, name in cells:
        names.setdefault(problem, []).append(name)
    for problem, each in names.items():
        yield problem, tuple(each)


def _missing(state: Refresh, outcomes: dict[str, int]) -> str:
    """Why nothing can be said, and what becomes of what was measured."""
    n_unsteady = outcomes.get(Outcome.UNSTEADY, 0)
    said = (
        f"{counted(state.n_timed, 'known time was', 'known times were')} measured again; allowed: at least"
        f" {LEAST_MEASURED}; what was measured is kept, and the same command goes on"
    )
    if n_unsteady:
        said += f" ({counted(n_unsteady, 'time')} did not count: the device was throttled or shared)"
    return said


def _repaired(
    tree: TreeModel, device: Device, state: Refresh, found: Findings, known: Costs, until_us: int
) -> TreeModel | None:
    """The tree with the times of what moved corrected; None where nothing did.

    Raises
    ------
    ModelRejected, NotEnoughData
    """
    if not found.moved:
        return None
    if DOMAIN not in tree.arrays:
        raise ModelRejected(f"tree {tree.id} of {tree.device.id} keeps no {DOMAIN}: train it again")
    never = held_out_layers()
    costs = state.corrected(found.moved).where(lambda problem: problem.layer not in never)
    card: dict[str, Any] = {
        REFRESHED: {"model": tree.id, "until_us": until_us, "moved": list(found.moved)},
        "confidence": tree.card.get("confidence"),
    }
    return adapted(Fit(tree, device, costs, known), **card)
