"""FastAPI, with plain ASGI layers around everything that it does itself."""

from __future__ import annotations

import sys
from functools import cached_property, partial
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conv_advisor.data.errors import ConvAdvisorError


class Application(FastAPI):
    """An application whose `add_middleware` puts a layer around everything, even telemetry and error handling.

    FastAPI would put it inside those, which take longer than a cached answer. Requests that the layers pass on are
    handled by FastAPI as usual.
    """

    def __init__(self, **options: Any) -> None:
        self._layers: list[Middleware] = []
        self._outermost: ASGIApp | None = None
        super().__init__(**options)

    def add_middleware(self, middleware_class: Any, *args: Any, **options: Any) -> None:
        """Put a layer around those that were added before.

        Raises
        ------
        RuntimeError
            The application has begun to answer.
        """
        if self._outermost is not None:
            raise RuntimeError("a layer is added after the application has begun to answer")
        self._layers.append(Middleware(middleware_class, *args, **options))

    @cached_property
    def is_observed(self) -> bool:
        """Whether OpenTelemetry was set up before the first request: then every request must pass through FastAPI."""
        return self._native_telemetry.enabled()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "lifespan":
            send = partial(_send_in_brief, send)
        if self._outermost is None:
            self._outermost = self._built()
        await self._outermost(scope, receive, send)

    def _built(self) -> ASGIApp:
        app: ASGIApp = super().__call__
        for layer, args, options in self._layers:
            app = layer(app, *args, **options)
        return app


async def _send_in_brief(send: Send, message: Message) -> None:
    """Send a message; an application that cannot start for a foreseen reason reports it without a traceback."""
    error = sys.exception()  # Starlette handles this error as it sends the message
    if message["type"] == "lifespan.startup.failed" and isinstance(error, ConvAdvisorError):
        message = {**message, "message": str(error)}
    await send(message)
