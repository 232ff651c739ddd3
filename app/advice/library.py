"""``conv_advisor.advise``: advice in a Python program or a notebook, without a server."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Final

from conv_advisor.app.advice.local import Local
from conv_advisor.app.settings import load_settings
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Maker
from conv_advisor.models.advisor import Advice
from conv_advisor.models.candidates import Choice, Source

if TYPE_CHECKING:
    from conv_advisor.app.wire.answers.advice import AdviceAnswer
    from conv_advisor.data.problem import DType, Layout

_SHOWN: Final = 5
"""Variants of the ranking that are printed."""


class LayerAdvice(Advice):
    """What to run for a layer, as `advise` answers: immutable, and shown as a table in a notebook.

    Beside what `Advice` holds (``problem device_id model_id ranking excluded path trust best variant trusted``) it has
    the answers that are asked for most.
    """

    __slots__ = ()

    @property
    def time_ms(self) -> float:
        """Time of the best variant."""
        return self.best.time_ms

    @property
    def is_measured(self) -> bool:
        """Whether that time was measured on this layer, and not predicted."""
        return self.best.source is Source.MEASURED

    @property
    def confidence(self) -> float | None:
        """Probability that the best variant is within 5 % of the fastest; None where that is unknown."""
        return self.trust.confidence

    @property
    def is_guess(self) -> bool:
        """Whether the layer is unlike all that the tree was trained on, and the tree abstains: measure it."""
        return self.trust.abstains

    def to_dict(self) -> AdviceAnswer:
        """All of it, as ``GET /v1/advice`` and ``conv-advisor advise --json`` answer."""
        import msgspec

        from conv_advisor.app.wire.answers.advice import advice_json

        answer: AdviceAnswer = msgspec.json.decode(advice_json(self))
        return answer

    def __repr__(self) -> str:
        rest = len(self.ranking) - _SHOWN
        rows = [_cells(choice) for choice in self.ranking[:_SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        more = [f"... and {rest} more; {self._out()}" if rest > 0 else self._out()]
        return "\n".join([f"{self._title()}: {self.variant}", self.trusted, *lines, *more])

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in _cells(choice)) for choice in self.ranking]
        excluded = "".join(f"<li>{escape(each.variant)}: {escape(each.reason)}</li>" for each in self.excluded)
        heads = "".join(f"<th>{head}</th>" for head in ("variant", "time", "slowdown", "time is", "workspace", ""))
        return (
            f"<p><strong>{escape(self._title())}</strong><br>{escape(self.trusted)}</p>"
            f"<table><thead><tr>{heads}</tr></thead><tbody>"
            + "".join(f"<tr>{row}</tr>" for row in rows)
            + f"</tbody></table><details><summary>{self._out()}</summary><ul>{excluded}</ul></details>"
        )

    def _out(self) -> str:
        return counted(len(self.excluded), "is out", "are out")

    def _title(self) -> str:
        problem = self.problem
        return f"{problem.short} {problem.dtype} {problem.layout} on {self.device_id}"


def advise(
    layer: str | ConvProblem,
    *,
    dtype: DType | str | None = None,
    layout: Layout | str | None = None,
    device: str | None = None,
    max_workspace_bytes: int | None = None,
    deterministic: bool = False,
    only: Maker | str | None = None,
) -> LayerAdvice:
    """Which variant is fastest for a layer, how fast, how sure, and why the others are out.

    The answer is the one that a server and the command line give with the same settings (``CONV_ADVISOR_<NAME>`` in the
    environment, read at the first call).

    Parameters
    ----------
    layer : str or ConvProblem
        ``size-batch-filter-filters-depth``, such as ``14-1-3-256-128``; a `ConvProblem` where it is no plain layer.
    dtype, layout : str, optional
        For a layer that is given by name; float32 (no tensor cores) and nchw by default.
    device : str, optional
        One that has a tree or measurements; by default the one that ``CONV_ADVISOR_ADVICE_DEVICE`` names, else that
        with the most measurements of those that have a tree.
    max_workspace_bytes : int, optional
        Scratch memory that a variant may use; 1 GiB by default.
    deterministic : bool
        Whether only variants will do whose equal inputs give equal bits.
    only : str, optional
        ``cudnn``: only its variants will do.

    Returns
    -------
    advice : LayerAdvice

    Raises
    ------
    InvalidInput, InvalidProblem, InvalidLayerName
        A value that is not allowed.
    UnknownDevice
        The device has neither a tree nor measurements.
    NoAdvice
        No variant is known to run within the limits.
    ModelRejected, StoreError

    Examples
    --------
    >>> import conv_advisor
    >>> advice = conv_advisor.advise("14-1-3-256-128", dtype="float16", layout="nhwc", device="nvidia-h200")
    >>> advice.best.variant == advice.variant == advice.ranking[0].variant
    True
    """
    if max_workspace_bytes is not None and (type(max_workspace_bytes) is not int or max_workspace_bytes < 0):
        raise InvalidInput("max_workspace_bytes", max_workspace_bytes, "a number of bytes, from 0, or None")
    local = _local()
    found = local.advise(
        _problem_of(layer, dtype, layout),
        local.default_device_id if device is None else device,
        max_workspace_bytes=max_workspace_bytes,
        is_deterministic=deterministic,
        only=_maker_of(only),
    )
    return LayerAdvice(**{field.name: getattr(found, field.name) for field in fields(found)})


@cache
def _local() -> Local:
    return Local(load_settings())


os.register_at_fork(after_in_child=_local.cache_clear)  # a connection to the database serves one process


def _maker_of(only: Maker | str | None) -> Maker | None:
    try:
        return None if only is None else Maker(only)
    except ValueError:
        raise InvalidInput("only", only, f"{', '.join(Maker)}, or None") from None


def _problem_of(layer: str | ConvProblem, dtype: DType | str | None, layout: Layout | str | None) -> ConvProblem:
    given = {name: value for name, value in (("dtype", dtype), ("layout", layout)) if value is not None}
    if isinstance(layer, str):
        return ConvProblem.parse(layer, **given)
    if not isinstance(layer, ConvProblem):
        raise InvalidInput("layer", layer, "a layer's name, such as '14-1-3-256-128', or a ConvProblem")
    for name, value in given.items():
        raise InvalidProblem(name, value, "nothing beside a ConvProblem, which says it")
    return layer


def _cells(choice: Choice) -> tuple[str, ...]:
    workspace = "" if choice.workspace_bytes is None else f"{choice.workspace_bytes:,} bytes"
    tied = "tied" if choice.is_tied else ""
    return choice.variant, f"{choice.time_ms:.4g} ms", f"{choice.slowdown:.2f}x", str(choice.source), workspace, tied
