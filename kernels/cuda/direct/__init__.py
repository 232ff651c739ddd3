"""The direct kernels of the post: naive, filters in constant memory, and tiles in shared memory."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.direct import plan
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES
from conv_advisor.kernels.cuda.parts.rules import NCHW, PLAIN
from conv_advisor.kernels.variant import Algorithm, Rule, all_of, no_workspace

_POST: Final = "Convolutions in CUDA (post)"


def _fits_constant_memory(problem: ConvProblem, _device: Device) -> str | None:
    filters = plan.constant_filters(problem)
    if filters == 0:
        filter_bytes = problem.gemm_k * problem.dtype.itemsize_bytes
        return f"one filter has {filter_bytes} bytes, above the {plan.CONSTANT_BYTES} of constant memory"
    chunks = -(-problem.k // filters)
    if chunks > plan.MOST_CONSTANT_CHUNKS:
        return f"the filters take {chunks} fillings of constant memory, above {plan.MOST_CONSTANT_CHUNKS}"
    return None


def _fits_shared_memory(has_halo: bool) -> Rule:
    def why_not(problem: ConvProblem, _device: Device) -> str | None:
        if plan.has_tiles(problem, has_halo=has_halo):
            return None
        return f"a tile and one {problem.r}x{problem.s} filter exceed the {SHARED_BYTES} bytes of shared memory"

    return why_not


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.direct import launch

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={
            "cuda.direct_naive": launch.prepare_naive,
            "cuda.direct_constant": launch.prepare_constant,
            "cuda.direct_tiled_halo": launch.prepare_tiled_halo,
            "cuda.direct_tiled_cached": launch.prepare_tiled_cached,
        },
    )


FAMILY: Final = Family(
    "direct",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.direct_naive",
            Algorithm.DIRECT,
            why_not=NCHW,
            workspace_bytes=no_workspace,
            source=_POST,
            kernel=_kernel,
        ),
        cuda_variant(
            "cuda.direct_constant",
            Algorithm.DIRECT,
            why_not=all_of(NCHW, _fits_constant_memory),
            workspace_bytes=no_workspace,
            source=_POST,
            kernel=_kernel,
        ),
        cuda_variant(
            "cuda.direct_tiled_halo",
            Algorithm.DIRECT,
            why_not=all_of(PLAIN, _fits_shared_memory(has_halo=True)),
            workspace_bytes=no_workspace,
            source=_POST,
            kernel=_kernel,
        ),
        cuda_variant(
            "cuda.direct_tiled_cached",
            Algorithm.DIRECT,
            why_not=all_of(PLAIN, _fits_shared_memory(has_halo=False)),
            workspace_bytes=no_workspace,
            source=_POST,
            kernel=_kernel,
        ),
    ),
)
