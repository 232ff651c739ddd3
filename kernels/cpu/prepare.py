"""Makes a CPU variant runnable: compiles it and allocates its scratch memory."""

from __future__ import annotations

from typing import Final

import numpy as np

from conv_advisor.data.errors import InvalidTensor, NotApplicable, OutOfMemory, WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu import direct, fft, gemm, winograd
from conv_advisor.kernels.cpu.epilogue import compiled_activation
from conv_advisor.kernels.cpu.tensors import Array
from conv_advisor.kernels.cpu.threads import Threads, available_cores
from conv_advisor.kernels.cpu.variants import PLANS, is_parallel
from conv_advisor.kernels.reference import HOST_DTYPE
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Algorithm, Launch, Variant

_PREPARE: Final = {
    Algorithm.DIRECT: direct.prepare,
    Algorithm.GEMM: gemm.prepare,
    Algorithm.FFT: fft.prepare,
    Algorithm.WINOGRAD: winograd.prepare,
}

_ANY_CPU: Final = Device(id="cpu", name="any CPU", kind="cpu")


def prepare(
    variant: Variant, problem: ConvProblem, workspace_limit_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES
) -> Launch:
    """Compile and allocate, so that the launch only computes.

    Parameters
    ----------
    variant : Variant
        One of `kernels.cpu.variants.VARIANTS`.
    problem : ConvProblem
    workspace_limit_bytes : int

    Returns
    -------
    launch : Launch
        Its run takes C-contiguous host arrays. It raises InvalidTensor for any other array, or where a tensor that the
        epilogue adds is missing. Two threads must not call it at once.

    Raises
    ------
    NotApplicable, WorkspaceExceeded, OutOfMemory
    """
    reason = variant.why_not(problem, _ANY_CPU)
    if reason is not None:
        raise NotApplicable(variant.id, reason)
    plan = PLANS[variant.algorithm](problem)
    if plan.workspace_bytes > workspace_limit_bytes:
        raise WorkspaceExceeded(plan.workspace_bytes, workspace_limit_bytes)
    threads = Threads(available_cores() if is_parallel(variant) else 1)
    try:
        run = _PREPARE[variant.algorithm](problem, plan, threads)
        compiled_activation(problem.epilogue.activation)  # now, and not in the first launch, which decides on pruning
    except MemoryError as error:
        raise OutOfMemory(str(error)) from error

    shapes = {**problem.shapes, "y": problem.y_shape}

    def checked_run(
        x: Array, weight: Array, y: Array, bias: Array | None = None, residual: Array | None = None
    ) -> None:
        tensors = {"x": x, "weight": weight, "y": y, "bias": bias, "residual": residual}
        for name, shape in shapes.items():
            _check(name, tensors[name], shape, problem)
        # Compiled loops assume aligned floats, which a view into received bytes need not be.
        x, weight = np.require(x, requirements="A"), np.require(weight, requirements="A")
        run(x, weight, y, bias if "bias" in shapes else None, residual if "residual" in shapes else None)

    return Launch(checked_run, plan.workspace_bytes)


def _check(name: str, tensor: Array | None, shape: tuple[int, ...], problem: ConvProblem) -> None:
    dtype = HOST_DTYPE[problem.dtype]
    if tensor is None:
        raise InvalidTensor(name, tensor, f"contiguous {dtype}{shape}")
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.flags.c_contiguous:
        order = "contiguous" if tensor.flags.c_contiguous else "strided"
        raise InvalidTensor(name, f"{order} {tensor.dtype}{tensor.shape}", f"contiguous {dtype}{shape}")
