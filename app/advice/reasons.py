"""Why variants do not run a layer on a device: by rule, by past outcomes there, or by the tree's prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conv_advisor.kernels import catalog
from conv_advisor.kernels.variant import why_not

if TYPE_CHECKING:
    from conv_advisor.app.service.devices import KnownDevices
    from conv_advisor.app.service.recall import Recall
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.problem import ConvProblem


def reasons_why_not(
    known: KnownDevices, recall: Recall, problem: ConvProblem, device_id: str
) -> tuple[Device, dict[str, str]]:
    """A device, and the reason why each variant that does not run a problem there does not, by variant id.

    Raises
    ------
    UnknownDevice, ModelRejected, StoreError
    """
    advisor, device = known.advisor(device_id), known.find(device_id)
    measured = recall.summaries([problem], device_id).get(problem.key)
    rules = {name: why_not(variant, problem, device) for name, variant in catalog.VARIANTS.items()}
    return device, advisor.doubts(problem, measured) | {name: reason for name, reason in rules.items() if reason}
