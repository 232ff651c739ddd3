"""Adapts a borrowed tree by minutes of measuring; an interrupt leaves it with the measurements made so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from conv_advisor.app.sweep.attempt import Runs
from conv_advisor.app.sweep.chosen import Measuring, OnProgress
from conv_advisor.app.sweep.sweep import default_run_id
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, ModelRejected, NotEnoughData, WorkerError
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import problem_of
from conv_advisor.data.summary import summarise
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.models.adapting.adapt import Adaptation, adapt, adapted, held_back, known_costs
from conv_advisor.models.adapting.correction import Fit
from conv_advisor.models.adapting.least_sure import least_sure, to_measure
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.tree.arrays import DOMAIN
from conv_advisor.models.tree.file import TreeModel
from conv_advisor.models.tree.loan import lent_to

if TYPE_CHECKING:
    from conv_advisor.data.store import Store
    from conv_advisor.models.costs import Costs
    from conv_advisor.models.registry.on_disk import Registry

_MEASURING: Final = 0.85
"""Share of the time for layers; the rest is for measuring choices of the adapted tree that are not measured yet."""


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Parameters
    ----------
    device : Device
    lender : TreeModel
        The tree that was adapted.
    n_problems : int
        Number of problems measured on the device so far, without the layers that judge every tree.
    outcomes : dict of str to int
        Outcomes of this calibration's attempts.
    ended : str
        Why it ended early; empty if it had its full time.
    found : Adaptation or None
        None if too little was measured, as `missing` says.
    missing : str
    """

    device: Device
    lender: TreeModel
    n_problems: int
    outcomes: dict[str, int]
    ended: str
    found: Adaptation | None
    missing: str = ""

    @property
    def is_better(self) -> bool:
        """Whether the adapted tree is no worse than the borrowed one on the held-back layers."""
        return self.found is not None and not self.found.objections

    def to_dict(self, *, is_forced: bool = False) -> dict[str, Any]:
        """The calibration as JSON."""
        adaptation = self.found
        return {
            "device": self.device.id,
            "lender": self.lender.device.id,
            "problems": self.n_problems,
            "outcomes": self.outcomes,
            "ended": self.ended or None,
            "model": adaptation.model.id if adaptation else None,
            "slowdown": adaptation.after.slowdown if adaptation else None,
            "champion_slowdown": adaptation.before.slowdown if adaptation else None,
            "before": asdict(adaptation.before) if adaptation else None,
            "after": asdict(adaptation.after) if adaptation else None,
            "promoted": self.is_better or (is_forced and adaptation is not None),
            "reasons": list(adaptation.objections) if adaptation else [self.missing],
        }


def check_is_gpu(device: Device) -> None:
    """Refuse to calibrate a device of another kind.

    Raises
    ------
    InvalidInput
    """
    if device.kind != "cuda":
        raise InvalidInput("device", device.id, "a GPU: conv-advisor sweep and train are for others")


def lender_of(device: Device, registry: Registry) -> TreeModel:
    """The tree to adapt: the device's own if it was trained there, else that of the nearest GPU.

    Raises
    ------
    InvalidInput, NotEnoughData, ModelRejected
    """
    check_is_gpu(device)
    own = registry.active(device.id) if device.id in registry.devices() else None
    if own and _is_own(own):
        return _with_domain(own)
    lent = lent_to(device, [tree for tree in registry.in_use() if _is_own(tree)], needs_times=False)
    if lent is None:
        raise NotEnoughData(
            f"device {device.id}: no figures are published for it and no tree is of its architecture, so there is none"
            " to adapt: conv-advisor sweep and train make one"
        )
    return _with_domain(lent)


def _is_own(tree: TreeModel) -> bool:
    """Whether a tree was trained on its own device, possibly refreshed there, and not borrowed."""
    origin = tree.card.get("adapted_from")
    return origin is None or origin["device"] == tree.device.id


def _with_domain(tree: TreeModel) -> TreeModel:
    """The tree, if it has the domain of its training, outside which an adapted tree abstains."""
    if DOMAIN not in tree.arrays:
        raise ModelRejected(f"tree {tree.id} of {tree.device.id} keeps no {DOMAIN}: train it again")
    return tree


def fit_of(store: Store, device: Device, lender: TreeModel) -> Fit:
    """Measurements of the device, with the known times of the same problems on the lender."""
    keys = store.measured_keys(device.id)
    attempts = store.attempts(keys, device.id)
    mine = known_costs(list(map(problem_of, keys)), {key: summarise(rows) for key, rows in attempts.items()})
    is_own = lender.device.id == device.id
    theirs = {} if is_own else Records(store).summaries(mine.problems, lender.device.id)
    return Fit(lender, device, mine, known_costs(mine.problems, theirs))


def calibrate(
    store: Store,
    engine: Runs,
    device: Device,
    lender: TreeModel,
    *,
    limit_s: float,
    seed: int = 0,
    options: BenchOptions | None = None,
    on_progress: OnProgress | None = None,
    guard: Callable[[], None] | None = None,
) -> Calibration:
    """Measure the layers on which a tree is least sure, for `limit_s`, and adapt the tree to them.

    Parameters
    ----------
    store : Store
        Receives every attempt at once; attempts of an earlier calibration count, and are not repeated.
    engine : Engine
        Owns the device.
    device : Device
    lender : TreeModel
        A tree from `lender_of`.
    limit_s : float
        No problem starts after this time.
    seed : int
    options : BenchOptions, optional
    on_progress : callable, optional
    guard : callable, optional
        Called before each problem; what it raises ends the calibration without a tree.

    Notes
    -----
    An interrupt or the loss of the device ends the measuring: the tree is adapted to what was measured until then.
    Times of a throttled or shared device are stored as unsteady, and do not count.
    """
    options = options or BenchOptions(seed=seed)
    run_id, ended, advisor = f"calibrate-{default_run_id(device, options)}", "", Advisor(lender, device)
    measuring = Measuring(store, engine, device, options, run_id, limit_s, on_progress=on_progress, guard=guard)
    try:
        measuring.run(((advice.problem, to_measure(advice)) for advice in least_sure(advisor, seed)), _MEASURING)
        measuring.run(_choices(fit_of(store, device, lender)))
    except KeyboardInterrupt:
        ended = "it was interrupted"
    except WorkerError as error:
        ended = f"its worker was lost: {error}"
    fit, adaptation, missing = fit_of(store, device, lender), None, ""
    try:
        adaptation = adapt(fit)
    except NotEnoughData as error:
        n_unsteady = measuring.outcomes.get(Outcome.UNSTEADY, 0)
        missing = f"{error}; what was measured is kept, and the same command goes on"
        if n_unsteady:
            missing += f" ({counted(n_unsteady, 'time')} did not count: the device was throttled or shared)"
    return Calibration(device, lender, len(fit.costs.problems), measuring.outcomes, ended, adaptation, missing)


def _choices(fit: Fit) -> Iterator[tuple[ConvProblem, tuple[str, ...]]]:
    """The choices on the held-back layers of a tree that is adapted without them; they judge the adapted tree."""
    try:
        rest, unseen = held_back(fit.device, fit.costs)
        advisor = Advisor(adapted(fit.on(rest)))
    except NotEnoughData:
        return
    for row, problem in enumerate(unseen.problems):
        choice = advisor.predict(problem)
        if choice and not _is_known(unseen, row, choice[0]):
            yield problem, (choice[0],)


def _is_known(costs: Costs, row: int, variant: str) -> bool:
    return variant in costs.variants and bool(costs.is_known[row, costs.variants.index(variant)])
