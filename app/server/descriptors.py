"""The limit of open files and sockets, raised before a server starts: with too few it could answer nobody."""

from __future__ import annotations

import resource
from typing import Final

from conv_advisor.data.errors import InvalidInput

LEAST: Final = 256
"""A quarter is for the server itself (`patience.most_connections`). Under 70 clients that plan, measure, queue jobs and
read at once it had 57 open on two cores: 23 of the store, 21 pipes of workers and model readers, and the rest."""
_USUAL: Final = 1024
"""A common default of operating systems."""


def ensure_descriptors() -> None:
    """Raise the soft limit to a common one if it is too low and may be raised.

    Raises
    ------
    InvalidInput
        The limit is too low and must not be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LEAST:
        return
    if hard != resource.RLIM_INFINITY and hard < LEAST:
        allowed = f"at least {LEAST} open files, for connections, the store, workers and the log; see ulimit -n"
        raise InvalidInput("RLIMIT_NOFILE", hard, allowed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_USUAL if hard == resource.RLIM_INFINITY else min(_USUAL, hard), hard))
