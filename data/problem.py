"""One convolution layer: its shape, its arithmetic, and the names people give it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from data.errors import InvalidLayerName, InvalidProblem

MAX_ELEMENTS: Final = 2**31 - 1
"""Elements a tensor may have: kernels and libraries index with 32-bit integers."""


class DType(StrEnum):
    """Precision of the data and the arithmetic; every accumulation is in float32.

    ``float32`` means no tensor cores. ``tf32`` is float32 data whose products may be rounded to tf32.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one stored element."""
        return 4 if self in (DType.FLOAT32, DType.TF32) else 2


class Layout(StrEnum):
    """Memory order of x and y; the weight is (K,C,R,S) under ``nchw`` and (K,R,S,C) under ``nhwc``."""

    NCHW = "nchw"
    NHWC = "nhwc"


_SHORT = re.compile(r"(?P<h>\d+)-(?P<n>\d+)-(?P<r>\d+)-(?P<k>\d+)-(?P<c>\d+)", re.ASCII)
_LONG = re.compile(
    r"(?P<h>\d+)x(?P<w>\d+)-(?P<n>\d+)-(?P<r>\d+)x(?P<s>\d+)-(?P<k>\d+)-(?P<c>\d+)"
    r"-stride(?P<stride_h>\d+)x(?P<stride_w>\d+)-pad(?P<pad_h>\d+)x(?P<pad_w>\d+)"
    r"-dilation(?P<dilation_h>\d+)x(?P<dilation_w>\d+)-groups(?P<groups>\d+)",
    re.ASCII,
)
_SIZES = ("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")
_PADS = ("pad_h", "pad_w")


@dataclass(frozen=True)
class ConvProblem:
    """A 2-D convolution (cross-correlation) of x (N,C,H,W) with weight (K,C/groups,R,S) to y (N,K,P,Q).

    Parameters
    ----------
    n, c, h, w, k, r, s : int
        Batch, depth, input height and width, filters, filter height and width; each at least 1.
    stride_h, stride_w, dilation_h, dilation_w, groups : int
        At least 1; groups divides c and k.
    pad_h, pad_w : int
        Rows and columns of zeros on each side; at least 0.
    dtype : DType or str
    layout : Layout or str

    Raises
    ------
    InvalidProblem
        Naming the field, its value and what is allowed.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1
    dtype: DType = DType.FLOAT32
    layout: Layout = Layout.NCHW

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _member(DType, "dtype", self.dtype))
        object.__setattr__(self, "layout", _member(Layout, "layout", self.layout))
        for name in _SIZES:
            _check_int(name, getattr(self, name), least=1)
        for name in _PADS:
            _check_int(name, getattr(self, name), least=0)
        for field in ("c", "k"):
            if getattr(self, field) % self.groups:
                raise InvalidProblem("groups", self.groups, f"a divisor of {field} = {getattr(self, field)}")
        for size, pad, taps, dilation, field in (
            (self.h, self.pad_h, self.r, self.dilation_h, "r"),
            (self.w, self.pad_w, self.s, self.dilation_w, "s"),
        ):
            if dilation * (taps - 1) + 1 > size + 2 * pad:
                raise InvalidProblem(
                    field, taps, f"a dilated filter no larger than the padded input, {size + 2 * pad} here"
                )
        for tensor, shape in (("x", self.x_shape), ("weight", self.weight_shape), ("y", self.y_shape)):
            if _count(shape) > MAX_ELEMENTS:
                raise InvalidProblem(tensor, shape, f"at most {MAX_ELEMENTS} elements")

    @classmethod
    def parse(cls, layer: str, **changes: Any) -> ConvProblem:
        """Read the short form ``size-batch-filter-filters-depth``, e.g. ``14-1-3-256-128``, or what `short` printed.

        The short form means a square layer of stride 1 whose padding is filter // 2: an odd filter keeps the size.

        Parameters
        ----------
        layer : str
        **changes
            Any other field, e.g. ``dtype="float16"``.

        Raises
        ------
        InvalidLayerName, InvalidProblem
        """
        match = _SHORT.fullmatch(layer) or _LONG.fullmatch(layer)
        if match is None:
            raise InvalidLayerName("layer", layer, "size-batch-filter-filters-depth, such as 14-1-3-256-128")
        if max(map(len, match.groups())) > 10:
            raise InvalidLayerName("layer", layer, f"numbers of at most {MAX_ELEMENTS}")
        sizes = {name: int(digits) for name, digits in match.groupdict().items()}
        if "w" not in sizes:
            size, taps = sizes["h"], sizes["r"]
            sizes |= {"w": size, "s": taps, "pad_h": taps // 2, "pad_w": taps // 2}
        return cls(**(sizes | changes))

    @property
    def short(self) -> str:
        """The short form where it says all but dtype and layout, else a long form with the same order of ideas."""
        is_square = self.h == self.w and self.r == self.s
        is_same = self.pad_h == self.pad_w == self.r // 2
        is_plain = self.stride_h == self.stride_w == self.dilation_h == self.dilation_w == self.groups == 1
        if is_square and is_same and is_plain:
            return f"{self.h}-{self.n}-{self.r}-{self.k}-{self.c}"
        return (
            f"{self.h}x{self.w}-{self.n}-{self.r}x{self.s}-{self.k}-{self.c}"
            f"-stride{self.stride_h}x{self.stride_w}-pad{self.pad_h}x{self.pad_w}"
            f"-dilation{self.dilation_h}x{self.dilation_w}-groups{self.groups}"
        )

    @cached_property
    def key(self) -> str:
        """A string that two problems share exactly when they are equal; stored data, never changed."""
        return f"{self.short}-{self.dtype}-{self.layout}"

    @property
    def p(self) -> int:
        """Output height."""
        return (self.h + 2 * self.pad_h - self.dilation_h * (self.r - 1) - 1) // self.stride_h + 1

    @property
    def q(self) -> int:
        """Output width."""
        return (self.w + 2 * self.pad_w - self.dilation_w * (self.s - 1) - 1) // self.stride_w + 1

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """Shape of x in memory order."""
        return self._ordered(self.n, self.c, self.h, self.w)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Shape of the weight in memory order."""
        return self._ordered(self.k, self.c // self.groups, self.r, self.s)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """Shape of y in memory order."""
        return self._ordered(self.n, self.k, self.p, self.q)

    @property
    def gemm_m(self) -> int:
        """Rows of the implicit GEMM: output pixels of the batch."""
        return self.n * self.p * self.q

    @property
    def gemm_n(self) -> int:
        """Columns of the implicit GEMM: filters of one group."""
        return self.k // self.groups

    @property
    def gemm_k(self) -> int:
        """Length of one dot product."""
        return self.c // self.groups * self.r * self.s

    @property
    def flops(self) -> int:
        """Operations of the direct algorithm, a multiply-add counted as two."""
        return 2 * self.gemm_m * self.k * self.gemm_k

    @property
    def x_bytes(self) -> int:
        """Bytes of x."""
        return _count(self.x_shape) * self.dtype.itemsize_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight."""
        return _count(self.weight_shape) * self.dtype.itemsize_bytes

    @property
    def y_bytes(self) -> int:
        """Bytes of y."""
        return _count(self.y_shape) * self.dtype.itemsize_bytes

    @property
    def bytes(self) -> int:
        """Fewest bytes a device must move: each input read once, the output written once."""
        return self.x_bytes + self.weight_bytes + self.y_bytes

    def _ordered(self, first: int, channels: int, rows: int, columns: int) -> tuple[int, int, int, int]:
        if self.layout is Layout.NCHW:
            return (first, channels, rows, columns)
        return (first, rows, columns, channels)


FIELDS: Final = tuple(field.name for field in fields(ConvProblem))
"""The names of a problem's fields, in order: the columns of stored data."""


def _member(kind: type[StrEnum], field: str, value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        raise InvalidProblem(field, value, ", ".join(kind)) from None


def _check_int(field: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= MAX_ELEMENTS:
        raise InvalidProblem(field, value, f"an integer from {least} to {MAX_ELEMENTS}")


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
