"""What a body costs while it arrives."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack, suppress

import pytest
from starlette.requests import Request
from starlette.types import Message

from conv_advisor.app.wire import body
from conv_advisor.data.errors import QueueFull
from tests.reliability.watch import held_bytes

BODIES = 64
PART = bytes(2**20)
LIMIT_BYTES = 64 * 2**20


def arriving(*parts: bytes) -> Request:
    """A request in chunks, of which no more come after these, and no end."""
    left = iter(parts)

    async def receive() -> Message:
        part = next(left, None)
        if part is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part, "more_body": True}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is held")
def test_a_body_that_begins_costs_what_has_arrived_of_it() -> None:
    async def begin() -> int:
        before = held_bytes()
        reading = [asyncio.create_task(body.read(arriving(PART), LIMIT_BYTES)) for _ in range(BODIES)]
        await asyncio.sleep(0.1)
        more = held_bytes() - before
        for each in reading:
            each.cancel()
        await asyncio.wait(reading)
        return more

    assert asyncio.run(begin()) < 1.25 * BODIES * len(PART)


def test_a_long_body_arrives_whole() -> None:
    async def read_whole() -> bytes:
        parts = [bytes([i]) * 2**20 for i in range(5)]
        sent = iter([*parts, b""])

        async def receive() -> Message:
            part = next(sent)
            return {"type": "http.request", "body": part, "more_body": bool(part)}

        request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
        return (await body.read(request, LIMIT_BYTES)).tobytes()

    assert asyncio.run(read_whole()) == b"".join(bytes([i]) * 2**20 for i in range(5))


def test_of_bodies_that_arrive_together_the_first_gets_through() -> None:
    budget = body.Budget(limit_bytes=400, longest_bytes=100)
    with ExitStack() as all_of_them:
        first, *others = [all_of_them.enter_context(budget.hold()) for _ in range(64)]
        for part in range(100):
            for each in others:
                with suppress(QueueFull):
                    each.more(1)
            first.more(1)
            assert budget.held_bytes <= 400, part
        assert first.count == 100
        assert sum(each.count for each in others) == 300


def test_the_next_body_is_the_first_once_the_first_is_done() -> None:
    budget = body.Budget(limit_bytes=400, longest_bytes=100)
    with ExitStack() as of_the_first:
        first = of_the_first.enter_context(budget.hold(announced=60))
        with budget.hold() as second, budget.hold() as third, budget.hold() as fourth, budget.hold() as fifth:
            first.more(60)
            for each in (third, fourth, fifth):
                each.more(100)
            with pytest.raises(QueueFull):
                second.more(1)
            of_the_first.close()
            with pytest.raises(QueueFull), budget.hold(announced=1):
                pass
            second.more(100)
            assert budget.held_bytes == 400
    assert budget.held_bytes == 0
