"""After an upgrade: measures a few known times again, and says which variants moved and which layers regressed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sqlalchemy import select

from conv_advisor.app.sweep.attempt import Runs
from conv_advisor.app.sweep.chosen import Measuring, OnProgress
from conv_advisor.app.sweep.sweep import default_run_id
from conv_advisor.data.counting import counted
from conv_advisor.data.database.tables import MEASUREMENTS
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
"""Outcomes that show that a variant no longer runs; those of a busy GPU do not."""
_PROBLEMS_AT_ONCE: Final = 512
REFRESHED: Final = "refreshed"
"""Field of a tree's card: the tree's id before the refresh, and the end of the times that it was compared with."""


@dataclass(frozen=True)
class Refreshed:
    """The result of a refresh.

    Parameters
    ----------
    device : Device
        The device as it is now.
    before : Device
        The device as it was when its tree was trained.
    outcomes : dict of str to int
        Outcomes of all its attempts, also of those before it was resumed.
    ended : str
        Why it ended early; empty if it measured everything it chose.
    found : Findings or None
        None if too little was measured, as `missing` says.
    model : TreeModel or None
        The repaired tree; None if nothing moved.
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
        """Whether the repaired tree is nearer to the present times than the tree before it."""
        return self.model is not None and self.found is not None and self.found.off_after <= self.found.off_before

    def to_dict(self, *, is_forced: bool = False, most: int | None = None) -> dict[str, Any]:
        """The refresh as JSON, with at most `most` regressed layers."""
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
    """Measure some known times of a device again, and report what has changed.

    Parameters
    ----------
    store : Store
        Receives every attempt at once, and says what it found: a refresh of the same driver, libraries and kernels is
        continued, and chooses again what it chose before.
    engine : Runs
        Owns the device.
    device : Device
        The device as it is now.
    registry : Registry
        Contains the tree to repair.
    limit_s : float
        No problem starts after this time.
    share : float
        Largest share of the known times to measure again.
    seed : int
    options : BenchOptions, optional
    asked : callable
        See `models.upgrades.refresh.Asked`.
    on_progress : callable, optional
    guard : callable, optional
        Called before each problem; what it raises ends the refresh without a tree.

    Raises
    ------
    InvalidInput, NotEnoughData, UnknownDevice, ModelRejected, StoreError

    Notes
    -----
    An interrupt or the loss of the device ends the measuring: the report covers what was measured until then.
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
    measuring = Measuring(store, engine, device, options, run_id, limit_s, on_progress=on_progress, guard=guard)
    try:
        for cells in state.rounds():
            if not measuring.run(_by_problem(cells)):
                ended = "its time was over"
                break
            _take(state, store, run_id, cells)
    except KeyboardInterrupt:
        ended = "it was interrupted"
    except WorkerError as error:
        ended = f"its worker was lost: {error}"
    _take(state, store, run_id)  # of a round that was cut short, too
    outcomes = store.outcomes(run_id)
    refreshed = Refreshed(device, tree.device, outcomes, ended, None)
    if state.n_timed < LEAST_MEASURED:
        return replace(refreshed, missing=_missing(state, outcomes))
    findings = state.findings()
    return replace(refreshed, found=findings, model=_repaired(tree, device, state, findings, known, until_us))


def base_of(device: Device, registry: Registry) -> TreeModel:
    """The tree that a refresh repairs: the active one, or if that is a refreshed tree, the tree before its refresh.

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
    """The times of plain convolutions that were measured in full on a device before `until_us`.

    Raises
    ------
    NotEnoughData
    """
    keys, problems, times = records.measured_keys(device_id), [], []
    for start in range(0, len(keys), _PROBLEMS_AT_ONCE):
        chunk = [
            problem for problem in map(problem_of, keys[start : start + _PROBLEMS_AT_ONCE]) if not problem.epilogue
        ]
        attempts = records.attempts(chunk, device_id)
        for problem in chunk:
            measured = _times(attempt for attempt in attempts.get(problem.key, ()) if attempt.measured_at_us < until_us)
            if measured:
                problems.append(problem)
                times.append(measured)
    if not problems:
        raise NotEnoughData(f"device {device_id}: no time is known from before, with which to compare")
    variants = sorted({name for measured in times for name in measured})
    column = {name: index for index, name in enumerate(variants)}
    shape = (len(problems), len(variants))
    time_ms, noise = np.full(shape, np.nan), np.full(shape, np.nan)
    for row, measured in enumerate(times):
        for name, (variant_ms, variant_noise) in measured.items():
            time_ms[row, column[name]], noise[row, column[name]] = variant_ms, variant_noise
    no_cells, is_known = np.zeros(shape, bool), np.isfinite(time_ms)
    unknown = np.full(shape, np.nan)
    return Costs(tuple(variants), tuple(problems), time_ms, noise, no_cells, no_cells, is_known, unknown)


def _times(attempts: Iterator[Attempt]) -> dict[str, tuple[float, float]]:
    """Time and noise of each variant that was measured in full."""
    by_variant: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.outcome == Outcome.MEASURED and attempt.time_ms:
            by_variant.setdefault(attempt.variant, []).append(attempt)
    summaries = {name: summary_of(rows) for name, rows in by_variant.items()}
    return {name: (summary.time_ms, summary.noise or 0.0) for name, summary in summaries.items() if summary.time_ms}


def _take(state: Refresh, store: Store, run_id: str, cells: Collection[tuple[ConvProblem, str]] | None = None) -> None:
    """Take what the store has of a refresh, on these cells or on all: one that is resumed goes the same way again."""
    asked = None if cells is None else {(problem.key, name) for problem, name in cells}
    columns = ("problem_key", "variant", "outcome", "time_ms", "noise")
    query = select(*(MEASUREMENTS.c[name] for name in columns)).where(MEASUREMENTS.c.run_id == run_id)
    for key, variant, outcome, time_ms, noise in store.fetch(query.order_by(MEASUREMENTS.c.id)):
        if asked is not None and (key, variant) not in asked:
            continue
        if outcome == Outcome.MEASURED and time_ms:
            state.take(problem_of(key), variant, time_ms, noise or 0.0)
        elif outcome in _LOST:
            state.take(problem_of(key), variant, None)


def _by_problem(cells: list[tuple[ConvProblem, str]]) -> Iterator[tuple[ConvProblem, tuple[str, ...]]]:
    """The variants of each problem, in the order in which the problems first appear."""
    names_of: dict[ConvProblem, list[str]] = {}
    for problem, name in cells:
        names_of.setdefault(problem, []).append(name)
    for problem, names in names_of.items():
        yield problem, tuple(names)


def _missing(state: Refresh, outcomes: dict[str, int]) -> str:
    """Why too little was measured, and what becomes of the measurements."""
    n_unsteady = outcomes.get(Outcome.UNSTEADY, 0)
    reason = (
        f"{counted(state.n_timed, 'known time was', 'known times were')} measured again; allowed: at least"
        f" {LEAST_MEASURED}; what was measured is kept, and the same command goes on"
    )
    if n_unsteady:
        reason += f" ({counted(n_unsteady, 'time')} did not count: the device was throttled or shared)"
    return reason


def _repaired(
    tree: TreeModel, device: Device, state: Refresh, findings: Findings, known: Costs, until_us: int
) -> TreeModel | None:
    """The tree with the times of moved variants corrected; None if none moved.

    Raises
    ------
    ModelRejected, NotEnoughData
    """
    if not findings.moved:
        return None
    if DOMAIN not in tree.arrays:
        raise ModelRejected(f"tree {tree.id} of {tree.device.id} keeps no {DOMAIN}: train it again")
    never = held_out_layers()
    costs = state.corrected(findings.moved).where(lambda problem: problem.layer not in never)
    card: dict[str, Any] = {
        REFRESHED: {"model": tree.id, "until_us": until_us, "moved": list(findings.moved)},
        "confidence": tree.card.get("confidence"),
    }
    return adapted(Fit(tree, device, costs, known), **card)
