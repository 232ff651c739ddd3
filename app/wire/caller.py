"""The caller that a token names, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastapi import Request

CALLER: Final = "conv_advisor.caller"
"""Key of the caller in the ASGI scope; missing where the service takes no tokens."""

IS_LET_IN: Final = "conv_advisor.is_let_in"
"""Key in the ASGI scope of a function: is the request still let in? Missing where `CALLER` is."""


class Scope(StrEnum):
    """What a token allows; a closed list, and none implies another."""

    READ = "read"
    """Advice, measurements, models, jobs, metrics."""
    MEASURE = "measure"
    """All that runs on the worker's device."""
    ADMINISTER = "administer"
    """All that changes advice or loses data: retrain, promote, cancel and delete."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client that has shown a token: its name and its scopes, never the token."""

    name: str
    scopes: frozenset[Scope]


def caller_of(request: Request) -> Caller | None:
    """The caller of a request; None where it has no token, or the service takes none."""
    caller: Caller | None = request.scope.get(CALLER)
    return caller


def caller_name(request: Request) -> str:
    """Name of the caller's token, which marks what is theirs; empty where there is no token."""
    caller = caller_of(request)
    return caller.name if caller else ""


def is_let_in(request: Request) -> Callable[[], bool]:
    """A function that says whether the caller is still let in, for answers that go on after their token was checked."""
    check: Callable[[], bool] = request.scope.get(IS_LET_IN, lambda: True)
    return check
