"""One convolution layer: its shape, its arithmetic, and the names people give it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from math import prod
from typing import Any, Final, Generic, TypeVar, overload

from conv_advisor.data.errors import InvalidLayerName, InvalidProblem

MAX_ELEMENTS: Final = 2**31 - 1
"""Elements a tensor may have: kernels and libraries index with 32-bit integers."""


class DType(StrEnum):
    """Precision of the data and the arithmetic; every accumulation is in float32.

    ``float32`` means no tensor cores. ``tf32`` is float32 data whose products may be rounded to tf32.

    Attributes
    ----------
    itemsize_bytes : int
        What one stored element takes.
    """

    FLOAT32 = "float32"
    TF32 = "tf32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    itemsize_bytes: int

    def __init__(self, value: str) -> None:
        self.itemsize_bytes = 4 if value in ("float32", "tf32") else 2  # no property: lists ask it by the 100,000


class Layout(StrEnum):
    """Memory order of x and y; the weight is (K,C,R,S) under ``nchw`` and (K,R,S,C) under ``nhwc``."""

    NCHW = "nchw"
    NHWC = "nhwc"


KEY_ENDS: Final = {(dtype, layout): f"-{dtype}-{layout}" for dtype in DType for layout in Layout}
"""How a problem's key goes on after its short form."""


T = TypeVar("T")


class _once(Generic[T]):  # noqa: N801 - it stands where property does
    """`functools.cached_property` without its lock, which before Python 3.12 costs more than the value."""

    def __init__(self, make: Callable[[ConvProblem], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, problem: None, _owner: type) -> _once[T]: ...
    @overload
    def __get__(self, problem: ConvProblem, _owner: type) -> T: ...
    def __get__(self, problem: ConvProblem | None, _owner: type) -> T | _once[T]:
        if problem is None:
            return self
        made = problem.__dict__[self._name] = self._make(problem)
        return made


_SHORT = re.compile(r"(?P<h>\d+)-(?P<n>\d+)-(?P<r>\d+)-(?P<k>\d+)-(?P<c>\d+)", re.ASCII)
_LONG = re.compile(
    r"(?P<h>\d+)x(?P<w>\d+)-(?P<n>\d+)-(?P<r>\d+)x(?P<s>\d+)-(?P<k>\d+)-(?P<c>\d+)"
    r"-stride(?P<stride_h>\d+)x(?P<stride_w>\d+)-pad(?P<pad_h>\d+)x(?P<pad_w>\d+)"
    r"-dilation(?P<dilation_h>\d+)x(?P<dilation_w>\d+)-groups(?P<groups>\d+)",
    re.ASCII,
)
_SIZES = ("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")
_PADS = ("pad_h", "pad_w")
_INT = {int}


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
        if type(self.dtype) is not DType:
            object.__setattr__(self, "dtype", _member(DType, "dtype", self.dtype))
        if type(self.layout) is not Layout:
            object.__setattr__(self, "layout", _member(Layout, "layout", self.layout))
        if not self.is_sound():
            self._check()

    def is_sound(self) -> bool:
        """Whether the fields' values are allowed, as those of every problem are that was made by its class."""
        # What `_check` finds too, in a fraction of its time.
        n, c, h, w, k, r, s, groups = self.n, self.c, self.h, self.w, self.k, self.r, self.s, self.groups
        stride_h, stride_w, dilation_h, dilation_w = self.stride_h, self.stride_w, self.dilation_h, self.dilation_w
        pad_h, pad_w = self.pad_h, self.pad_w
        sizes = (n, c, h, w, k, r, s, groups, stride_h, stride_w, dilation_h, dilation_w)
        if {*map(type, sizes), type(pad_h), type(pad_w)} != _INT or min(sizes) < 1 or pad_h < 0 or pad_w < 0:
            return False
        if max(sizes) > MAX_ELEMENTS or pad_h > MAX_ELEMENTS or pad_w > MAX_ELEMENTS or c % groups or k % groups:
            return False
        rows, columns = h + 2 * pad_h - dilation_h * (r - 1) - 1, w + 2 * pad_w - dilation_w * (s - 1) - 1
        if rows < 0 or columns < 0:
            return False
        y_elements = n * k * (rows // stride_h + 1) * (columns // stride_w + 1)
        return max(n * c * h * w, k * (c // groups) * r * s, y_elements) <= MAX_ELEMENTS

    def _check(self) -> None:
        """Name the first field whose value is not allowed."""
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
            if prod(shape) > MAX_ELEMENTS:
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
        groups = match.groups()
        if max(map(len, groups)) > 10:
            raise InvalidLayerName("layer", layer, f"numbers of at most {MAX_ELEMENTS}")
        if match.re is _LONG:
            return cls(**({name: int(digits) for name, digits in match.groupdict().items()} | changes))
        size, batch, taps, filters, depth = map(int, groups)
        pad = taps // 2
        same = {"n": batch, "c": depth, "h": size, "w": size, "k": filters, "r": taps, "s": taps}
        return cls(**(same | {"pad_h": pad, "pad_w": pad} | changes))

    @_once
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

    @_once
    def key(self) -> str:
        """A string that two problems share exactly when they are equal; stored data, never changed."""
        return self.short + KEY_ENDS[self.dtype, self.layout]

    @_once
    def p(self) -> int:
        """Output height."""
        return (self.h + 2 * self.pad_h - self.dilation_h * (self.r - 1) - 1) // self.stride_h + 1

    @_once
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
        return 2 * self.n * self.p * self.q * self.k * (self.c // self.groups) * self.r * self.s

    @property
    def x_bytes(self) -> int:
        """Bytes of x."""
        return self.n * self.c * self.h * self.w * self.dtype.itemsize_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight."""
        return self.k * (self.c // self.groups) * self.r * self.s * self.dtype.itemsize_bytes

    @property
    def y_bytes(self) -> int:
        """Bytes of y."""
        return self.n * self.k * self.p * self.q * self.dtype.itemsize_bytes

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
