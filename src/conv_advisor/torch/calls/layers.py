"""From one call of PyTorch's convolution to the problem that it is, or why it is none of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.torch.nodes import size_as_made

_DTYPES: Final = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16, torch.bfloat16: DType.BFLOAT16}
TORCH_DTYPES: Final = {DType.TF32: torch.float32} | {dtype: torch_dtype for torch_dtype, dtype in _DTYPES.items()}
MEMORY_FORMATS: Final = {Layout.NCHW: torch.contiguous_format, Layout.NHWC: torch.channels_last}

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]
"""Top, left, bottom and right."""


@dataclass(frozen=True)
class Geometry:
    """How the filter goes over the image: rows first, then columns; zeros are added at each of the four sides."""

    stride: Pair
    padding: Sides
    dilation: Pair
    groups: int

    @property
    def arguments(self) -> tuple[list[int], list[int], list[int], int]:
        """Stride, padding, dilation and groups as PyTorch's convolutions take them.

        Padding has four numbers where opposite sides differ, which our operators alone take.
        """
        begin, end = self.padding[:2], self.padding[2:]
        return list(self.stride), list(begin if begin == end else self.padding), list(self.dilation), self.groups


def geometry_of(weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Geometry:
    """The arguments of ``torch.conv2d`` as numbers.

    Parameters
    ----------
    weight : tensor of shape (K,C/groups,R,S)
    stride, dilation : int or sequence of int
    padding : int, sequence of int as `sides_of` has it, or ``same`` or ``valid``
    groups : int
    """
    steps, dilations = _pair(stride), _pair(dilation)
    if not isinstance(padding, str):
        return Geometry(steps, sides_of(padding), dilations, int(groups))
    if padding == "valid":
        return Geometry(steps, sides_of(0), dilations, int(groups))
    around = [step * (int(taps) - 1) for step, taps in zip(dilations, weight.shape[2:], strict=True)]
    begin = [total // 2 for total in around]
    end = [total - half for total, half in zip(around, begin, strict=True)]
    return Geometry(steps, sides_of([*begin, *end]), dilations, int(groups))


def geometry_of_problem(problem: ConvProblem) -> Geometry:
    """How the filter of a problem goes over the image."""
    return Geometry(
        (problem.stride_h, problem.stride_w),
        (problem.pad_h, problem.pad_w, problem.pad_h_end, problem.pad_w_end),
        (problem.dilation_h, problem.dilation_w),
        problem.groups,
    )


def problem_of(x: Any, weight: Any, geometry: Geometry, *, is_tf32_allowed: bool) -> ConvProblem | str:
    """The problem that a convolution of x with weight is, or why it is none.

    Parameters
    ----------
    x : tensor of shape (N,C,H,W)
        Real or fake; a symbolic size counts as what it was when the graph was made.
    weight : tensor of shape (K,C/groups,R,S)
    geometry : Geometry
    is_tf32_allowed : bool
        Whether products of float32 may be rounded to tf32.
    """
    if x.dim() != 4 or weight.dim() != 4:
        return f"x has {x.dim()} dimensions, not 4"
    if x.dtype not in _DTYPES or x.dtype != weight.dtype:
        return f"x is {x.dtype} and weight {weight.dtype}, not both float32, float16 or bfloat16"
    dtype = _DTYPES[x.dtype]
    if dtype is DType.FLOAT32 and is_tf32_allowed:
        dtype = DType.TF32
    sizes = [hint for size in (*x.shape, *weight.shape) if (hint := size_as_made(size)) is not None]
    if len(sizes) != 8:
        return f"x is of shape {tuple(x.shape)}, which is not known before it runs"
    n, c, h, w, k, _, r, s = sizes
    pad_h, pad_w, pad_h_end, pad_w_end = geometry.padding
    try:
        return ConvProblem(
            *(n, c, h, w, k, r, s),
            *(*geometry.stride, pad_h, pad_w, *geometry.dilation, geometry.groups),
            pad_h_end=pad_h_end,
            pad_w_end=pad_w_end,
            dtype=dtype,
            layout=layout_of(x, weight),
        )
    except InvalidProblem as error:
        return str(error)


def layout_of(x: Any, weight: Any) -> Layout:
    """The layout that PyTorch gives y: channels last where x or weight has it."""
    formats = {torch._prims_common.suggest_memory_format(tensor) for tensor in (x, weight)}
    return Layout.NHWC if torch.channels_last in formats else Layout.NCHW


def is_tf32_allowed() -> bool:
    """Whether PyTorch lets cuDNN round products of float32 now."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # it was set by its newer name, and reading the older one is then refused
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")


def is_autocast_on(tensor: Any) -> bool:
    """Whether PyTorch casts what is computed with a tensor now; on some devices, such as ``meta``, it never does."""
    if not torch._C._is_any_autocast_enabled():
        return False
    device = tensor.device.type
    return bool(torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device))


def sides_of(padding: int | Sequence[int]) -> Sides:
    """The padding of each side: one number is for all, two are for rows and columns, and four stay as they are."""
    if not isinstance(padding, int) and len(padding) == 4:
        top, left, bottom, right = map(int, padding)
        return top, left, bottom, right
    return (*_pair(padding), *_pair(padding))


def _pair(value: int | Sequence[int]) -> Pair:
    if isinstance(value, int):
        return value, value
    first, last = value[0], value[-1]
    return int(first), int(last)
