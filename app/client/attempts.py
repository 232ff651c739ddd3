"""The retry rule: whether and when a request is sent again. It sends nothing and waits for nothing."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from conv_advisor.data.errors import InvalidInput, Refused, Unreachable

INCOMPLETE: Final = "its answer was not complete in time"
"""Why an answer is given up once the deadline has passed."""
_AGAIN: Final = (429, 502, 503)
"""Statuses of requests that may succeed later."""
_HOPELESS: Final = ("/problems/worker-died", "/problems/launch-failed")
"""Errors of a request that has killed the worker, and may kill the next one too."""
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0
"""The wait before the next attempt doubles from the first to the longest, unless the server asks for a longer one."""


class Attempts:
    """The attempts of one request within its deadline.

    Parameters
    ----------
    deadline_s : float
        Time for all attempts together, above 0; infinity for no limit.
    now : callable () -> float
        Seconds of a monotonic clock.
    chance : callable () -> float
        Random number from 0 to 1: many clients that were refused at once do not come back at once.
    patience_s : float
        How long attempts may fail one after another without any answer.

    Raises
    ------
    InvalidInput
        The deadline is not a number above 0.
    """

    def __init__(
        self,
        deadline_s: float,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        patience_s: float = math.inf,
    ) -> None:
        if not (isinstance(deadline_s, int | float) and deadline_s > 0):
            raise InvalidInput("deadline_s", deadline_s, "seconds above 0; infinity for no end")
        self._now, self._chance, self._patience_s = now, chance, patience_s
        self._until = now() + deadline_s
        self.begin_again()

    def begin_again(self) -> None:
        """Reset the wait to that after the first attempt, because the last attempt made progress."""
        self._wait_s = _FIRST_S
        self.hear()

    def hear(self) -> None:
        """Note that the server answers: patience starts again with the next failure."""
        self._lost_at: float | None = None

    @property
    def left_s(self) -> float:
        """Time left until the deadline; at least 0."""
        return max(0.0, self._until - self._now())

    def check(self, url: str) -> float:
        """The time left; once the deadline has passed, an incomplete answer is given up.

        Raises
        ------
        Unreachable
        """
        if not (left_s := self.left_s):
            raise Unreachable(url, INCOMPLETE)
        return left_s

    def wait_s(self, error: Refused | Unreachable) -> float:
        """How long to wait before the next attempt.

        Raises
        ------
        Refused, Unreachable
            The given error, if another attempt would not help or would come too late.
        """
        if isinstance(error, Refused) and (error.status not in _AGAIN or error.type in _HOPELESS):
            raise error
        asked_s = error.retry_after_s if isinstance(error, Refused) else 0.0
        wait_s = asked_s + self._wait_s * self._chance()
        self._lost_at = self._now() if self._lost_at is None else self._lost_at
        if wait_s >= min(self.left_s, self._lost_at + self._patience_s - self._now()):
            raise error
        self._wait_s = min(2 * self._wait_s, _LONGEST_S)
        return wait_s


def following(deadline_s: float | None, patience_s: float) -> Attempts:
    """The attempts to follow a job: until a deadline, or without one until the server was silent for `patience_s`.

    Raises
    ------
    InvalidInput
    """
    return Attempts(math.inf, patience_s=patience_s) if deadline_s is None else Attempts(deadline_s)


def refused(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """The error for an answer other than 2xx, whether the service gave it or a proxy in front."""
    retry_after_s = _seconds(headers.get("retry-after", ""))
    try:
        document: Any = msgspec.json.decode(body)
        return Refused({**document, "status": status}, retry_after_s)
    except (msgspec.DecodeError, TypeError):
        detail = headers.get("location") or body[:200].decode("utf-8", "replace")
        return Refused({"title": f"HTTP {status}", "status": status, "detail": detail}, retry_after_s)


def _seconds(retry_after: str) -> float:
    """Seconds that Retry-After asks for, as a number or a date; 0 where it cannot be read."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    return max(0.0, (until - datetime.now(UTC)).total_seconds()) if until.tzinfo else 0.0
