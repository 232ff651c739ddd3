"""Sizes of many problems at once, with the attribute names of one problem: plans compute with either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

import numpy as np

from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import SIZES, output_plane, sizes_of

Array = np.ndarray[Any, Any]
Ints = Any
"""An integer or an array of integers: the same arithmetic serves one problem and many."""


@dataclass(frozen=True)
class Shapes:
    """Problems of one dtype and layout, each size an array of int64.

    Parameters
    ----------
    dtype : DType
    layout : Layout
    n, c, h, w, k, r, s, p, q : int64 array of shape (N,)
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups : int64 array of shape (N,)
    pad_h_end, pad_w_end : int64 array of shape (N,)
    """

    dtype: DType
    layout: Layout
    n: Array
    c: Array
    h: Array
    w: Array
    k: Array
    r: Array
    s: Array
    stride_h: Array
    stride_w: Array
    pad_h: Array
    pad_w: Array
    dilation_h: Array
    dilation_w: Array
    groups: Array
    pad_h_end: Array
    pad_w_end: Array
    p: Array
    q: Array

    @classmethod
    def of_table(cls, sizes: Array, dtype: DType, layout: Layout) -> Shapes:
        """Shapes from the columns of `data.table`, with the output plane added."""
        p, q = output_plane(sizes)
        return cls(dtype, layout, **dict(zip(SIZES, sizes.T, strict=True)), p=p, q=q)

    @classmethod
    def of(cls, problem: ConvProblem) -> Shapes:
        """Shapes of one problem."""
        return cls.of_table(sizes_of([problem]), problem.dtype, problem.layout)

    def __len__(self) -> int:
        return len(self.n)

    def parts(self, most: int) -> Iterator[Shapes]:
        """The problems in order, in parts of at most ``most``."""
        for first in range(0, len(self), most):
            yield self.take(np.arange(first, min(first + most, len(self))))

    def take(self, rows: Array) -> Shapes:
        """Some of the problems."""
        return Shapes(self.dtype, self.layout, *[column[rows] for column in _columns(self)])


_columns: Final = attrgetter(*SIZES, "p", "q")

Problems = ConvProblem | Shapes
"""One problem or many: the same arithmetic serves both."""


def is_pointwise(problems: Problems) -> Any:
    """Whether a filter has one tap, which lies inside every image."""
    has_rows = (problems.pad_h == 0) & ((problems.p - 1) * problems.stride_h < problems.h)
    has_columns = (problems.pad_w == 0) & ((problems.q - 1) * problems.stride_w < problems.w)
    return (problems.r * problems.s == 1) & has_rows & has_columns


def is_dense(problems: Problems) -> Any:
    """Whether a filter has one tap, which reads every pixel once."""
    return is_pointwise(problems) & (problems.stride_h == 1) & (problems.stride_w == 1)


def has_patches(problem: ConvProblem) -> bool:
    """Whether patches lie side by side in a row of x, with no pixels between or beside them."""
    # The rarest condition comes first: predictions call this for most layers.
    return (
        1 < problem.s == problem.stride_w
        and (problem.dilation_w, problem.w % problem.s) == (1, 0)
        and problem.pad_w == problem.pad_w_end == 0
        and problem.layout is Layout.NHWC
    )


def by_patches(problem: ConvProblem) -> ConvProblem:
    """The same layer with a patch's row of pixels as the channels of one pixel, where patches lie side by side.

    The memory is the same, so y is too: in x (N, H, W, C) the S pixels of a filter's row are consecutive, as they are
    in the weight (K, R, S, C).
    """
    if not has_patches(problem):
        return problem
    return replace(problem, c=problem.c * problem.s, w=problem.w // problem.s, s=1, stride_w=1)
