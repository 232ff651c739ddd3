"""Why variants do not run a layer on a device: by their rules, by what happened there, and by what the tree expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from conv_advisor.kernels import catalog
from conv_advisor.kernels.variant import why_not

if TYPE_CHECKING:
    from conv_advisor.data.measurement import Device
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.data.summary import Summary
    from conv_advisor.models.advisor import Advisor


def reasons_why_not(
    advisor: Advisor, device: Device, problem: ConvProblem, measured: Mapping[str, Summary] | None
) -> dict[str, str]:
    """The reason of each variant that does not run a problem, by its id.

    Parameters
    ----------
    advisor : Advisor
    device : Device
    problem : ConvProblem
    measured : mapping of variant to Summary
        What is known of this problem on this device.
    """
    rules = {name: why_not(variant, problem, device) for name, variant in catalog.VARIANTS.items()}
    return advisor.doubts(problem, measured) | {name: reason for name, reason in rules.items() if reason}
