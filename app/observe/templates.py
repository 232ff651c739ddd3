"""The name of a request in metrics and logs: the template of its route, so that names are bounded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, Mount, compile_path

UNKNOWN: Final = "other"
"""The name of every path without a route."""

METHODS: Final = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"))


class Templates:
    """Finds the template of a path.

    Parameters
    ----------
    app : FastAPI
        The application; its routes are read at the first request.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._plain: dict[str, str] | None = None
        self._patterns: list[tuple[re.Pattern[str], str]] = []

    def of(self, scope: MutableMapping[str, Any]) -> str:
        """The template of a request's path, whichever layer answered it."""
        plain = self._plain
        if plain is None:
            plain = self._look()
        path = scope["path"]
        template = plain.get(path)
        if template is None:
            route = scope.get("route")
            template = route.path_format if route is not None else self._match(path)
        return template

    def _match(self, path: str) -> str:
        """The template of a request that was answered before routing, or by files."""
        return next((template for pattern, template in self._patterns if pattern.match(path)), UNKNOWN)

    def _look(self) -> dict[str, str]:
        paths = sorted(set(_paths(self._app.routes)))
        self._patterns = [compile_path(path)[:2] for path in paths if "{" in path]
        self._plain = {path: path for path in paths if "{" not in path}
        return self._plain


def method_of(scope: MutableMapping[str, Any]) -> str:
    """The method if HTTP defines it, else `UNKNOWN`."""
    method: str = scope["method"]
    return method if method in METHODS else UNKNOWN


def _paths(routes: Iterable[BaseRoute]) -> Iterator[str]:
    for context in iter_route_contexts(list(routes)):
        route = context.original_route
        if isinstance(route, Mount):
            yield f"{route.path}/{{path:path}}"
        else:
            yield context.path or ""
