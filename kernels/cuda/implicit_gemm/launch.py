"""Launcher of implicit_gemm.cu and of implicit_gemm_tensor.cu."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.implicit_gemm import plan as plans
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as tensor_plans
from conv_advisor.kernels.cuda.implicit_gemm_tensor.plan import choose_cut
from conv_advisor.kernels.cuda.parts.launching import prepare_start
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the kernel, the tile and the cluster that are expected to be fastest."""
    cut = choose_cut(problem, device)
    return prepare_tensor_cut(problem, cut) if isinstance(cut, tensor_plans.Cut) else prepare_cut(problem, cut)


def prepare_cut(problem: ConvProblem, cut: plans.Cut) -> Launch:
    """One launch of implicit_gemm.cu with this tile and cluster."""
    tile, loading = cut.tile, plans.loading_for(problem)
    kernel = load_kernel("implicit_gemm", "implicit_gemm", problem.dtype, **tile.defines, LOADING=int(loading))
    grid = (plans.blocks_for(cut, problem), 1, 1)
    shared_bytes = plans.shared_bytes(tile, problem, loading, cut.cluster)
    shape = [int(size) for size in shape_arguments(problem)]
    start = prepare_start(kernel, grid, tile.threads, shared_bytes, shape, cluster=cut.cluster)
    return Launch(lambda x, weight, y: start(x.data.ptr, weight.data.ptr, y.data.ptr))


def prepare_tensor_cut(problem: ConvProblem, cut: tensor_plans.Cut) -> Launch:
    """One launch of implicit_gemm_tensor.cu with this tile and cluster."""
    defines = tensor_plans.defines_for(cut, problem)
    kernel = load_kernel("implicit_gemm_tensor", "implicit_gemm_tensor", problem.dtype, **defines)
    start = prepare_start(
        kernel,
        tensor_plans.grid_for(cut, problem),
        cut.tile.threads,
        tensor_plans.shared_bytes(cut, problem),
        tensor_plans.sizes_for(cut, problem),
        cluster=cut.cluster,
        is_structure=True,
    )
    return Launch(lambda x, weight, y: start(x.data.ptr, weight.data.ptr, y.data.ptr))
