"""The table of errors over HTTP, and the form in which errors leave."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from markupsafe import escape
from starlette.exceptions import HTTPException

from conv_advisor.app.wire import error_types
from conv_advisor.app.wire import errors as table
from conv_advisor.app.wire.error_types import OF_ERROR, OF_STATUS, ErrorType
from conv_advisor.app.workers.child import JobNotTaken
from conv_advisor.data import errors
from tests.app.serving import Client, serving

APP = Path(__file__).parents[2] / "app"
TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ConvAdvisorError)]


MADE = {
    errors.NotApplicable: ("cuda.cuconv", "stride is 2x2, not 1x1"),
    errors.NotInstalled: ("cpu", "numba"),
    errors.WorkspaceExceeded: (10, 5),
    errors.Refused: ({"title": "Queue full", "status": 503, "detail": "2 jobs wait already"},),
    errors.Unreachable: ("http://127.0.0.1:8000", "ConnectError: refused"),
}
"""What classes take that are not made from one text."""


def made(kind: type[errors.ConvAdvisorError]) -> errors.ConvAdvisorError:
    """An instance, whatever its class takes."""
    usual = ("k", 0, "an integer from 1") if issubclass(kind, errors.InvalidInput) else ("something",)
    return kind(*MADE.get(kind, usual))


def test_the_table_names_every_error_of_the_tree_and_no_other() -> None:
    assert set(OF_ERROR) == set(TREE)


def test_an_error_outside_the_tree_has_the_type_of_the_class_above_it() -> None:
    found = error_types.type_of(JobNotTaken("gone"))
    assert found is OF_ERROR[errors.WorkerDied]
    assert found.status == 503


def test_only_failures_of_ours_are_500() -> None:
    ours = {errors.ConvAdvisorError, errors.RunError, errors.CompileFailed}
    assert {kind for kind, found in OF_ERROR.items() if found.status == 500} == ours
    assert not {422, 429} & {found.status for found in OF_ERROR.values()}


def test_types_keep_the_names_that_clients_compare() -> None:
    for kind, found in OF_ERROR.items():
        assert found.name == re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
    assert {status: found.name for status, found in OF_STATUS.items()} == {
        400: "bad-request",
        401: "unauthorized",
        403: "forbidden",
        404: "not-found",
        405: "method-not-allowed",
        406: "not-acceptable",
        408: "request-timeout",
        413: "request-entity-too-large",
        415: "unsupported-media-type",
        421: "misdirected-request",
        422: "unprocessable-entity",
        429: "too-many-requests",
        431: "request-header-fields-too-large",
        500: "internal-server-error",
        501: "not-implemented",
        503: "service-unavailable",
    }


def test_every_status_that_the_code_refuses_with_has_a_type() -> None:
    refusal = re.compile(r"(?:HTTPException|problem_response|refuse)\(\s*(?:scope, )?(?:(\d{3})|HTTPStatus\.(\w+))")
    sources = "\n".join(path.read_text() for path in sorted(APP.rglob("*.py")))
    used = {int(number or HTTPStatus[name]) for number, name in refusal.findall(sources)}
    assert len(used) > 8
    assert used <= set(OF_STATUS)


def test_a_status_of_a_librarys_own_is_said_as_the_standard_says() -> None:
    status, _, document = answer(HTTPException(418, "a pot"))
    assert (status, document["type"], document["detail"]) == (418, "about:blank", "a pot")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Ask a server that wants tokens; nothing here shows one."""
    home = tmp_path_factory.mktemp("home")
    (home / "tokens").touch()
    with serving(home, tokens_file=home / "tokens") as client:
        yield client


@pytest.mark.parametrize("kind", error_types.ALL.values(), ids=lambda kind: kind.name)
def test_every_type_can_be_opened(client: Client, kind: ErrorType) -> None:
    shown = client.get(kind.address, headers={"accept": "text/html"})
    told = client.get(kind.address)
    assert told.json() == {"type": kind.address, "title": kind.title, "status": kind.status, "meaning": kind.meaning}
    assert shown.headers["content-type"].startswith("text/html")
    assert kind.name in shown.text
    assert escape(kind.meaning) in shown.text
    assert kind.meaning.endswith(".")


def test_all_types_are_listed(client: Client) -> None:
    listed = client.get("/problems").json()["problems"]
    assert [each["type"] for each in listed] == [kind.address for kind in error_types.ALL.values()]
    assert all(each["type"] in client.get("/problems", headers={"accept": "text/html"}).text for each in listed)


def test_a_type_that_does_not_exist_says_which_do(client: Client) -> None:
    answer = client.get("/problems/of-mine")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown")
    assert "queue-full" in answer.json()["known"]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_becomes_a_problem_document(kind: type[errors.ConvAdvisorError]) -> None:
    error = made(kind)
    document = table.problem_of(error)
    assert document["status"] == OF_ERROR[kind].status
    assert document["detail"] == str(error)
    assert document["type"].startswith("/problems/")
    json.dumps(document, allow_nan=False)


def test_two_errors_never_share_a_type() -> None:
    kinds = [table.problem_of(made(kind))["type"] for kind in TREE]
    assert len(set(kinds)) == len(kinds)


def test_documents_carry_what_their_error_knows() -> None:
    invalid = table.problem_of(errors.InvalidProblem("k", 0, "an integer from 1"))
    assert (invalid["field"], invalid["value"], invalid["allowed"]) == ("k", "0", "an integer from 1")
    unknown = table.problem_of(errors.UnknownVariant("cuda.x", ["cuda.gemm"]))
    assert (unknown["name"], unknown["known"]) == ("cuda.x", ["cuda.gemm"])
    many = [f"cpu.v{number}" for number in range(40)]
    unknown = table.problem_of(errors.UnknownVariant("tpu", many))
    assert unknown["known"] == many, "all of them for a program"
    assert unknown["detail"].endswith("cpu.v10, cpu.v11 and 28 more"), "and what a person reads of them"
    refused = table.problem_of(errors.NotApplicable("cuda.cuconv", "stride is 2x2, not 1x1"))
    assert (refused["variant"], refused["reason"]) == ("cuda.cuconv", "stride is 2x2, not 1x1")


def answer(error: Exception) -> tuple[int, dict[str, str], dict]:
    """What an application answers when a route raises this."""
    app = FastAPI()
    table.install(app)
    kinds = {kind for kind in app.exception_handlers if isinstance(kind, type)}
    handler = app.exception_handlers[next(kind for kind in type(error).__mro__ if kind in kinds)]
    response = asyncio.run(handler(Request({"type": "http", "headers": []}), error))
    return response.status_code, dict(response.headers), json.loads(response.body)


def test_what_may_soon_work_says_when_to_come_back() -> None:
    status, headers, _ = answer(errors.QueueFull("64 jobs wait"))
    assert status == 503
    assert int(headers["retry-after"]) >= 1
    assert "retry-after" not in answer(errors.DeadlineExceeded("too long"))[1]


def test_an_error_of_http_itself_keeps_its_headers() -> None:
    status, headers, document = answer(HTTPException(405, "no", {"Allow": "GET"}))
    assert (status, headers["allow"], document["type"]) == (405, "GET", "/problems/method-not-allowed")


def test_an_error_that_nobody_foresaw_tells_nothing_of_the_inside() -> None:
    status, headers, document = answer(ZeroDivisionError("secret/path"))
    assert (status, document["type"]) == (500, "/problems/internal-server-error")
    assert headers["content-type"] == "application/problem+json"
    assert "secret" not in json.dumps(document)
