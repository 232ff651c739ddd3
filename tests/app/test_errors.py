"""The one table from error to status, and the form in which errors leave."""

from __future__ import annotations

import asyncio
import inspect
import json

import pytest
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from conv_advisor.app.wire import errors as table
from conv_advisor.app.workers.child import JobNotTaken
from conv_advisor.data import errors

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ConvAdvisorError)]


def made(kind: type[errors.ConvAdvisorError]) -> errors.ConvAdvisorError:
    """An instance, whatever its class takes."""
    if issubclass(kind, errors.InvalidInput):
        return kind("k", 0, "an integer from 1")
    if kind is errors.NotApplicable:
        return kind("cuda.cuconv", "stride is 2x2, not 1x1")
    if kind is errors.WorkspaceExceeded:
        return kind(10, 5)
    return kind("something")


def test_the_table_names_every_error_of_the_tree_and_no_other() -> None:
    assert set(table.STATUS) == set(TREE)


def test_an_error_outside_the_tree_has_the_status_of_the_class_above_it() -> None:
    assert table.status_of(JobNotTaken("gone")) == table.STATUS[errors.WorkerDied] == 503


def test_only_failures_of_ours_are_500() -> None:
    ours = {errors.ConvAdvisorError, errors.RunError, errors.CompileFailed}
    assert {kind for kind, status in table.STATUS.items() if status == 500} == ours
    assert not {422, 429} & {int(status) for status in table.STATUS.values()}


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_becomes_a_problem_document(kind: type[errors.ConvAdvisorError]) -> None:
    error = made(kind)
    document = table.problem_of(error)
    assert document["status"] == table.STATUS[kind]
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
