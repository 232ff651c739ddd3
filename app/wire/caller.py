"""Who asks: the caller that a token names, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fastapi import Request

CALLER: Final = "conv_advisor.caller"
"""Where in the ASGI scope it stands who asks; missing where no token is asked for at all."""


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
