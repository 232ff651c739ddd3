"""Which of two kernels an implicit GEMM takes: its own, or that of the tensor cores for small batches."""

from __future__ import annotations

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.implicit_gemm import plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as tensor_cut
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as tensor_plan


def choose_cut(problem: ConvProblem, device: Device) -> tensor_cut.Cut | plan.Cut:
    """The cut of either kernel that is expected to be faster."""
    own = plan.plan_cut(problem, device)
    tensor = tensor_plan.plan_cut(problem, device)
    if tensor is None:
        return own
    is_faster = tensor_plan.expected_us(tensor, problem, device) <= plan.expected_us(own, problem, device)
    return tensor if is_faster else own
