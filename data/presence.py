"""Whether a database's file is still the one that was opened: a process keeps reading a file that was deleted."""

from __future__ import annotations

from pathlib import Path

from conv_advisor.data.errors import StoreError


class Presence:
    """A file as it was when this was made.

    Parameters
    ----------
    file : str or None
        None, or no file's name: a database that is elsewhere, or in memory, of which nothing is said.
    """

    def __init__(self, file: str | None) -> None:
        self._file = Path(file) if file and not file.startswith(("file:", ":")) else None
        self._opened = _identity(self._file)

    def check(self) -> None:
        """See that it is there and no other.

        Raises
        ------
        StoreError
        """
        if self._file is None:
            return
        found = _identity(self._file)
        if found is None:
            raise StoreError(f"{self._file} is gone")
        if found != self._opened:
            raise StoreError(f"{self._file} is not the file that was opened; restart the service to open it")


def _identity(file: Path | None) -> tuple[int, int] | None:
    try:
        stat = file.stat() if file else None
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino) if stat else None
