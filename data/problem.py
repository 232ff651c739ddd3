"""One convolution layer: its shape, its arithmetic, and the names people give it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import prod
from typing import Any, Final, Generic, TypeVar, cast, overload

from conv_advisor.data import layer_names
from conv_advisor.data.epilogue import PLAIN, Epilogue
from conv_advisor.data.errors import InvalidProblem

MAX_ELEMENTS: Final = 2**31 - 1
"""Most elements of a tensor: kernels and libraries index with 32-bit integers."""


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
"""The part of a problem's key after its short form."""


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
        value = problem.__dict__[self._name] = self._make(problem)
        return value


_SIZES = ("n", "c", "h", "w", "k", "r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")
_PADS = ("pad_h", "pad_w", "pad_h_end", "pad_w_end")
_INT = {int}


_AS_THE_BEGIN: Final = cast("int", None)


@dataclass(frozen=True)
class ConvProblem:
    """A 2-D convolution (cross-correlation) of x (N,C,H,W) with weight (K,C/groups,R,S) to y (N,K,P,Q).

    The operations before the one rounding belong to it: y = activation(conv(x, weight) + bias + residual).

    Parameters
    ----------
    n, c, h, w, k, r, s : int
        Batch, depth, input height and width, filters, filter height and width; each at least 1.
    stride_h, stride_w, dilation_h, dilation_w, groups : int
        At least 1; groups divides c and k.
    pad_h, pad_w : int
        Rows of zeros on top and columns of zeros on the left; at least 0.
    dtype : DType or str
    layout : Layout or str
    pad_h_end, pad_w_end : int, optional
        Rows at the bottom and columns on the right; by default as many as on the other side. The default is filled in
        at once: `dataclasses.replace` of pad_h alone keeps pad_h_end.
    epilogue : Epilogue

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
    # Left out of the hash, which advice takes often: few problems differ only in these.
    pad_h_end: int = field(default=_AS_THE_BEGIN, hash=False)
    pad_w_end: int = field(default=_AS_THE_BEGIN, hash=False)
    epilogue: Epilogue = field(default=PLAIN, hash=False)

    def __post_init__(self) -> None:
        if self.pad_h_end is _AS_THE_BEGIN:
            object.__setattr__(self, "pad_h_end", self.pad_h)
        if self.pad_w_end is _AS_THE_BEGIN:
            object.__setattr__(self, "pad_w_end", self.pad_w)
        if type(self.dtype) is not DType:
            object.__setattr__(self, "dtype", _member(DType, "dtype", self.dtype))
        if type(self.layout) is not Layout:
            object.__setattr__(self, "layout", _member(Layout, "layout", self.layout))
        if not self.is_sound():
            self._check()

    def is_sound(self) -> bool:
        """Whether the fields' values are allowed, as they are in every problem made by its constructor."""
        # The same verdict as `_check`, in a fraction of its time.
        n, c, h, w, k, r, s, groups = self.n, self.c, self.h, self.w, self.k, self.r, self.s, self.groups
        stride_h, stride_w, dilation_h, dilation_w = self.stride_h, self.stride_w, self.dilation_h, self.dilation_w
        pad_h, pad_w, pad_h_end, pad_w_end = pads = (self.pad_h, self.pad_w, self.pad_h_end, self.pad_w_end)
        sizes = (n, c, h, w, k, r, s, groups, stride_h, stride_w, dilation_h, dilation_w)
        if {*map(type, sizes + pads)} != _INT or min(sizes) < 1 or min(pads) < 0:
            return False
        if max(sizes) > MAX_ELEMENTS or max(pads) > MAX_ELEMENTS or c % groups or k % groups:
            return False
        if type(self.epilogue) is not Epilogue:
            return False
        rows, columns = (
            h + pad_h + pad_h_end - dilation_h * (r - 1) - 1,
            w + pad_w + pad_w_end - dilation_w * (s - 1) - 1,
        )
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
        if type(self.epilogue) is not Epilogue:
            raise InvalidProblem("epilogue", self.epilogue, "an Epilogue")
        for name in ("c", "k"):
            if getattr(self, name) % self.groups:
                raise InvalidProblem("groups", self.groups, f"a divisor of {name} = {getattr(self, name)}")
        for padded, taps, dilation, name in (
            (self.padded_h, self.r, self.dilation_h, "r"),
            (self.padded_w, self.s, self.dilation_w, "s"),
        ):
            if dilation * (taps - 1) + 1 > padded:
                raise InvalidProblem(name, taps, f"a dilated filter no larger than the padded input, {padded} here")
        for tensor, shape in (("x", self.x_shape), ("weight", self.weight_shape), ("y", self.y_shape)):
            if prod(shape) > MAX_ELEMENTS:
                raise InvalidProblem(tensor, shape, f"at most {MAX_ELEMENTS} elements")

    @classmethod
    def parse(cls, layer: str, **changes: Any) -> ConvProblem:
        """Read the short form ``size-batch-filter-filters-depth``, e.g. ``14-1-3-256-128``, and what may follow it.

        The short form means a square layer of stride 1 whose padding is filter // 2: an odd filter keeps the size.
        All else follows in this order: ``56-1-3-64-64-stride2-pad0-dilation2-groups4``, two numbers where the sides
        differ, ``56x28-1-7x1-64-64-stride2x1``; then the epilogue, ``14-1-3-256-128-bias-relu``. `parse` reads both
        `short` and `brief`.

        Parameters
        ----------
        layer : str
        **changes
            Any other field, e.g. ``dtype="float16"``.

        Raises
        ------
        InvalidLayerName, InvalidProblem
        """
        return cls(**(layer_names.read(layer, MAX_ELEMENTS) | changes))

    @_once
    def short(self) -> str:
        """The short form where it tells everything but dtype and layout, else a long form in the same order."""
        return layer_names.short(self)

    @_once
    def brief(self) -> str:
        """The shortest name that `parse` reads: the short form, followed by what is not as usual."""
        return layer_names.brief(self)

    @_once
    def key(self) -> str:
        """A string that two problems share exactly when they are equal; stored data, never changed."""
        return self.short + KEY_ENDS[self.dtype, self.layout]

    @_once
    def p(self) -> int:
        """Output height."""
        return (self.padded_h - self.dilation_h * (self.r - 1) - 1) // self.stride_h + 1

    @_once
    def q(self) -> int:
        """Output width."""
        return (self.padded_w - self.dilation_w * (self.s - 1) - 1) // self.stride_w + 1

    @property
    def padded_h(self) -> int:
        """Height of the padded input."""
        return self.h + self.pad_h + self.pad_h_end

    @property
    def padded_w(self) -> int:
        """Width of the padded input."""
        return self.w + self.pad_w + self.pad_w_end

    @property
    def has_uneven_padding(self) -> bool:
        """Whether opposite sides are padded differently."""
        return self.pad_h != self.pad_h_end or self.pad_w != self.pad_w_end

    @_once
    def layer(self) -> ConvProblem:
        """The layer that the problem belongs to, whatever its batch, dtype and layout."""
        return replace(self, n=1, dtype=DType.FLOAT32, layout=Layout.NCHW)

    @property
    def plain(self) -> ConvProblem:
        """The convolution alone, without its epilogue."""
        return self._alone if self.epilogue else self

    @_once
    def _alone(self) -> ConvProblem:
        return replace(self, epilogue=PLAIN)

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
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs, in memory order: x, weight, and the bias and residual of the epilogue."""
        shapes: dict[str, tuple[int, ...]] = {"x": self.x_shape, "weight": self.weight_shape}
        if self.epilogue.bias:
            shapes["bias"] = (self.k,)
        if self.epilogue.residual:
            shapes["residual"] = self.y_shape
        return shapes

    @property
    def is_alike_in_layouts(self) -> bool:
        """Whether x, weight and y are the same bytes in either layout: one pixel, or one channel, in each."""
        return (
            (self.h == self.w == 1 or self.c == 1)
            and (self.r == self.s == 1 or self.c == self.groups)
            and (self.p == self.q == 1 or self.k == 1)
        )

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
        epilogue = self.epilogue
        bias_bytes = self.k * self.dtype.itemsize_bytes * epilogue.bias
        return self.x_bytes + self.weight_bytes + bias_bytes + self.y_bytes * (1 + epilogue.residual)

    def _ordered(self, first: int, channels: int, rows: int, columns: int) -> tuple[int, int, int, int]:
        if self.layout is Layout.NCHW:
            return (first, channels, rows, columns)
        return (first, rows, columns, channels)


FIELDS: Final = tuple(attribute.name for attribute in fields(ConvProblem))[:16]
"""The names, in order, of the fields that make up a plain problem with even padding."""

ENDINGS: Final = tuple(attribute.name for attribute in fields(ConvProblem))[16:]
"""The names of the other fields."""

COLUMNS: Final = (*FIELDS, *ENDINGS)
"""The columns of stored data. Those of `ENDINGS` are null where they say nothing, as in all rows older than them."""


def to_columns(problem: ConvProblem) -> tuple[Any, ...]:
    """A problem as the values of `COLUMNS`, of plain types."""
    ends = (problem.pad_h_end, problem.pad_w_end) if problem.has_uneven_padding else (None, None)
    values = [getattr(problem, name) for name in FIELDS[:-2]]
    return *values, str(problem.dtype), str(problem.layout), *ends, str(problem.epilogue) or None


def of_columns(values: Sequence[Any]) -> ConvProblem:
    """The problem of a row's `COLUMNS`.

    Raises
    ------
    InvalidProblem
    """
    by_column = dict(zip(COLUMNS, values, strict=True))
    epilogue = by_column.pop("epilogue")
    return ConvProblem(**by_column, epilogue=Epilogue.parse(epilogue) if epilogue else PLAIN)


def _member(kind: type[StrEnum], name: str, value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        raise InvalidProblem(name, value, ", ".join(kind)) from None


def _check_int(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= MAX_ELEMENTS:
        raise InvalidProblem(name, value, f"an integer from {least} to {MAX_ELEMENTS}")
