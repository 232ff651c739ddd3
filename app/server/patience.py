"""Timeouts and memory limits for clients that are slow to send or to read."""

from __future__ import annotations

import resource
import time
from typing import Final, Protocol

from uvicorn.server import ServerState

MOST_CONNECTIONS: Final = 1024
"""Connections at once: each may hold an incomplete head, and bytes that were read beyond a request."""
_SHARE_OF_DESCRIPTORS: Final = 0.75
"""Share of descriptors for connections: the database, workers and files need the rest."""
MOST_UNSENT_BYTES: Final = 128 * 2**20
"""Most bytes of whole answers that clients have not read yet; a tensor has its own budget, and is sent in pieces."""


AWAY_S: Final = 2.0
"""Longest time between two checks, normally a second apart, before the server itself counts as having been away."""


class Held(Protocol):
    """A connection whose client is waited for."""

    def give_up(self) -> None:
        """Close it, with an answer if one is due, because its client took too long."""
        ...

    def cut(self) -> None:
        """Close it at once, because its place is needed."""
        ...


class Patience(ServerState):
    """uvicorn's server state, with the connections whose clients are waited for, the longest first.

    A connection whose request is complete and whose answer is being computed is not among them.

    Parameters
    ----------
    most_connections : int
        Where there are more, the connection that has waited longest is closed.
    """

    def __init__(self, most_connections: int) -> None:
        super().__init__()
        self._most_connections = most_connections
        self._until: dict[Held, float] = {}
        self._unsent: dict[Held, int] = {}
        self._unsent_bytes = 0
        self._looked_at: float | None = None

    def wait(self, connection: Held, seconds: float) -> None:
        """Start to wait for a client, for so many seconds."""
        self._until.pop(connection, None)
        self._until[connection] = time.monotonic() + seconds

    def go_on(self, connection: Held) -> None:
        """Stop waiting for a client: it is the server's turn, or the connection is gone."""
        self._until.pop(connection, None)

    def give_up(self) -> None:
        """Close every connection whose client has exceeded its time; to be called once a second.

        A much later call means that the server itself was away, stopped or without a processor. That is no client's
        fault, and what clients sent meanwhile has not been read yet, so all of them get that time again.
        """
        now = time.monotonic()
        away_s = now - self._looked_at if self._looked_at is not None else 0.0
        self._looked_at = now
        if away_s > AWAY_S:
            self._until = {connection: until + away_s for connection, until in self._until.items()}
        for connection in [connection for connection, until in self._until.items() if until < now]:
            self.go_on(connection)
            connection.give_up()

    def make_room(self) -> bool:
        """Close a waiting connection if there are too many; False if there are too many and none waits."""
        if len(self.connections) <= self._most_connections:
            return True
        longest = next(iter(self._until), None)
        if longest is None:
            return False
        self.go_on(longest)
        longest.cut()
        return True

    def hold(self, connection: Held, unsent_bytes: int) -> None:
        """Note the unsent bytes of an answer; if all of them are too many, the longest-waiting connections are cut."""
        self.release(connection)
        self._unsent[connection] = unsent_bytes
        self._unsent_bytes += unsent_bytes
        while self._unsent_bytes > MOST_UNSENT_BYTES:
            longest = next(iter(self._unsent))
            self.release(longest)
            longest.cut()

    def release(self, connection: Held) -> None:
        """Note that a client has read its answer, or is gone."""
        self._unsent_bytes -= self._unsent.pop(connection, 0)


def most_connections() -> int:
    """Most connections for which this process has descriptors beside its own."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, int(descriptors * _SHARE_OF_DESCRIPTORS))
