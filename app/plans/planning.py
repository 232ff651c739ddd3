"""From a network to its plan, with the trees and measurements of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Final

from conv_advisor.app.advice.advise import Known, advise
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.plans.known import known_network
from conv_advisor.app.plans.onnx_network import network_of
from conv_advisor.app.plans.parameters import NetworkParameters, PlanParameters, batches_of, dims_of
from conv_advisor.app.plans.reading import read_outline
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import ConvAdvisorError, InvalidInput, QueueFull
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.planning.conversion import UNCOUNTED, converter
from conv_advisor.models.planning.network import Network
from conv_advisor.models.planning.plan import Plan, make_plan

if TYPE_CHECKING:
    from conv_advisor.app.service.service import Service

Plans = dict[int, Plan]
"""Plans by batch."""

AT_ONCE: Final = 2
"""Models that one process may read and plan at the same time."""
MAX_DIFFERENT: Final = 5000
"""Most different convolutions in one request, over all its batches: the largest networks have hundreds."""
_PLANNERS: Final = BoundedSemaphore(AT_ONCE)


def plan_network(known: Known, network: Network, limits: Limits, check: Callable[[], object] = lambda: None) -> Plan:
    """Layout and variant of every convolution of a network, by one tree and the measurements.

    Parameters
    ----------
    known : Known
    network : Network
    limits : Limits
        The workspace is that of the whole network; see `make_plan`.
    check : callable
        Called after the advice on each convolution; what it raises ends the plan.

    Raises
    ------
    NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    advisor = known.advisor(limits.device_id)
    if advisor.model is None:
        network = replace(network, remarks=(*network.remarks, UNCOUNTED))
    if advisor.loan is not None:
        network = replace(network, remarks=(*network.remarks, advisor.loan.reason))

    def checked(problems: Sequence[ConvProblem]) -> Iterator[Advice | ConvAdvisorError]:
        for answer in advise(known, advisor, problems, limits):
            check()
            yield answer

    return make_plan(network, checked, converter(advisor))


def plan_known(service: Service, parameters: NetworkParameters) -> Plans:
    """Plans of a network whose layers ship.

    Raises
    ------
    UnknownNetwork, InvalidProblem, NoAdvice, UnknownDevice, ModelRejected, StoreError, WorkerError
    """
    return _plans(
        service, parameters, lambda batch: known_network(parameters.name, batch=batch, dtype=parameters.dtype)
    )


def plan_model(service: Service, body: bytes, parameters: PlanParameters) -> Plans:
    """Plans of an ONNX model.

    Raises
    ------
    InvalidInput, NotInstalled, QueueFull, NoAdvice, UnknownDevice, ModelRejected, StoreError, WorkerError
    """
    dims = dims_of(parameters.dims)
    if not _PLANNERS.acquire(blocking=False):
        raise QueueFull(f"{AT_ONCE} models are being planned already")
    try:
        outline = partial(read_outline, body, dims=dims, check=service.check)
        return _plans(
            service, parameters, lambda batch: network_of(outline(batch=batch), parameters.name, parameters.dtype)
        )
    finally:
        _PLANNERS.release()


def _plans(service: Service, parameters: PlanParameters, network: Callable[[int], Network]) -> Plans:
    limits, batches, plans = Limits.of(parameters, service), batches_of(parameters.batches), {}
    for batch in batches:
        whole = network(batch)
        count = len({operator.problem for operator in whole.convolutions})
        if count * len(batches) > MAX_DIFFERENT:
            text = f"{count} different convolutions in {counted(len(batches), 'batch', 'batches')}"
            raise InvalidInput("model", text, f"at most {MAX_DIFFERENT} over all batches")
        plans[batch] = plan_network(service, whole, limits, service.check)
    return plans
