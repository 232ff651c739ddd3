"""The view of a plan: each layer as PyTorch runs it by default and as the plan does, and the totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from conv_advisor.app.plans.parameters import NetworkParameters, PlanParameters, batches_of
from conv_advisor.app.web.forms import address, typed
from conv_advisor.data import networks
from conv_advisor.models.planning.plan import RIVAL_NAMES, Layer, Plan, Total

Parameters = TypeVar("Parameters", bound=PlanParameters)

ASKED: Final[Mapping[str, str]] = {"name": "resnet50", "batches": "1", "dtype": "float32"}
"""The parameters of the plan that is shown by default."""
FIELDS: Final = ("name", "batches", "dtype", "device", "only", "dims")


@dataclass(frozen=True)
class PlannedRow:
    """One layer of a plan; its bars in percent of the longest of all layers.

    Parameters
    ----------
    layer : Layer
    after, before : float
        Bars of the planned time, and of PyTorch's default in NCHW; 0 where that is unknown.
    href : str
        Address of the advice on it.
    """

    layer: Layer
    after: float
    before: float
    href: str


@dataclass(frozen=True)
class PlanTotal:
    """An alternative's time for the whole network; ``end`` is its bar in percent of the slowest one's."""

    title: str
    total: Total
    end: float

    @property
    def basis(self) -> str:
        """How its times are known."""
        total = self.total
        n_all = total.n_measured + total.n_predicted + total.n_unknown
        if total.n_unknown:
            return f"{n_all - total.n_unknown} of {n_all} known"
        return {0: "predicted", n_all: "measured"}.get(total.n_measured, f"{total.n_measured} of {n_all} measured")


@dataclass(frozen=True)
class PlanView:
    """A plan at one batch.

    Parameters
    ----------
    plan : Plan
    batch : int
    rows : sequence of PlannedRow
        The slowest layers first.
    totals : sequence of PlanTotal
        The alternatives with a known time.
    own_end : float
        The plan's own bar.
    """

    plan: Plan
    batch: int
    rows: Sequence[PlannedRow]
    totals: Sequence[PlanTotal]
    own_end: float


def asked_of(kind: type[Parameters], values: Mapping[str, str]) -> Parameters:
    """The parameters that a form or an address has.

    Raises
    ------
    InvalidInput
    """
    return typed(kind, {name: values.get(name, "").strip() for name in FIELDS})


def known(parameters: NetworkParameters, device_id: str) -> dict[str, str]:
    """Parameters of the plan of a network that ships, without its name, on this device."""
    values = {
        "batches": ",".join(map(str, batches_of(parameters.batches))),
        "dtype": str(parameters.dtype),
        "device": device_id,
    }
    return values | ({"only": str(parameters.only)} if parameters.only else {})


def networks_by_name() -> list[str]:
    """The networks that ship whole."""
    return sorted(filter(networks.is_network, networks.names()))


def plan_views(plans: Mapping[int, Plan]) -> list[PlanView]:
    """Plans by batch, as they are drawn."""
    return [_view(plan, batch) for batch, plan in plans.items()]


def _view(plan: Plan, batch: int) -> PlanView:
    longest_ms = max(max(layer.total_ms, layer.default_ms or 0.0) for layer in plan.layers)
    rows = [
        PlannedRow(
            layer,
            after=_end(layer.total_ms, longest_ms),
            before=_end(layer.default_ms or 0.0, longest_ms),
            href=_advice(layer, plan.device_id),
        )
        for layer in sorted(plan.layers, key=lambda layer: layer.total_ms, reverse=True)
    ]
    slowest = max([1.0, *(total.speedup for total in plan.rivals.values() if total.speedup)])
    totals = [
        PlanTotal(RIVAL_NAMES[rival], total, _end(total.speedup, slowest))
        for rival, total in plan.rivals.items()
        if total.speedup
    ]
    return PlanView(plan, batch, rows, totals, _end(1.0, slowest))


def _advice(layer: Layer, device_id: str) -> str:
    problem = layer.problem
    return address("/", layer=problem.brief, dtype=problem.dtype, layout=problem.layout, device=device_id)


def _end(value: float, longest: float) -> float:
    return round(100 * value / longest, 1)
