"""Requests made from the OpenAPI document, valid and not: every answer is one that the document has."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.reliability.scale import count
from tests.reliability.servers import Server, running

pytestmark = pytest.mark.slow

N_CASES = count(400, 10_000)
CHECKS = [status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance]
READINESS = ("/readyz", "/v2/health/ready", "/v2/models/{model}/ready")
"""Where 503 is no failure: the worker may be starting again after another request."""


def try_operation(operation: Any, mode: GenerationMode, n: int, server: Server, found: Counter[int], turn: int) -> None:
    """So many requests to one operation, others every turn; an answer that the document has not is raised, with how to
    ask for it."""

    @seed(turn)
    @settings(
        max_examples=n,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: Any) -> None:
        response = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=300)
        found[response.status_code] += 1
        is_answer = operation.path in READINESS and response.status_code == 503
        case.validate_response(response, checks=CHECKS if is_answer else [*CHECKS, not_a_server_error])

    attempt()


@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore")  # Schemathesis' own
def test_every_answer_is_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_all_checks()
    found: Counter[int] = Counter()
    began = time.monotonic()
    failures: list[str] = []
    with running(tmp_path, convolution_deadline_s=50, max_queue=N_CASES) as server:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json", timeout=300)
        operations = [each.ok() for each in schema.get_all_operations()]
        kinds = list(itertools.product(operations, (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)))
        each = -(-N_CASES // len(kinds))
        turn = 0
        while found.total() < N_CASES and turn < 20:
            turn += 1
            for kind in list(kinds):
                try:
                    try_operation(*kind, each, server, found, turn)
                except BaseExceptionGroup as error:
                    failures.append(f"{kind[0].label}: {error}: {error.exceptions}")
                except Unsatisfiable:  # nothing is invalid for an operation that takes nothing, or any text
                    kinds.remove(kind)  # which is found out by hundreds of attempts
                except Exception as error:
                    failures.append(f"{kind[0].label}: {error}")
    with capsys.disabled():
        took = time.monotonic() - began
        print(f"\n{found.total()} cases of {len(operations)} operations in {took:.0f} s: {dict(found)}")
    assert failures == []
    assert found.total() >= N_CASES
    assert found[200]
    assert found[422]
