"""The measured layers that are most like a layer that was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from conv_advisor.data.errors import InvalidLayerName
from conv_advisor.data.measurement import Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.table import SIZES, sizes_of, table_of_names
from conv_advisor.models.tree.domain import coordinates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conv_advisor.data.summary import Summary

MOST: Final = 50
"""Most neighbours that may be asked for."""


class Neighbour(msgspec.Struct, frozen=True):
    """One measured layer in the same dtype and layout.

    Parameters
    ----------
    layer : str
        Its short form.
    distance : float
        In octaves, by the weights of `models.tree.domain` for sizes, and with paddings against those that keep the
        size: 0 is the layer itself.
    variant : str
        The fastest variant measured on it.
    time_ms : float
        Its measured time.
    n_measured : int
        Variants that were timed on it.
    advised_slowdown : float or None
        Time there, over the fastest's, of the variant that is advised here; None where it was not timed there.
    """

    layer: str
    distance: float
    variant: str
    time_ms: float
    n_measured: int
    advised_slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    shorts: Sequence[str]
    points: np.ndarray
    squares: np.ndarray


class Neighbourhood:
    """The layers that were measured on one device; those of a dtype and layout get their points on first use.

    Parameters
    ----------
    keys : iterable of str
        Keys of their problems.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._shorts: dict[tuple[str, str], list[str]] = {}
        for key in keys:
            short, dtype, layout = key.rsplit("-", 2)
            self._shorts.setdefault((dtype, layout), []).append(short)
        self._groups: dict[tuple[str, str], _Group] = {}

    def nearest(self, problem: ConvProblem, count: int) -> list[tuple[ConvProblem, float]]:
        """The nearest layers in the same dtype and layout, without the layer itself, and their distances in octaves."""
        kind = (problem.dtype, problem.layout)
        if kind not in self._shorts:
            return []
        group = self._groups.get(kind) or self._groups.setdefault(kind, _group(self._shorts[kind]))
        if not len(group.shorts):
            return []
        own = _points(sizes_of([problem]))[0]
        squares = group.squares - 2 * (group.points @ own)  # less own @ own, which is the same for all
        n_chosen = min(count + 1, len(squares))
        chosen = np.argpartition(squares, n_chosen - 1)[:n_chosen].tolist()
        distances = [(group.shorts[row], float(np.linalg.norm(group.points[row] - own))) for row in chosen]
        own_short = problem.plain.short
        others = sorted((pair for pair in distances if pair[0] != own_short), key=lambda pair: (pair[1], pair[0]))
        return [
            (ConvProblem.parse(short, dtype=problem.dtype, layout=problem.layout), distance)
            for short, distance in others[:count]
        ]


def describe(
    nearest: Sequence[tuple[ConvProblem, float]], measured: Mapping[str, Mapping[str, Summary]], advised: str
) -> list[Neighbour]:
    """What was measured on the nearest layers.

    Parameters
    ----------
    nearest : sequence of (ConvProblem, float)
        As `Neighbourhood.nearest` gives them.
    measured : mapping of problem key to mapping of variant to Summary
    advised : str
        The variant that is advised on the layer whose neighbours these are.

    Returns
    -------
    list of Neighbour
        Without layers on which nothing was timed in full.
    """
    neighbours = []
    for problem, distance in nearest:
        timed = {
            name: summary.time_ms
            for name, summary in measured.get(problem.key, {}).items()
            if summary.outcome is Outcome.MEASURED and summary.time_ms is not None
        }
        if timed:
            best = min(timed, key=lambda name: (timed[name], name))
            slowdown = timed[advised] / timed[best] if advised in timed else None
            neighbours.append(Neighbour(problem.short, distance, best, timed[best], len(timed), slowdown))
    return neighbours


def _group(shorts: Sequence[str]) -> _Group:
    sizes = table_of_names(shorts)
    if sizes is None:
        shorts = [short for short in shorts if _is_plain(ConvProblem.parse(short))]
        sizes = table_of_names(shorts)
    if sizes is None:
        raise InvalidLayerName("layer", ", ".join(shorts), "layers as problems write them")
    points = _points(sizes)
    return _Group(shorts, points, (points**2).sum(axis=1))


def _is_plain(problem: ConvProblem) -> bool:
    """Whether a layer's times tell about others: layers with an epilogue or with uneven padding are set aside."""
    return not problem.epilogue and not problem.has_uneven_padding


def _points(sizes: np.ndarray) -> np.ndarray:
    """Points of problems: as in `coordinates`, with two more columns that are 0 where padding keeps the size."""
    column = dict(zip(SIZES, sizes.T, strict=True))
    excess = [
        np.log2((1 + column[f"pad_{axis}"]) / (1 + column[f"dilation_{axis}"] * (column[taps] - 1) / 2))
        for axis, taps in (("h", "r"), ("w", "s"))
    ]
    return np.column_stack([coordinates(sizes), *excess])
