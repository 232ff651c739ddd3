"""HEAD for everything that GET answers: the same status and headers, without the body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """Answers HEAD as GET does, without the body; passes on all other requests.

    A streamed answer, such as a job's events, ends after its headers.

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
                scope["method"] = "HEAD"  # tells the server that no body follows
                await send(message)
            elif not is_sent:
                is_sent = True
                await send({"type": "http.response.body", "body": b""})

        # In the scope itself, because outer layers read the route that was found.
        scope["method"] = "GET"
        try:
            await self._app(scope, receive, send_headers)
        finally:
            scope["method"] = "HEAD"
