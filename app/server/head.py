"""HEAD of whatever GET answers: the same status and headers, without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """Answers HEAD as GET does and keeps the body to itself; passes on all else.

    An answer that is streamed, such as a job's events, ends with its headers.

    Parameters
    ----------
    app : ASGI application
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_sent = False

        async def send_headers(message: Message) -> None:
            nonlocal is_sent
            if message["type"] == "http.response.start":
                scope["method"] = "HEAD"  # by which a server knows that no body follows
                await send(message)
            elif not is_sent:
                is_sent = True
                await send({"type": "http.response.body", "body": b""})

        # In the scope itself: what is around this reads the route that is found.
        scope["method"] = "GET"
        try:
            await self._app(scope, receive, send_headers)
        finally:
            scope["method"] = "HEAD"
