"""The order of a graph's nodes, where each runs after the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from conv_advisor.data.errors import NotSupported

_NO_CHAIN: Final = "its kernels run side by side, so that none has a time of its own"


def in_order(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The nodes of a graph that is one chain, from first to last.

    Parameters
    ----------
    nodes : sequence of int
        Distinct; none for a launch that enqueues nothing.
    edges : sequence of (int, int)
        A node, and one that runs after it.

    Raises
    ------
    NotSupported
        The nodes form no chain: one has several before or after it, or none is the first.
    """
    follower = dict(edges)
    followers = set(follower.values())
    chain = [node for node in nodes if node not in followers]
    if len(chain) != min(1, len(nodes)) or not len(follower) == len(followers) == len(edges):
        raise NotSupported(_NO_CHAIN)
    while chain and chain[-1] in follower:
        chain.append(follower[chain[-1]])
    if len(chain) != len(nodes):
        raise NotSupported(_NO_CHAIN)
    return chain
