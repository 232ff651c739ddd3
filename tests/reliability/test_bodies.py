"""Tensor bodies that were altered: every decoder gives an order or an error of the tree, soon and in little memory."""

from __future__ import annotations

import base64
import multiprocessing
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from fastapi.exceptions import RequestValidationError

from conv_advisor.data.errors import ConvAdvisorError
from tests.app.serving import serving
from tests.reliability.bodies import PROBLEMS, Sent, bodies, decode, originals
from tests.reliability.scale import count
from tests.reliability.watch import TookTooLong, limit_memory, peak_bytes, within

pytestmark = pytest.mark.slow

N_BODIES = count(20_000, 1_000_000)
N_REQUESTS = count(800, 20_000)
LONGEST_S = 5.0
"""What one body may take; a valid one takes 50 µs, but a machine may be busy."""
MOST_BYTES = 256 * 2**20
"""That decoding may add to a process, whatever a header says; the bodies are below 200 KB."""


def attempt(sent: Sent) -> str:
    """What came of a body: an order or the error's class; anything else is raised, with the body."""
    try:
        with within(LONGEST_S):
            order = decode(sent)
    except (ConvAdvisorError, RequestValidationError) as error:
        return type(error).__name__
    except (Exception, TookTooLong) as error:
        raise AssertionError(f"{error!r} from {sent.path} and {base64.b64encode(sent.body)!r}") from error
    if order.tensors is not None:
        assert {name: tensor.shape for name, tensor in order.tensors.items()} == order.problem.shapes
        assert sum(tensor.nbytes for tensor in order.tensors.values()) <= 4 * len(sent.body)
    return "Order"


def attempt_all(seed: int, n: int) -> tuple[Counter[str], int]:
    """What came of so many bodies of all formats in turn, and by how much memory peaked above what it was."""
    sources = [bodies(seed, name) for name in originals()]
    for following in sources:
        attempt(following())
    before = peak_bytes()
    limit_memory(MOST_BYTES)
    return Counter(attempt(sources[each % len(sources)]()) for each in range(n)), peak_bytes() - before


@pytest.mark.parametrize("name", originals())
def test_the_originals_are_understood(name: str) -> None:
    assert {attempt(sent) for sent in originals()[name]} == {"Order"}


@pytest.mark.timeout(7200)
def test_altered_bodies_are_understood_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [(seed, N_BODIES // 2) for seed in (2, 3)]
    began = time.monotonic()
    # Processes of their own, since their memory is limited and a crash must be told from an error.
    with multiprocessing.get_context("spawn").Pool(2, os.nice, (10,)) as pool:
        results = pool.starmap_async(attempt_all, jobs, chunksize=1).get(timeout=7000)
    found: Counter[str] = sum((outcomes for outcomes, _ in results), Counter())
    most = max(more for _, more in results)
    with capsys.disabled():
        took = time.monotonic() - began
        print(f"\n{found.total()} bodies in {took:.0f} s, at most {most / 2**20:.0f} MiB more: {dict(found)}")
    assert found.total() == N_BODIES
    assert most < MOST_BYTES
    assert found["Order"] > 0.01 * found.total(), "mutations should leave some bodies valid"
    assert found["InvalidTensor"] > 0.1 * found.total()


@pytest.mark.timeout(7200)
def test_altered_requests_are_answered_and_refused_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, sources = random.Random(4), [bodies(5, name) for name in originals()]
    statuses: Counter[int] = Counter()
    with serving(tmp_path, *PROBLEMS) as client:
        for _ in range(N_REQUESTS):
            sent = rng.choice(sources)()
            response = client.post(sent.path, content=sent.body, headers=sent.headers)
            statuses[response.status_code] += 1
            shown = f"{sent.path} {base64.b64encode(sent.body)!r}: {response.text[:300]}"
            assert response.status_code in (200, 400, 404, 409, 413, 422), shown
            if response.status_code >= 400:
                assert response.headers["content-type"] == "application/problem+json", shown
                assert response.json()["detail"], shown
    with capsys.disabled():
        print(f"\n{statuses.total()} requests: {dict(statuses)}")
    assert statuses[200]
    assert statuses[400]
