"""The kernels whose cut a fitted model chooses, and how each is asked for its cuts, what it expects, and a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.cuda.grouped import plan as grouped_choice
from conv_advisor.kernels.cuda.implicit_gemm import plan as implicit_gemm_plan
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as implicit_gemm_nhwc_plan
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as implicit_gemm_choice
from conv_advisor.kernels.cuda.pointwise import plan as pointwise_plan
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch


@dataclass(frozen=True)
class Kernel:
    """A kernel of ours.

    Parameters
    ----------
    variants : tuple of str
        It runs where one of them applies.
    cuts : callable (problem, device) -> sequence
        All that it may choose from.
    expected_us : callable (cut, problem, device) -> float
    prepare : callable (problem, device, cut) -> Launch
        Needs a GPU.
    module : module
        Holds the constants of the model.
    """

    variants: tuple[str, ...]
    cuts: Callable[[ConvProblem, Device], Sequence[Any]]
    expected_us: Callable[[Any, ConvProblem, Device], float]
    prepare: Callable[[ConvProblem, Device, Any], Launch]
    module: ModuleType

    def applies(self, problem: ConvProblem, device: Device) -> bool:
        """Whether it computes the problem."""
        return any(VARIANTS[name].why_not(problem, device) is None for name in self.variants)


def _images(problem: ConvProblem) -> int:
    return implicit_gemm_nhwc_plan.images_at_a_time(problem, DEFAULT_WORKSPACE_LIMIT_BYTES)


def _nhwc_us(cut: Any, problem: ConvProblem, device: Device) -> float:
    return implicit_gemm_nhwc_plan.expected_us(cut, problem, device, _images(problem))


def _nhwc(problem: ConvProblem, _device: Device, cut: Any) -> Launch:
    from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import prepare_cut

    return prepare_cut(problem, _images(problem), cut)


def _tensor(problem: ConvProblem, _device: Device, cut: Any) -> Launch:
    from conv_advisor.kernels.cuda.implicit_gemm.launch import prepare_tensor_cut

    return prepare_tensor_cut(problem, cut)


def _plain(problem: ConvProblem, _device: Device, cut: Any) -> Launch:
    from conv_advisor.kernels.cuda.implicit_gemm.launch import prepare_cut

    return prepare_cut(problem, cut)


def _pointwise(problem: ConvProblem, device: Device, cut: Any) -> Launch:
    from conv_advisor.kernels.cuda.pointwise.launch import prepare_cut

    return prepare_cut(problem, cut, device.processors)


def _grouped(problem: ConvProblem, _device: Device, cut: Any) -> Launch:
    from conv_advisor.kernels.cuda.grouped.launch import prepare_cut

    return prepare_cut(problem, cut)


KERNELS: Final = {
    "implicit_gemm": Kernel(
        variants=("cuda.implicit_gemm",),
        cuts=implicit_gemm_plan.every_cut,
        expected_us=implicit_gemm_plan.expected_us,
        prepare=_plain,
        module=implicit_gemm_plan,
    ),
    "implicit_gemm_tensor": Kernel(
        variants=("cuda.implicit_gemm",),
        cuts=implicit_gemm_choice.every_cut,
        expected_us=implicit_gemm_choice.expected_us,
        prepare=_tensor,
        module=implicit_gemm_choice,
    ),
    "implicit_gemm_nhwc": Kernel(
        variants=("cuda.implicit_gemm_nhwc", "cuda.implicit_gemm_transposed"),
        cuts=lambda problem, _device: implicit_gemm_nhwc_plan.every_cut(problem),
        expected_us=_nhwc_us,
        prepare=_nhwc,
        module=implicit_gemm_nhwc_plan,
    ),
    "pointwise": Kernel(
        variants=("cuda.pointwise",),
        cuts=lambda problem, _device: pointwise_plan.cuts_for(problem),
        expected_us=lambda cut, problem, device: pointwise_plan.expected_us(cut, problem, device.processors),
        prepare=_pointwise,
        module=pointwise_plan,
    ),
    "grouped": Kernel(
        variants=("cuda.grouped",),
        cuts=lambda problem, device: grouped_choice.every_walk(problem, device.processors),
        expected_us=lambda cut, problem, device: grouped_choice.estimate_us(problem, cut, device.processors),
        prepare=_grouped,
        module=grouped_choice,
    ),
}
"""By the names of their sources."""


def name_of(cut: Any) -> str:
    """What a cut is told from others by: all its fields but the fitted times, which a refit changes."""
    if is_dataclass(cut):
        return "(" + " ".join(text for each in fields(cut) if (text := name_of(getattr(cut, each.name)))) + ")"
    if isinstance(cut, float):
        return ""
    return str(cut.value if isinstance(cut, Enum) else int(cut) if isinstance(cut, bool) else cut)
