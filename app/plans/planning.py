"""From a network to its plan, by what is known of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conv_advisor.app.advice.advise import Known, advise
from conv_advisor.app.advice.limits import Limits
from conv_advisor.models.planning.conversion import converter
from conv_advisor.models.planning.plan import Plan, make_plan

if TYPE_CHECKING:
    from conv_advisor.models.planning.network import Network


def plan_network(known: Known, network: Network, limits: Limits) -> Plan:
    """Layout and variant of every convolution of a network, by one tree and what was measured.

    Parameters
    ----------
    known : Known
    network : Network
    limits : Limits
        The workspace is that of the whole network; see `make_plan`.

    Raises
    ------
    NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    advisor = known.advisor(limits.device_id)
    return make_plan(network, lambda problems: advise(known, advisor, problems, limits), converter(advisor.model))
