"""Timeouts and memory limits for clients that are slow to send or to read."""

from __future__ import annotations

import resource
import time
from typing import Final, Protocol

from uvicorn.server import ServerState

MOST_CONNECTIONS: Final = 1024
"""At once: each may hold a head that is not complete, and what was read beyond a request."""
_SHARE_OF_DESCRIPTORS: Final = 0.75
"""That connections may take: the database, workers and files need the others."""
MOST_UNSENT_BYTES: Final = 128 * 2**20
"""Answers handed over whole that nobody has read yet; a tensor is held by its own budget, and sent in pieces."""


AWAY_S: Final = 2.0
"""Between two looks at who takes too long, which are a second apart: after more the server was not there to be told."""


class Held(Protocol):
    """A connection as it is waited for."""

    def give_up(self) -> None:
        """End it, with an answer if one is due: its client took too long."""
        ...

    def cut(self) -> None:
        """End it at once: its place is needed."""
        ...


class Patience(ServerState):
    """uvicorn's state of a server, and beside it the connections whose clients are waited for, the longest first.

    A connection that works, which has sent its request and waits for the answer, is none of them.

    Parameters
    ----------
    most_connections : int
        Where there are more, the one that has been waited for longest makes room.
    """

    def __init__(self, most_connections: int) -> None:
        super().__init__()
        self._most_connections = most_connections
        self._until: dict[Held, float] = {}
        self._unsent: dict[Held, int] = {}
        self._unsent_bytes = 0
        self._looked_at: float | None = None

    def wait(self, connection: Held, seconds: float) -> None:
        """Wait for a client from now on, and for so long."""
        self._until.pop(connection, None)
        self._until[connection] = time.monotonic() + seconds

    def go_on(self, connection: Held) -> None:
        """Wait for a client no more: it is the server's turn, or the connection is gone."""
        self._until.pop(connection, None)

    def give_up(self) -> None:
        """End every connection whose client has taken longer than it may; to be called once a second.

        Where it is called far later the server itself was away, stopped or without a processor: that is no client's
        fault, and what they sent meanwhile has not been read yet.
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
        """See that there are not too many connections; False where there are, and all of them work."""
        if len(self.connections) <= self._most_connections:
            return True
        longest = next(iter(self._until), None)
        if longest is None:
            return False
        self.go_on(longest)
        longest.cut()
        return True

    def hold(self, connection: Held, unsent_bytes: int) -> None:
        """Note how much of an answer its client has not taken; where all of it is too much, the longest is cut."""
        self.release(connection)
        self._unsent[connection] = unsent_bytes
        self._unsent_bytes += unsent_bytes
        while self._unsent_bytes > MOST_UNSENT_BYTES:
            longest = next(iter(self._unsent))
            self.release(longest)
            longest.cut()

    def release(self, connection: Held) -> None:
        """Note that a client has taken what waited for it, or is gone."""
        self._unsent_bytes -= self._unsent.pop(connection, 0)


def most_connections() -> int:
    """As many as this process has descriptors for beside its own."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, int(descriptors * _SHARE_OF_DESCRIPTORS))
