"""The order of a graph's nodes: one chain, or a refusal."""

from __future__ import annotations

import pytest

from conv_advisor.data.errors import NotSupported
from conv_advisor.kernels.cuda.chain import in_order


@pytest.mark.parametrize(
    ("nodes", "edges", "order"),
    [
        ([], [], []),  # a launch that enqueues nothing
        ([7], [], [7]),
        ([3, 1, 2], [(1, 2), (2, 3)], [1, 2, 3]),
    ],
)
def test_a_chain_is_put_in_order(nodes: list[int], edges: list[tuple[int, int]], order: list[int]) -> None:
    assert in_order(nodes, edges) == order


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        ([1, 2], []),  # two first ones
        ([1, 2, 3], [(1, 2), (1, 3)]),
        ([1, 2, 3], [(1, 3), (2, 3)]),
        ([1, 2, 3], [(1, 2), (2, 3), (1, 3)]),
        ([1, 2], [(1, 2), (2, 1)]),  # no first one
        ([1, 2, 3], [(2, 3), (3, 2)]),  # a chain of one beside them
    ],
)
def test_what_is_no_chain_is_refused(nodes: list[int], edges: list[tuple[int, int]]) -> None:
    with pytest.raises(NotSupported, match="side by side"):
        in_order(nodes, edges)
