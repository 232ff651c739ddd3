"""Who asks: the caller that a token names, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastapi import Request

CALLER: Final = "conv_advisor.caller"
"""Where in the ASGI scope it stands who asks; missing where no token is asked for at all."""

IS_LET_IN: Final = "conv_advisor.is_let_in"
"""Where in the ASGI scope it stands whether the request would be let in now too; missing as `CALLER` is."""


class Scope(StrEnum):
    """What a token is good for; a closed list, and none implies another."""

    READ = "read"
    """Advice, measurements, models, jobs, metrics."""
    MEASURE = "measure"
    """Whatever runs on the worker's device."""
    ADMINISTER = "administer"
    """What changes which advice is given, and what is lost: retrain, promote, cancel and delete."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who has shown a token: its name and its scopes, never the token."""

    name: str
    scopes: frozenset[Scope]


def caller_of(request: Request) -> Caller | None:
    """Who asks; None where they have shown no token, or none is asked for."""
    caller: Caller | None = request.scope.get(CALLER)
    return caller


def caller_name(request: Request) -> str:
    """By what name something can be a caller's own: their token's; empty where nobody has shown one."""
    caller = caller_of(request)
    return caller.name if caller else ""


def is_let_in(request: Request) -> Callable[[], bool]:
    """Whether who asks would be let in now too: for an answer that outlasts the look at their token."""
    asked: Callable[[], bool] = request.scope.get(IS_LET_IN, lambda: True)
    return asked
