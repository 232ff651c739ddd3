"""Launcher of implicit_gemm_tensor.cu."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as cuts
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Tile
from conv_advisor.kernels.cuda.implicit_gemm_tensor.plan import SOURCE
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch


def launch(problem: ConvProblem, _device: Device, cut: Cut[Tile]) -> Launch:
    """One launch with this tile and cluster."""
    defines = cuts.defines_for(cut, problem) | defines_of(problem.epilogue)
    kernel = load_kernel(SOURCE, "implicit_gemm_tensor", problem.dtype, **defines)
    start = prepare_start(
        kernel,
        cuts.grid_for(cut, problem),
        cut.tile.threads,
        cuts.shared_bytes(cut, problem),
        cuts.sizes_for(cut, problem),
        cluster=cut.cluster,
        overlaps=overlaps(SOURCE),
        is_structure=True,
    )
    return launch_of(start, problem.epilogue)
