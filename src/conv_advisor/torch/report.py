"""What became of each convolution of a model, as values and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conv_advisor.data.problem import ConvProblem
from conv_advisor.torch.choosing.choice import Choice
from conv_advisor.torch.whole import Errors


@dataclass(frozen=True)
class Layer:
    """One convolution module on one problem.

    Parameters
    ----------
    name : str
        As the model knows the module.
    problem : ConvProblem or None
        None where it is none of ours, or was not called.
    count : int
        How often one run of the model computes it.
    choice : Choice or None
    reason : str
        Why it stays PyTorch's own; empty where it was swapped.
    """

    name: str
    problem: ConvProblem | None = None
    count: int = 0
    choice: Choice | None = None
    reason: str = ""

    @property
    def is_swapped(self) -> bool:
        """Whether a variant of the ranking runs it now."""
        return not self.reason

    @property
    def torch_ms(self) -> float | None:
        """Time of PyTorch's own convolution, over all its runs; None where that is unknown."""
        return self.choice.torch_ms * self.count if self.choice and self.choice.torch_ms else None

    @property
    def time_ms(self) -> float | None:
        """Its time now, over all its runs; None where that is unknown."""
        if not self.is_swapped:
            return self.torch_ms
        return self.choice.time_ms * self.count if self.choice and self.choice.time_ms else None

    def cells(self) -> list[str]:
        """What its row of the table says."""
        runs_by = (self.choice and self.is_swapped and self.choice.variant) or f"PyTorch's own: {self.reason}"
        times = ["" if time_ms is None else f"{time_ms * 1000:.1f}" for time_ms in (self.torch_ms, self.time_ms)]
        return [self.name, self.problem.short if self.problem else "", str(self.count or ""), *times, runs_by]


@dataclass(frozen=True)
class Report:
    """What became of every convolution of a model.

    Parameters
    ----------
    layers : tuple of Layer
        In the order of its modules; a module that is called with several shapes stands once for each.
    errors : Errors or None
        None where they were not asked for.
    """

    layers: tuple[Layer, ...]
    errors: Errors | None = None

    @property
    def n_swapped(self) -> int:
        """Rows that a variant of the ranking runs now."""
        return sum(layer.is_swapped for layer in self.layers)

    @property
    def gain(self) -> float | None:
        """How many times as fast the convolutions are together as PyTorch's own, where both are known; None else."""
        known = [(layer.torch_ms, layer.time_ms) for layer in self.layers if layer.torch_ms and layer.time_ms]
        return sum(before or 0.0 for before, _ in known) / sum(after or 0.0 for _, after in known) if known else None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        table = [["layer", "problem", "times", "µs before", "µs now", "runs by"]]
        table += [layer.cells() for layer in self.layers]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for cells in table:
            yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        gain = f", together {self.gain:.2f} times as fast" if self.gain else ""
        yield f"{self.n_swapped} of {len(self.layers)} swapped{gain}"
        if self.errors:
            yield f"error against float64: {self.errors.now:.2g}, before {self.errors.before:.2g}"
