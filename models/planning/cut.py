"""Minimum cut: the cheapest way to put each of many things on one of two sides."""

from __future__ import annotations

from collections import deque
from typing import Final

_SOURCE: Final = 0
_SINK: Final = 1
NEVER: Final = 2**62
"""A cost that no cut pays while another is to be had."""


class Cut:
    """Things to be put on either side, and what each choice costs; costs are integers, so that the answer is exact.

    Notes
    -----
    Source: Greig, Porteous, Seheult 1989 (two labels as a minimum cut); Dinic 1970 (the flow that finds it).
    """

    def __init__(self) -> None:
        self._to: list[int] = []
        self._left: list[int] = []
        self._arcs: list[list[int]] = [[], []]

    def add(self, first: int = 0, second: int = 0) -> int:
        """Add a thing with its cost on the first side and on the second; returns its number."""
        place = len(self._arcs)
        self._arcs.append([])
        if first > second:  # a cost that both sides share decides nothing
            self._join(place, _SINK, first - second, 0)
        elif second > first:
            self._join(_SOURCE, place, second - first, 0)
        return place

    def part(self, first: int, second: int, cost: int, back: int = 0) -> None:
        """Charge a cost if the one thing is on the first side and the other on the second; `back` if it is reversed."""
        if cost > 0 or back > 0:
            self._join(first, second, cost, back)

    def solve(self) -> list[bool]:
        """Whether each thing, by its number, is on the second side where the total cost is least.

        The first two entries are the sides themselves.
        """
        while True:
            levels = self._levels()
            if levels[_SINK] < 0:
                return [level < 0 for level in levels]
            self._fill(levels)

    def _join(self, tail: int, head: int, cost: int, back: int) -> None:
        arc = len(self._to)
        self._arcs[tail].append(arc)
        self._arcs[head].append(arc + 1)
        self._to += (head, tail)
        self._left += (cost, back)

    def _levels(self) -> list[int]:
        """How many arcs with room lead to each thing; -1 where none does."""
        levels = [-1] * len(self._arcs)
        levels[_SOURCE] = 0
        queue = deque([_SOURCE])
        while queue:
            place = queue.popleft()
            for arc in self._arcs[place]:
                if self._left[arc] and levels[self._to[arc]] < 0:
                    levels[self._to[arc]] = levels[place] + 1
                    queue.append(self._to[arc])
        return levels

    def _fill(self, levels: list[int]) -> None:
        """Send as much as there is room for along the levels; no recursion, since a chain is as long as its network."""
        following = [0] * len(self._arcs)
        way: list[int] = []
        place = _SOURCE
        while True:
            if place == _SINK:
                place = self._send(way)
                continue
            arcs = self._arcs[place]
            while following[place] < len(arcs):
                arc = arcs[following[place]]
                if self._left[arc] and levels[self._to[arc]] == levels[place] + 1:
                    break
                following[place] += 1
            if following[place] < len(arcs):
                way.append(arcs[following[place]])
                place = self._to[way[-1]]
            elif way:
                place = self._to[way.pop() ^ 1]
                following[place] += 1
            else:
                return

    def _send(self, way: list[int]) -> int:
        """Send what a way has room for, and step back to where its first full arc begins."""
        amount = min(self._left[arc] for arc in way)
        for arc in way:
            self._left[arc] -= amount
            self._left[arc ^ 1] += amount
        full = next(place for place, arc in enumerate(way) if not self._left[arc])
        start = self._to[way[full] ^ 1]
        del way[full:]
        return start
