"""Expected times of cuts, and the choice among them: for one problem, or for many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar, cast

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes

T = TypeVar("T")

VALUES: Final = ("us", "cluster", "outputs", "blocks")
"""Values of a chosen cut: expected time, blocks that share a tile, outputs of a tile, and blocks of the grid."""


@dataclass(frozen=True)
class Cut(Generic[T]):
    """A tile, and the blocks of a cluster that share its gemm_k.

    Parameters
    ----------
    tile : T
        The outputs of a block, as the kernel's own menu describes them.
    cluster : int
    """

    tile: T
    cluster: int


def stacked(tiles: Sequence[T], axes: int = 2) -> T:
    """Tiles as one tile of arrays, so that arithmetic on it computes all tiles at once.

    Parameters
    ----------
    tiles : sequence of T
        Values of one dataclass.
    axes : int
        Axes of length 1 after that of the tiles, for clusters and problems.
    """
    names = [field.name for field in fields(cast(Any, tiles[0]))]
    columns = [np.array([getattr(tile, name) for tile in tiles]) for name in names]
    return type(tiles[0])(*(column.reshape(-1, *(1,) * axes) for column in columns))


@dataclass(frozen=True)
class Choice(Generic[T]):
    """The cuts of a menu, one by one and as arrays.

    Parameters
    ----------
    cuts : tuple of Cut
    tile : T
        `stacked`: arithmetic on it and `cluster` computes all cuts, in their order.
    cluster : int array
    """

    cuts: tuple[Cut[T], ...]
    tile: T
    cluster: Array


def choice_of(tiles: Sequence[T], largest: int) -> Choice[T]:
    """Every tile with clusters of up to ``largest`` blocks; its axes are tiles, clusters, and one for problems."""
    clusters = range(1, largest + 1)
    cuts = tuple(Cut(tile, cluster) for tile in tiles for cluster in clusters)
    return Choice(cuts, stacked(tiles), np.array(clusters)[:, None])


@dataclass(frozen=True)
class Offer(Generic[T]):
    """Every cut of a kernel, with its expected time for each problem.

    Parameters
    ----------
    cuts : tuple
    outputs : int array of shape (n_cuts,)
        Outputs of a tile.
    us : float64 array of shape (n_cuts, n_problems)
        Expected time; infinite where the cut is impossible.
    blocks : int array of shape (n_cuts, n_problems)
        Blocks of the grid.
    """

    cuts: tuple[Cut[T], ...]
    outputs: Array
    us: Array
    blocks: Array


Offers = Callable[[Shapes, Device], Iterable[Offer[Any]]]
"""The offers of a plan for problems of one dtype and layout on a device."""


def offered(choice: Choice[T], outputs: Any, us: Array, blocks: Any) -> Offer[T]:
    """An offer from arrays that have the axes of a choice, then one of problems."""
    count = len(choice.cuts)
    outputs, blocks = (np.broadcast_to(values, us.shape).reshape(count, -1) for values in (outputs, blocks))
    return Offer(choice.cuts, outputs[:, 0], us.reshape(count, -1), blocks)


def expected_of(offers: Iterable[Offer[Any]]) -> dict[Any, float]:
    """The possible cuts of one problem, and the expected time of each in us."""
    return {
        cut: us
        for offer in offers
        for cut, us in zip(offer.cuts, offer.us[:, 0].tolist(), strict=True)
        if np.isfinite(us)
    }


def cheapest(offers: Iterable[Offer[Any]]) -> Any:
    """The fastest cut for one problem, of equals the first; None where none is possible."""
    least_us, chosen = np.inf, None
    for offer in offers:
        place = int(offer.us[:, 0].argmin())
        if offer.us[place, 0] < least_us:
            least_us, chosen = offer.us[place, 0], offer.cuts[place]
    return chosen


def values_of_cheapest(offers: Iterable[Offer[Any]], count: int) -> Array:
    """`VALUES` of the cut that `cheapest` chooses for each of ``count`` problems, float64 (count, len(VALUES))."""
    values = np.full((count, len(VALUES)), np.nan)
    least_us = np.full(count, np.inf)
    for offer in offers:
        places = offer.us.argmin(axis=0)
        us = np.take_along_axis(offer.us, places[None], axis=0)[0]
        better = np.flatnonzero(us < least_us)
        least_us[better] = us[better]
        chosen = places[better]
        clusters = np.array([cut.cluster for cut in offer.cuts])[chosen]
        values[better] = np.stack((us[better], clusters, offer.outputs[chosen], offer.blocks[chosen, better]), axis=1)
    return values
