"""What cuts are expected to take, and the choice among them: for one problem, or for many at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conv_advisor.kernels.cuda.parts.shapes import Array

VALUES: Final = ("us", "cluster", "outputs", "blocks")
"""Of a chosen cut: expected time, blocks that share a tile, outputs of a tile, and blocks of the grid."""


@dataclass(frozen=True)
class Offer:
    """One tile, with each of some sizes of a cluster.

    Parameters
    ----------
    cuts : tuple
        One for each size of a cluster.
    outputs : int
        Of a tile.
    us : float64 array of shape (n_cuts, n_problems)
        Expected time; infinite where the cut is impossible.
    blocks : int array of shape (n_cuts, n_problems)
        The grid.
    """

    cuts: tuple[Any, ...]
    outputs: int
    us: Array
    blocks: Array


def possible(offers: Iterable[Offer]) -> list[Any]:
    """The cuts of one problem that are possible."""
    return [cut for offer in offers for cut, us in zip(offer.cuts, offer.us[:, 0], strict=True) if np.isfinite(us)]


def cheapest(offers: Iterable[Offer]) -> Any:
    """The first of the cuts that take least, for one problem; None where none is possible."""
    least_us, chosen = np.inf, None
    for offer in offers:
        place = int(offer.us[:, 0].argmin())
        if offer.us[place, 0] < least_us:
            least_us, chosen = offer.us[place, 0], offer.cuts[place]
    return chosen


def values_of_cheapest(offers: Iterable[Offer], count: int) -> Array:
    """`VALUES` of what `cheapest` chooses for each of so many problems: float64 of shape (count, len(VALUES))."""
    found = np.full((count, len(VALUES)), np.nan)
    least_us = np.full(count, np.inf)
    for offer in offers:
        places = offer.us.argmin(axis=0)
        us = np.take_along_axis(offer.us, places[None], axis=0)[0]
        better = np.flatnonzero(us < least_us)
        least_us[better] = us[better]
        clusters = np.array([cut.cluster for cut in offer.cuts])[places[better]]
        blocks = offer.blocks[places[better], better]
        found[better] = np.stack(np.broadcast_arrays(us[better], clusters, offer.outputs, blocks), axis=1)
    return found
