"""Launcher of appended.cu."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import Any, Final

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.parts.division import divider
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.cuda.parts.source import Source
from conv_advisor.kernels.variant import Launch

SOURCE: Final = Source("appended")
_THREADS: Final = 256


def append(launch: Launch, problem: ConvProblem) -> Launch:
    """Append a kernel that computes the epilogue to a launch of the convolution alone; nothing without an epilogue."""
    if not problem.epilogue:
        return launch
    kernel = load_kernel(SOURCE, "appended", problem.dtype, **defines_of(problem.epilogue))
    elements = prod(problem.y_shape)
    inner = problem.p * problem.q if problem.layout is Layout.NCHW else 1
    blocks = ceil(elements / (_THREADS * (16 // problem.dtype.itemsize_bytes)))
    sizes = (elements, problem.k, inner, *divider(problem.k), *divider(inner))
    start = prepare_start(kernel, (blocks, 1, 1), _THREADS, 0, sizes, overlaps=overlaps(SOURCE))

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        launch.run(x, weight, y)
        start(y.data.ptr, *addresses(problem.epilogue, ends))

    return replace(launch, run=run)
