"""From a CUDA variant and a problem to a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from conv_advisor.data.errors import NotApplicable
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.cuconv import launch as cuconv
from conv_advisor.kernels.cuda.depthwise import launch as depthwise
from conv_advisor.kernels.cuda.direct import launch as direct
from conv_advisor.kernels.cuda.fft import launch as fft
from conv_advisor.kernels.cuda.gemm import launch as gemm
from conv_advisor.kernels.cuda.grouped import launch as grouped
from conv_advisor.kernels.cuda.implicit_gemm import launch as implicit_gemm
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import launch as implicit_gemm_nhwc
from conv_advisor.kernels.cuda.pointwise import launch as pointwise
from conv_advisor.kernels.cuda.winograd import launch as winograd
from conv_advisor.kernels.cuda.winograd_large import launch as winograd_large
from conv_advisor.kernels.variant import Launch, Variant

_PREPARE: Final[dict[str, Callable[[ConvProblem, Device, int], Launch]]] = {
    "cuda.direct_naive": direct.prepare_naive,
    "cuda.direct_constant": direct.prepare_constant,
    "cuda.direct_tiled_halo": direct.prepare_tiled_halo,
    "cuda.direct_tiled_cached": direct.prepare_tiled_cached,
    "cuda.cuconv": cuconv.prepare,
    "cuda.depthwise": depthwise.prepare,
    "cuda.gemm": gemm.prepare,
    "cuda.implicit_gemm": implicit_gemm.prepare,
    "cuda.implicit_gemm_nhwc": implicit_gemm_nhwc.prepare,
    "cuda.implicit_gemm_transposed": implicit_gemm_nhwc.prepare,
    "cuda.fft": fft.prepare,
    "cuda.winograd_fused": winograd.prepare_fused,
    "cuda.winograd_nonfused": winograd.prepare_nonfused,
    "cuda.winograd_nonfused_4x4_3x3": winograd_large.prepare,
    "cuda.winograd_nonfused_4x4_5x5": winograd_large.prepare,
    "cuda.pointwise": pointwise.prepare,
    "cuda.grouped": grouped.prepare,
}


def prepare(variant: Variant, problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """Compile the variant's kernels for the current device and allocate its workspace.

    Parameters
    ----------
    variant : Variant
        Of the CUDA backend.
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
        Whatever CUDA and its libraries raise comes through as it is.
    """
    reason = variant.why_not(problem, device)
    if reason is not None:
        raise NotApplicable(variant.id, reason)
    return _PREPARE[variant.id](problem, device, workspace_limit_bytes)
