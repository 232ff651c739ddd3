"""GEMM for at most eight filters, channels last: the last layers of decoders, optical flow and depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.parts.rules import ANY
from conv_advisor.kernels.variant import Algorithm, all_of, dilation_1, groups_1, layout_is, no_workspace, stride_1

if TYPE_CHECKING:
    from conv_advisor.kernels.cuda.parts.shapes import Problems

MOST_FILTERS: Final = 8
LEAST_CHANNELS: Final = 8
"""With fewer channels most of each product would be zeros: only two-byte types take them, a row of taps at a time."""
MOST_TAPS: Final = 11
"""Rows and columns of a filter."""
MOST_ROW: Final = 40
"""Taps in one row of all filters together, which are multiplied at a time."""
MOST_LONE_TAPS: Final = 16
"""Rows and columns of a filter of fewer than `LEAST_CHANNELS`: of these, shared memory has room for more rows."""


def takes_windows(problem: Problems) -> Any:
    """Whether few_outputs.cu is for each problem; the others are for few_outputs_rows.cu alone."""
    return problem.c >= LEAST_CHANNELS


def _has_few_outputs(problem: ConvProblem, _device: Device) -> str | None:
    if problem.k > MOST_FILTERS:
        return f"k is {problem.k}, above {MOST_FILTERS}"
    if problem.c < LEAST_CHANNELS and problem.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return f"c is {problem.c}, below {LEAST_CHANNELS}"
    return None


def _fits_a_block(problem: ConvProblem, _device: Device) -> str | None:
    if not takes_windows(problem):
        if max(problem.r, problem.s) > MOST_LONE_TAPS:
            return f"filter is {problem.r}x{problem.s}, above {MOST_LONE_TAPS}"
        if problem.s * problem.k > MOST_ROW:
            return f"{problem.k} filters have {problem.s * problem.k} taps in a row, above {MOST_ROW}"
        return None
    if max(problem.r, problem.s) > MOST_TAPS:
        return f"filter is {problem.r}x{problem.s}, above {MOST_TAPS}"
    if problem.s * problem.k > MOST_ROW:
        return f"{problem.k} filters have {problem.s * problem.k} taps in a row, above {MOST_ROW}"
    return None


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.few_outputs import launch, plan, rows

    return Kernel(sources=(plan.SOURCE, rows.SOURCE), prepare={"cuda.few_outputs": launch.prepare})


FAMILY: Final = Family(
    "few_outputs",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.few_outputs",
            Algorithm.IMPLICIT_GEMM,
            why_not=all_of(
                ANY,
                layout_is(Layout.NHWC),
                groups_1,
                stride_1,
                dilation_1,
                _has_few_outputs,
                _fits_a_block,
            ),
            workspace_bytes=no_workspace,
            source="PTX ISA 8.0: mma; Vasudevan et al., arXiv:1704.04428",
            kernel=_kernel,
        ),
    ),
)
