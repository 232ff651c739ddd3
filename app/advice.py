"""Advice on layers: what was measured and what the model predicts, brought together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.schemas import AdviceParameters
from app.service import Service
from data.errors import ConvAdvisorError
from data.problem import ConvProblem
from models.advisor import Advice


@dataclass(frozen=True)
class Limits:
    """What advice is for: the device, and what a variant may take and must be."""

    device_id: str
    max_workspace_bytes: int
    is_deterministic: bool

    @classmethod
    def of(cls, asked: AdviceParameters, service: Service) -> Limits:
        """The limits that were asked for, else the service's own."""
        workspace = asked.max_workspace_bytes
        return cls(
            asked.device or service.default_device_id(),
            service.settings.workspace_limit_bytes if workspace is None else workspace,
            asked.deterministic,
        )


def advise(service: Service, problems: Sequence[ConvProblem], limits: Limits) -> list[Advice | ConvAdvisorError]:
    """Advice on each problem, or why there is none; a measured time counts before a predicted one.

    Raises
    ------
    UnknownDevice, ModelRejected, StoreError
    """
    advisor = service.advisor(limits.device_id)
    measured = service.store.summaries(problems, limits.device_id)
    found: list[Advice | ConvAdvisorError] = []
    for problem in problems:
        try:
            advice = advisor.advise(
                problem,
                max_workspace_bytes=limits.max_workspace_bytes,
                is_deterministic=limits.is_deterministic,
                measured=measured.get(problem.key),
            )
            found.append(advice)
        except ConvAdvisorError as error:
            found.append(error)
    return found


def advise_one(service: Service, problem: ConvProblem, limits: Limits) -> Advice:
    """Advice on one problem.

    Raises
    ------
    NoAdvice, UnknownDevice, ModelRejected, StoreError
    """
    (found,) = advise(service, [problem], limits)
    if isinstance(found, ConvAdvisorError):
        raise found
    return found
