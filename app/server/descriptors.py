"""How many files and sockets a server may have open, seen to before it starts: with too few it would answer nobody."""

from __future__ import annotations

import resource
from typing import Final

from conv_advisor.data.errors import InvalidInput

LEAST: Final = 256
"""A quarter is the server's own (`patience.most_connections`). Under 70 clients that plan, measure, queue jobs and read
at once it had 57 open on two cores: 23 of the store, 21 pipes of workers and of readers of models, and the rest."""
_USUAL: Final = 1024
"""What a system gives where nobody says otherwise."""


def ensure_descriptors() -> None:
    """Raise the soft limit to a usual one where it is too low and may be raised.

    Raises
    ------
    InvalidInput
        It may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST:
        return
    if hard != resource.RLIM_INFINITY and hard < LEAST:
        allowed = f"at least {LEAST} open files, for connections, the store, workers and the log; see ulimit -n"
        raise InvalidInput("RLIMIT_NOFILE", hard, allowed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_USUAL if hard == resource.RLIM_INFINITY else min(_USUAL, hard), hard))
