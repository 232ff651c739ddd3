"""Limits of an advice: the device, and what a variant may take and must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conv_advisor.app.service.service import Service
    from conv_advisor.app.wire.schemas import LimitParameters
    from conv_advisor.kernels.variant import Maker


@dataclass(frozen=True)
class Limits:
    """The device, and what a variant may take and must be."""

    device_id: str
    max_workspace_bytes: int
    is_deterministic: bool
    only: Maker | None = None

    @classmethod
    def of(cls, parameters: LimitParameters, service: Service) -> Limits:
        """The limits of a request, with the service's own where it sets none."""
        workspace = parameters.max_workspace_bytes
        return cls(
            service.known.asked_id(parameters.device),
            service.settings.workspace_limit_bytes if workspace is None else workspace,
            parameters.deterministic,
            parameters.only,
        )
