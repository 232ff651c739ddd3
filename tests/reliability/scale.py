"""How much a reliability test does: a share that continuous integration can afford, or the whole count.

``CONV_TEST_FULL=1`` asks for the counts that `docs/reliability.md` states.
"""

from __future__ import annotations

import os

IS_FULL = os.environ.get("CONV_TEST_FULL") == "1"


def count(bounded: int, full: int) -> int:
    """How many cases to try."""
    return full if IS_FULL else bounded


HASTE = count(4, 1)
"""How many times sooner a server gives up in tests that wait for it."""
