"""Which of two kernels an implicit GEMM takes: its own, or that of the tensor cores for small batches."""

from __future__ import annotations

from collections.abc import Iterator

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.implicit_gemm import plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as tensor_cut
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as tensor_plan
from conv_advisor.kernels.cuda.parts.offers import Offer, cheapest
from conv_advisor.kernels.cuda.parts.shapes import Shapes


def offers(problems: Shapes, device: Device) -> Iterator[Offer]:
    """The cuts of both, those of tensor cores first: the choice is theirs where both take as long."""
    yield from tensor_plan.offers(problems, device)
    yield from plan.offers(problems, device)


def choose_cut(problem: ConvProblem, device: Device) -> tensor_cut.Cut | plan.Cut:
    """The cut of either kernel that is expected to be fastest."""
    cut: tensor_cut.Cut | plan.Cut = cheapest(offers(Shapes.of(problem), device))
    return cut
