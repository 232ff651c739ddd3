"""A way to a PostgreSQL server that can be stalled: connections stay, and nothing comes any more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import make_url


class Stalling:
    """Passes bytes on between a port of loopback and a server's socket, unless it is stalled.

    Parameters
    ----------
    url : str
        Names a database, by a folder of Unix sockets or by host and port.
    """

    def __init__(self, url: str) -> None:
        self._server = make_url(url)
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The same database by this way."""
        port = self._listening.getsockname()[1]
        query = {name: value for name, value in self._server.query.items() if name != "host"}
        return self._server.set(host="127.0.0.1", port=port, query=query).render_as_string(hide_password=False)

    def stall(self) -> None:
        """From now on nothing is passed on."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Pass on what waits, and what comes."""
        self._goes_on.set()

    def close(self) -> None:
        """Accept nobody any more."""
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = self._connect()
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _connect(self) -> socket.socket:
        folder = self._server.query.get("host")
        port = self._server.port or 5432
        if not isinstance(folder, str) or not folder.startswith("/"):
            return socket.create_connection((self._server.host or "127.0.0.1", port))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{folder}/.s.PGSQL.{port}")
        return far

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while read := source.recv(65536):
                self._goes_on.wait()
                target.sendall(read)
            target.shutdown(socket.SHUT_RDWR)


@contextmanager
def stalling(url: str) -> Iterator[Stalling]:
    """A way to a database, open while the block runs."""
    way = Stalling(url)
    try:
        yield way
    finally:
        way.go_on()
        way.close()
