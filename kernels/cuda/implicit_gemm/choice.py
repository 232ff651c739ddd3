"""Which of two kernels an implicit GEMM takes: its own, or the tensor-core kernel for small batches."""

from __future__ import annotations

from typing import Any

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.implicit_gemm import menu, plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import menu as tensor_menu
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as tensor_plan
from conv_advisor.kernels.cuda.parts.offers import Cut, Offer, cheapest
from conv_advisor.kernels.cuda.parts.shapes import Shapes


def offers(problems: Shapes, device: Device) -> tuple[Offer[Any], ...]:
    """The cuts of both kernels, those of tensor cores first: they are chosen where both are equally fast."""
    return (*tensor_plan.offers(problems, device), *plan.offers(problems, device))


def choose_cut(problem: ConvProblem, device: Device) -> Cut[tensor_menu.Tile] | Cut[menu.Tile]:
    """The cut of either kernel that is expected to be fastest."""
    cut: Cut[tensor_menu.Tile] | Cut[menu.Tile] = cheapest(offers(Shapes.of(problem), device))
    return cut
