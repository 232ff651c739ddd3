"""Signing in with a token, so that a browser shows it with every request; and the interactive documentation."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from conv_advisor.app.guard.policy import COOKIE, SECURE_COOKIE, SIGN_IN, SIGN_OUT
from conv_advisor.app.guard.tokens import Keyring
from conv_advisor.app.routes.pages import PageRoute
from conv_advisor.app.web.forms import read_form
from conv_advisor.app.web.render import DOCS_POLICY, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get(SIGN_IN)
async def show_sign_in(request: Request) -> Response:
    """The form for a token; nothing to do where none is asked for."""
    following = _local(request.query_params.get("next", "/"))
    if _keyring(request) is None:
        return RedirectResponse(following, 303)
    return page(request, "sign-in.html", {"next": following, "refused": False})


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Keep the token in a cookie that no script can read and no other site can make a browser send."""
    form = await read_form(request)
    following, token = _local(form.get("next", "/")), form.get("token", "").strip()
    keyring = _keyring(request)
    if keyring is None:
        return RedirectResponse(following, 303)
    if keyring.find(token) is None:
        return page(request, "sign-in.html", {"next": following, "refused": True}, 401)
    response = RedirectResponse(following, 303)
    is_secure = request.url.scheme == "https"
    response.set_cookie(
        SECURE_COOKIE if is_secure else COOKIE, token, path="/", secure=is_secure, httponly=True, samesite="strict"
    )
    return response


@router.post(SIGN_OUT)
async def sign_out(request: Request) -> Response:
    """Forget the token."""
    response = RedirectResponse(SIGN_IN, 303)
    is_secure = request.url.scheme == "https"
    name = SECURE_COOKIE if is_secure else COOKIE
    response.delete_cookie(name, path="/", secure=is_secure, httponly=True, samesite="strict")
    return response


@router.get("/docs")
async def show_docs(request: Request) -> Response:
    """The API, to be tried out."""
    response = page(request, "docs.html", {})
    response.headers["content-security-policy"] = DOCS_POLICY
    return response


def _keyring(request: Request) -> Keyring | None:
    keyring: Keyring | None = request.app.state.keyring
    return keyring


def _local(following: str) -> str:
    """The path to go to after signing in: never another site, whatever the link said."""
    is_local = following.startswith("/") and not following.startswith(("//", "/\\")) and following.isprintable()
    return following if is_local else "/"
