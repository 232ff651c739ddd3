"""GET /problems and /problems/{name}: what the type of an error means, for people and for programs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from conv_advisor.app.web.render import page
from conv_advisor.app.wire.answers.error_types import ErrorTypeAnswer, ErrorTypesAnswer, error_type_answer
from conv_advisor.app.wire.error_types import ALL, PATH
from conv_advisor.app.wire.errors import documented
from conv_advisor.data.errors import Unknown

router = APIRouter(tags=["errors"])


@router.get(PATH, responses=documented(answer=ErrorTypesAnswer))
async def list_problems(request: Request) -> Response:
    """Every type of error."""
    if _wants_page(request):
        return page(request, "error-types.html", {"kinds": list(ALL.values()), "title": "Errors"})
    return JSONResponse({"problems": [error_type_answer(kind) for kind in ALL.values()]})


@router.get(PATH + "/{name}", responses=documented(404, answer=ErrorTypeAnswer))
async def get_problem(request: Request, name: str) -> Response:
    """One type of error: its title, its status, what it means."""
    kind = ALL.get(name)
    if kind is None:
        raise Unknown(name, sorted(ALL))
    if _wants_page(request):
        return page(request, "error-types.html", {"kinds": [kind], "title": kind.title})
    return JSONResponse(error_type_answer(kind))


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")
