"""How many operand sets a cold measurement rotates over."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem

MAX_SETS: Final = 1024


def operand_sets(problem: ConvProblem, l2: L2State, l2_bytes: int) -> int:
    """Number of operand sets that launches rotate over: one when warm; enough to exceed twice the cache when cold.

    Problems smaller than l2_bytes / 512 stay partly in the cache, since there are at most `MAX_SETS` sets.
    """
    if l2 is L2State.WARM:
        return 1
    return max(2, min(MAX_SETS, -(-2 * l2_bytes // problem.bytes)))
