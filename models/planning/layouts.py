"""The layout of every operator of a network: that of the least total time, conversions counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from conv_advisor.data.problem import Layout
from conv_advisor.models.planning.cut import NEVER, Cut
from conv_advisor.models.planning.network import Network, Operator

_UNITS_PER_MS: Final = 1e9
"""Times are counted in picoseconds, as integers."""

Times = Mapping[Layout, float]
"""Milliseconds of a convolution by layout; infinite where it cannot run."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tensor that an operator reads in another layout than the one it was written in.

    Parameters
    ----------
    tensor : str
    to : Layout
    n_bytes : int
    time_ms : float
    """

    tensor: str
    to: Layout
    n_bytes: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Layouts:
    """A layout for each operator, in the network's order, and the conversions between them.

    Parameters
    ----------
    chosen : tuple of Layout
    conversions : tuple of Conversion
    """

    chosen: tuple[Layout, ...]
    conversions: tuple[Conversion, ...]


def choose_layouts(network: Network, times: Sequence[Times | None], convert_ms: Callable[[int], float]) -> Layouts:
    """The layouts whose convolutions and conversions take the least time together.

    Parameters
    ----------
    network : Network
    times : sequence of Times or None
        Times of each operator that is a convolution; None for the others.
    convert_ms : callable (n_bytes) -> float
        Time in ms to convert a tensor of so many bytes to the other layout.

    Notes
    -----
    A tensor that several read in the other layout is converted once. With two layouts this is a minimum cut of the
    network's graph, which is exact whatever its shape: chain, tree, or with forks and joins. Where no convolution is
    faster in NHWC, nothing can be won by leaving NCHW, if the network was written in that.
    """
    if not network.in_nhwc and all(own is None or own[Layout.NCHW] <= own[Layout.NHWC] for own in times):
        return Layouts((Layout.NCHW,) * len(times), ())
    cut = Cut()
    places = [cut.add(*_costs(operator, own)) for operator, own in zip(network.operators, times, strict=True)]
    in_nchw, in_nhwc = cut.add(second=NEVER), cut.add(first=NEVER)  # what gives inputs and takes outputs
    outside = {tensor: in_nhwc if tensor in network.in_nhwc else in_nchw for tensor in network.n_bytes}
    maker = outside | {tensor: place for operator, place in _with(network, places) for tensor in operator.writes}
    readers: dict[str, list[int]] = {
        tensor: [outside[tensor]] if tensor in network.outputs else [] for tensor in network.n_bytes
    }
    for operator, place in _with(network, places):
        for tensor in operator.reads:
            if tensor in readers and place not in readers[tensor]:
                readers[tensor].append(place)
    for tensor, n_bytes in network.n_bytes.items():
        _charge(cut, maker[tensor], readers[tensor], _units(convert_ms(n_bytes)))
    is_second = cut.solve()
    sides = {place: Layout.NHWC if is_second[place] else Layout.NCHW for place in (*places, in_nchw, in_nhwc)}
    conversions = [
        Conversion(tensor, other_layouts.pop(), n_bytes, convert_ms(n_bytes))
        for tensor, n_bytes in network.n_bytes.items()
        if (other_layouts := {sides[place] for place in readers[tensor]} - {sides[maker[tensor]]})
    ]
    return Layouts(tuple(sides[place] for place in places), tuple(conversions))


def _with(network: Network, places: Sequence[int]) -> list[tuple[Operator, int]]:
    return list(zip(network.operators, places, strict=True))


def _costs(operator: Operator, times: Times | None) -> tuple[int, int]:
    """What an operator costs in NCHW, and in NHWC."""
    if times is not None and min(times.values()) < inf:
        return _units(times[Layout.NCHW]), _units(times[Layout.NHWC])
    return (0, 0) if operator.takes_either or times is not None else (0, NEVER)


def _units(ms: float) -> int:
    return NEVER if ms == inf else round(ms * _UNITS_PER_MS)


def _charge(cut: Cut, maker: int, readers: Sequence[int], cost: int) -> None:
    """Charge one conversion if any reader is on another side than the maker."""
    if len(readers) == 1:
        cut.part(maker, readers[0], cost, cost)
        return
    to_second, to_first = cut.add(), cut.add()
    cut.part(maker, to_second, cost)
    cut.part(to_first, maker, cost)
    for reader in readers:
        cut.part(to_second, reader, NEVER)
        cut.part(reader, to_first, NEVER)
