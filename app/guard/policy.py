"""The scope that a request needs, by its method and path; an unlisted path needs the highest."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request
from starlette.exceptions import HTTPException

from conv_advisor.app.wire.caller import CALLER, Caller, Scope, caller_of
from conv_advisor.app.wire.error_types import PATH as ERROR_TYPES

SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""

SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"

COOKIE: Final = "conv-advisor-token"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"
"""Over TLS: a browser accepts a cookie of this name only from the host itself, and never sends it in the clear."""

_MODEL_READY: Final = ("/v2/models/conv/ready", "/v2/models/conv/versions/1/ready")
PROBES: Final = frozenset(("/livez", "/readyz", "/v2/health/live", "/v2/health/ready", *_MODEL_READY))
"""Open to everybody; without a token they answer no data."""
_OPEN: Final = PROBES | {SIGN_IN, SIGN_OUT, ERROR_TYPES}
_OPEN_BELOW: Final = ("/static/", ERROR_TYPES + "/")

_READING: Final = frozenset(("/v1/advice", "/v1/plans", "/plan"))
_MEASURING: Final = re.compile(
    r"/v1/convolutions|/v1/jobs|/v2/models/[^/]+(?:/versions/[^/]+)?/infer|/measurements(?:/.*)?", re.DOTALL
)


def scope_needed(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None where it is open to everybody.

    A path may be a template such as ``/v1/jobs/{job_id}``.
    """
    if path in _OPEN or path.startswith(_OPEN_BELOW):
        return None
    if method in SAFE or (method == "POST" and path in _READING):
        return Scope.READ
    if method == "POST" and _MEASURING.fullmatch(path):
        return Scope.MEASURE
    return Scope.ADMINISTER


def is_known(request: Request) -> bool:
    """Whether the caller may see internals: the caller has shown a token, or none is required."""
    return CALLER not in request.scope or request.scope[CALLER] is not None


def require(request: Request, scope: Scope) -> None:
    """Refuse a request whose body asks for more than its address says.

    Raises
    ------
    HTTPException
        403, naming the scope.
    """
    caller = caller_of(request)
    if CALLER in request.scope and (caller is None or scope not in caller.scopes):
        raise HTTPException(403, lacking(caller, scope))


def lacking(caller: Caller | None, scope: Scope) -> str:
    """The refusal of a caller without this scope."""
    named = "nobody's token" if caller is None else f"the token {caller.name!r} has {', '.join(sorted(caller.scopes))}"
    return f"this needs the scope {scope.value!r}; {named}"
