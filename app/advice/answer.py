"""Advice as a Python object, from this process or from a server."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from conv_advisor.data.counting import counted
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.baselines import NAMES, Baseline
from conv_advisor.models.ranking.candidates import Choice, Source

if TYPE_CHECKING:
    from conv_advisor.app.wire.answers.advice import AdviceAnswer

_SHOWN: Final = 5
"""Variants of the ranking in the printed form."""


class LayerAdvice(Advice):
    """What to run for a layer, as `advise` answers: immutable, and shown as a table in a notebook.

    Adds the most common answers to the fields of `Advice` (``problem device_id model_id ranking excluded path trust
    best variant trusted``).
    """

    __slots__ = ()

    @property
    def time_ms(self) -> float:
        """Time of the best variant."""
        return self.best.time_ms

    @property
    def is_measured(self) -> bool:
        """Whether `time_ms` was measured on this layer, and not predicted."""
        return self.best.source is Source.MEASURED

    @property
    def confidence(self) -> float | None:
        """Probability that the best variant is within 5 % of the fastest; None where that is unknown."""
        return self.trust.confidence

    @property
    def is_guess(self) -> bool:
        """Whether the layer is unlike all that the tree was trained on, so that the tree abstains: measure it."""
        return self.trust.abstains

    def to_dict(self) -> AdviceAnswer:
        """The whole advice, as ``GET /v1/advice`` and ``conv-advisor advise --json`` answer."""
        import msgspec

        from conv_advisor.app.wire.answers.advice import advice_json

        answer: AdviceAnswer = msgspec.json.decode(advice_json(self))
        return answer

    def __repr__(self) -> str:
        n_hidden = len(self.ranking) - _SHOWN
        rows = [_cells(choice) for choice in self.ranking[:_SHOWN]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        beside = [
            f"against {name}: {comparison or f'unknown, {baseline.basis}'}"
            for name, comparison, baseline in self._against()
        ]
        footer = [f"... and {n_hidden} more; {self._out()}" if n_hidden > 0 else self._out()]
        return "\n".join([f"{self._title()}: {self.variant}", self.trusted, *lines, *beside, *footer])

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in _cells(choice)) for choice in self.ranking]
        excluded = "".join(
            f"<li>{escape(exclusion.variant)}: {escape(exclusion.reason)}</li>" for exclusion in self.excluded
        )
        beside = "".join(
            f"<li>against {escape(name)}: {escape(comparison or 'unknown')} ({escape(baseline.basis)})</li>"
            for name, comparison, baseline in self._against()
        )
        heads = "".join(f"<th>{head}</th>" for head in ("variant", "time", "slowdown", "time is", "workspace", ""))
        return (
            f"<p><strong>{escape(self._title())}</strong><br>{escape(self.trusted)}</p>"
            f"<table><thead><tr>{heads}</tr></thead><tbody>"
            + "".join(f"<tr>{row}</tr>" for row in rows)
            + f"</tbody></table><ul>{beside}</ul><details><summary>{self._out()}</summary><ul>{excluded}</ul></details>"
        )

    def _against(self) -> list[tuple[str, str, Baseline]]:
        """Name, comparison as text (empty where it is unknown) and value of each baseline."""
        baselines = [(name, getattr(self.baselines, field)) for field, name in NAMES.items()]
        return [(name, _compared(baseline), baseline) for name, baseline in baselines]

    def _out(self) -> str:
        return counted(len(self.excluded), "is out", "are out")

    def _title(self) -> str:
        problem = self.asked
        return f"{problem.brief} {problem.dtype} {problem.layout} on {self.device_id}"


def _compared(baseline: Baseline) -> str:
    if baseline.speedup is None:
        return ""
    variant = f", {baseline.variant}" if baseline.variant else ""
    return f"{baseline.speedup:.2f}x as fast, {baseline.time_ms:.4g} ms {baseline.source}{variant}"


def _cells(choice: Choice) -> tuple[str, ...]:
    workspace = "" if choice.workspace_bytes is None else f"{choice.workspace_bytes:,} bytes"
    tied = "tied" if choice.is_tied else ""
    return choice.variant, f"{choice.time_ms:.4g} ms", f"{choice.slowdown:.2f}x", str(choice.source), workspace, tied
