"""Checks tokens, scopes and the rate of each caller; absent where settings ask for neither."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from conv_advisor.app.guard.policy import COOKIE, PROBES, SAFE, SECURE_COOKIE, SIGN_IN, lacking, scope_needed
from conv_advisor.app.guard.rates import Rates, network_of
from conv_advisor.app.guard.tokens import Keyring
from conv_advisor.app.settings import Settings
from conv_advisor.app.web.render import is_fragment, page
from conv_advisor.app.wire.caller import CALLER, IS_LET_IN, Caller
from conv_advisor.app.wire.error_types import type_of_status
from conv_advisor.app.wire.errors import refusal
from conv_advisor.data.errors import InvalidInput

_READ: Final = frozenset((b"authorization", b"cookie"))
_BEARER: Final = b"bearer "
_MAX_COOKIE_BYTES: Final = 8192


class Guard:
    """Lets a request through if its caller may make it, and stores the caller in the scope.

    Parameters
    ----------
    app : ASGI application
    keyring : Keyring or None
        None: no tokens are required.
    rates : Rates or None
        None: no limit.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring | None, rates: Rates | None) -> None:
        self._app, self._keyring, self._rates = app, keyring, rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        path, method = scope["path"], scope["method"]
        needed = scope_needed(method, path)
        caller: Caller | None = None
        if self._keyring is not None:
            token = _token_of(scope)
            caller = self._keyring.find(token) if token else None
            scope[CALLER] = caller
        wait_s = self._wait_s(scope, caller)
        if wait_s:
            return _too_often(scope, wait_s)
        if self._keyring is None or needed is None:
            return None
        if caller is None:
            return _unknown(scope)
        if needed not in caller.scopes:
            return refuse(scope, 403, lacking(caller, needed), {"WWW-Authenticate": _challenge(needed)})
        scope[IS_LET_IN] = partial(self._keyring.lets_in, token, needed)
        return None

    def _wait_s(self, scope: Scope, caller: Caller | None) -> float:
        if self._rates is None or _is_free(scope["method"], scope["path"]):
            return 0.0
        return self._rates.take(f"token {caller.name}" if caller else f"from {network_of(scope.get('client'))}")


def _is_free(method: str, path: str) -> bool:
    """Whether no rate limits a request: a probe, or a public path that changes nothing."""
    return path in PROBES or (method in SAFE and scope_needed(method, path) is None)


def keyring_of(settings: Settings) -> Keyring | None:
    """The tokens that the settings name; None where none are required.

    Raises
    ------
    InvalidInput
        There is no token, and the service can be reached from other machines.
    """
    keyring = Keyring(settings.tokens, settings.tokens_file)
    if len(keyring) or settings.tokens_file is not None:
        return keyring
    if not settings.is_local:
        allowed = (
            "a loopback address, or tokens: beyond loopback the service answers nobody without one. Make one with "
            "`conv-advisor token NAME --scopes read,measure --file TOKENS`, and set CONV_ADVISOR_TOKENS_FILE=TOKENS"
        )
        raise InvalidInput("host", settings.host, allowed)
    return None


def rates_of(settings: Settings) -> Rates | None:
    """The rates that the settings ask for; None where there is no limit."""
    return Rates(settings.rate_per_s, settings.rate_limit_burst) if settings.rate_per_s else None


def refuse(scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """A refusal in the caller's form: a page for a browser that wants one, else a problem document."""
    request = Request(scope)
    if not is_fragment(request) and "text/html" not in request.headers.get("accept", ""):
        return refusal(scope, status, detail, headers, **more)
    problem = {"status": status, "title": type_of_status(status).title, "detail": detail}
    template = "error.html" if is_fragment(request) and request.method == "POST" else "error-page.html"
    response = page(request, template, {"problem": problem}, status)
    response.headers.update(headers or {})
    return response


def _unknown(scope: Scope) -> Response:
    """Ask for a token: a browser is sent to the sign-in page, any other client gets 401 by HTTP."""
    request = Request(scope)
    headers = {"WWW-Authenticate": _challenge()}
    if is_fragment(request):
        return refuse(scope, 401, "the sign-in has ended; sign in again", headers | {"HX-Redirect": SIGN_IN})
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{SIGN_IN}?next={quote(target, safe='/')}", 303)
    return refuse(scope, 401, "this needs a token: Authorization: Bearer <token>", headers)


def _too_often(scope: Scope, wait_s: float) -> Response:
    headers = {"Retry-After": str(max(math.ceil(wait_s), 1))}
    return refuse(scope, 429, "more requests than the rate that one caller has", headers)


def _challenge(needed: str = "") -> str:
    """The challenge of RFC 6750 for a client."""
    lack = f', error="insufficient_scope", scope="{needed}"' if needed else ""
    return f'Bearer realm="conv-advisor"{lack}'


def _token_of(scope: Scope) -> str:
    """The token of a request: from its header, else from the cookie of a signed-in browser."""
    headers = {name: value for name, value in scope["headers"] if name in _READ}
    authorization: bytes = headers.get(b"authorization", b"")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip().decode("latin-1")
    if authorization or len(headers.get(b"cookie", b"")) > _MAX_COOKIE_BYTES:
        return ""
    return Request(scope).cookies.get(SECURE_COOKIE if scope.get("scheme") == "https" else COOKIE, "")
