"""Renders values as HTML: the templates, the addresses of their assets, and the headers of every page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from conv_advisor.app.web import text
from conv_advisor.app.web.compiled import Compiled
from conv_advisor.app.web.compressed import LEAST_BYTES, compressed, compressed_file, takes_gzip
from conv_advisor.app.wire.caller import caller_of
from conv_advisor.data.counting import counted
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.version import version

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"

CHART_CLASS: Final = "chart"
"""Class of the SVG that Observable Plot makes."""

PLOT_STYLE: Final = """:where(.chart) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.chart text),
:where(.chart tspan) {
  white-space: pre;
}"""
"""The style element that Observable Plot puts into its SVG."""

SHEET: Final = (STATIC / "page.css").read_text()
"""The style element of every page: as a separate file, it would delay the first paint. Fragments for htmx go without,
since the page around them has it."""


def _allowed(style: str) -> str:
    """The source expression that allows one style element in a policy: its hash."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"


def _policy(*, style: str, images: str) -> str:
    """A Content-Security-Policy under which a page reaches no host but this service."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' {style}",
            f"img-src 'self'{images}",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )


POLICY: Final = _policy(style=f"{_allowed(SHEET)} {_allowed(PLOT_STYLE)}", images="")
"""The Content-Security-Policy that every page has."""

DOCS_POLICY: Final = _policy(style="'unsafe-inline'", images=" data:")
"""The policy of the API's documentation: Swagger UI has images in its style sheet, and styles in its elements."""

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",  # under no-referrer a browser does not send a form's origin
    "vary": "HX-Request, Cookie, Accept-Encoding",
}

THEMES: Final = ("light", "dark")


class Assets(StaticFiles):
    """Static files, compressed; one requested by the hash of its content never changes."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, with how long it may be kept."""
        response = await super().get_response(path, scope)
        if isinstance(response, FileResponse):
            response = await asyncio.to_thread(_as_gzip, response, scope)
        is_pinned = b"v=" in scope.get("query_string", b"")
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if is_pinned else "no-cache"
        response.headers["vary"] = "Accept-Encoding"
        return response


def _as_gzip(response: FileResponse, scope: Scope) -> Response:
    """The same file, as gzip where the client accepts it; the ETag is then a weak one, valid for both encodings."""
    request_headers = Headers(scope=scope)
    stat = response.stat_result
    if stat is None or stat.st_size < LEAST_BYTES or "range" in request_headers or not takes_gzip(request_headers):
        return response
    body = compressed_file(Path(response.path), stat.st_mtime_ns)
    headers = {name: response.headers[name] for name in ("content-type", "last-modified")}
    headers |= {"etag": f"W/{response.headers['etag']}", "content-encoding": "gzip", "content-length": str(len(body))}
    return Response(b"" if scope["method"] == "HEAD" else body, headers=headers)


def page(request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> HTMLResponse:
    """Render one template.

    Parameters
    ----------
    request : Request
        Its cookie says which theme was chosen.
    template : str
    values : mapping of str to object
    status : int
    """
    theme = request.cookies.get("theme", "")
    common = {"theme": theme if theme in THEMES else "", "path": request.url.path, "caller": caller_of(request)}
    common["sheet"] = "" if is_fragment(request) else SHEET
    body = _environment().get_template(template).render(common | dict(values)).encode()
    if len(body) < LEAST_BYTES or not takes_gzip(request.headers):
        return HTMLResponse(body, status, headers=_HEADERS)
    return HTMLResponse(compressed(body), status, headers=_HEADERS | {"content-encoding": "gzip"})


def is_fragment(request: Request) -> bool:
    """Whether htmx asks, for a part of a page."""
    return request.headers.get("hx-request") == "true"


@cache
def asset(name: str) -> str:
    """The address of a static file, with the hash of its content."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        bytecode_cache=Compiled(),
    )
    environment.globals.update(
        asset=asset,
        version=version(),
        dtypes=list(DType),
        layouts=list(Layout),
        activations=list(Activation),
        plural=counted,
    )
    for name in ("time", "size", "quantity", "digits", "slowdown", "error", "percent", "moment", "duration"):
        environment.filters[name] = getattr(text, name)
    environment.filters["breakable"] = _breakable
    environment.filters["by_parts"] = _by_parts
    environment.filters["brief"] = lambda layer: ConvProblem.parse(layer).brief
    environment.filters["capfirst"] = lambda words: words[:1].upper() + words[1:]
    return environment


def _by_parts(layer: str) -> Markup:
    """A layer's name with possible line breaks after its five sizes and after each part that follows."""
    sizes, *rest = re.split(r"-(?=[a-z])", layer)
    return Markup("-<wbr>").join(Markup('<span class="part">{}</span>').format(part) for part in (sizes, *rest))


def _breakable(variant: str) -> Markup:
    """A variant's id with possible line breaks after its points and underscores."""
    return escape(variant).replace(".", Markup(".<wbr>")).replace("_", Markup("_<wbr>"))
