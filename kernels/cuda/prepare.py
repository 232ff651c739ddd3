"""From a CUDA variant and a problem to a launch."""

from __future__ import annotations

from conv_advisor.data.errors import NotApplicable
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.appended.launch import append
from conv_advisor.kernels.cuda.family import CudaVariant
from conv_advisor.kernels.variant import Ending, Launch


def prepare(variant: CudaVariant, problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """Compile the variant's kernels for the current device and allocate its workspace.

    Parameters
    ----------
    variant : CudaVariant
    problem : ConvProblem
    device : Device
        The current one.
    workspace_limit_bytes : int

    Returns
    -------
    launch : Launch

    Raises
    ------
    NotApplicable
    WorkspaceExceeded
        Errors of CUDA and its libraries pass through unchanged.
    """
    reason = variant.why_not(problem, device)
    if reason is not None:
        raise NotApplicable(variant.id, reason)
    return prepare_unasked(variant, problem, device, workspace_limit_bytes)


def prepare_unasked(variant: CudaVariant, problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """`prepare` without checking that the variant applies."""
    if variant.ending is Ending.APPENDED:
        return append(variant.prepare(problem.plain, device, workspace_limit_bytes), problem)
    return variant.prepare(problem, device, workspace_limit_bytes)
