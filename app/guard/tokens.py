"""API tokens: shown once when they are made, stored as hashes, and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from conv_advisor.app.wire.caller import Caller, Scope
from conv_advisor.data.errors import InvalidInput

log = logging.getLogger(__name__)

PREFIX: Final = "cadv_"
"""Prefix by which people, and scanners for secrets, recognise a token."""
MAX_TOKENS: Final = 1000
"""Limit because every request is compared with all of them."""
LOOK_AGAIN_S: Final = 1.0
"""How long the file goes unread: a token that is removed from it is refused after this time."""

_SECRET_BYTES: Final = 32
_MAX_FILE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_FORM: Final = "<name> <scopes> sha256:<64 hexadecimal digits>, as `conv-advisor token` prints it"


def make_token() -> str:
    """A new token of 256 random bits, so that a plain hash of it is safe to store."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def entry_of(name: str, scopes: Iterable[Scope], token: str) -> str:
    """The line of a tokens file that admits this token.

    Raises
    ------
    InvalidInput
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput("name", name, "1 to 64 letters without accents, digits and any of _ . @ -")
    return f"{name} {','.join(dict.fromkeys(scopes))} sha256:{_digest(token).hex()}"


class Keyring:
    """The tokens that are admitted: those of a setting, and those of a file, which is read again when it changes.

    Parameters
    ----------
    text : str
        Entries as `entry_of` makes them, one a line or divided by ``;``.
    path : Path, optional
        File of such lines; empty ones and those that begin with ``#`` are ignored.
    clock : callable () -> float
        Seconds.

    Raises
    ------
    InvalidInput
        Names the line but not its content, since that may be the token itself.
    """

    def __init__(self, text: str = "", path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._path = path
        self._given = _parse(text.replace(";", "\n"), "CONV_ADVISOR_TOKENS")
        self._stamp = None if path is None else _stamp(path)
        self._filed = {} if path is None else _parse(_read(path), str(path))
        self._look_at = clock() + LOOK_AGAIN_S
        self._problem: str | None = None

    def __len__(self) -> int:
        return len(self._given) + len(self._filed)

    def find(self, token: str) -> Caller | None:
        """The owner of a token, or None; takes the same time for both."""
        self._refresh()
        token_digest = _digest(token)
        owner = None
        for callers in (self._given, self._filed):
            for digest, caller in callers.items():
                if hmac.compare_digest(digest, token_digest):
                    owner = caller
        return owner

    def lets_in(self, token: str, scope: Scope) -> bool:
        """Whether a known token is still admitted, and has this scope."""
        self._refresh()
        digest = _digest(token)
        caller = self._filed.get(digest) or self._given.get(digest)
        return caller is not None and scope in caller.scopes

    def problem(self) -> str | None:
        """What is wrong with the file; None where nothing is, or there is no file."""
        self._refresh()
        return self._problem

    def _refresh(self) -> None:
        """Read the file again if it has changed.

        If the file is gone, its tokens are too: it may have been removed for that. If it cannot be parsed, its tokens
        stay as they were, and `problem` says so: a slip in editing locks nobody out.
        """
        if self._path is None or self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_AGAIN_S
        problem = None
        try:
            self._read_again(self._path)
        except InvalidInput as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.error("%d tokens of the file count: %s", len(self._filed), problem)
        self._problem = problem

    def _read_again(self, path: Path) -> None:
        if not path.exists():
            self._filed, self._stamp = {}, None
            raise InvalidInput("tokens_file", str(path), "a file that is there: none of its tokens counts")
        stamp = _stamp(path)
        if stamp != self._stamp:
            self._filed, self._stamp = _parse(_read(path), str(path)), stamp
            log.info("%d tokens are in %s now", len(self._filed), path)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InvalidInput("tokens_file", str(path), f"a file that can be read ({error.strerror})") from None
    if status.st_mode & stat.S_IWOTH:
        raise InvalidInput("tokens_file", str(path), "a file that not everybody may write to")
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        raise InvalidInput("tokens_file", str(path), "a file of text that can be read") from None


def _parse(text: str, where: str) -> dict[bytes, Caller]:
    callers = dict(_parse_lines(text, where))
    names = [caller.name for caller in callers.values()]
    if len(set(names)) < len(names) or len(names) > MAX_TOKENS:
        raise InvalidInput(where, f"{len(names)} tokens", f"at most {MAX_TOKENS}, each of a name of its own")
    return callers


def _parse_lines(text: str, where: str) -> Iterator[tuple[bytes, Caller]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield _parse_line(line, f"{where}, line {number}")


def _parse_line(line: str, where: str) -> tuple[bytes, Caller]:
    words = line.split()
    if len(words) != 3 or not _NAME.fullmatch(words[0]):
        raise InvalidInput(where, f"{len(words)} words", _FORM)
    match = _DIGEST.fullmatch(words[2])
    if match is None:
        raise InvalidInput(where, "without a hash", _FORM)
    try:
        scopes = frozenset(map(Scope, words[1].split(",")))
    except ValueError:
        raise InvalidInput(where, "of other scopes", f"scopes among {','.join(Scope)}, divided by commas") from None
    return bytes.fromhex(match[1]), Caller(words[0], scopes)
