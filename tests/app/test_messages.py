"""Messages between processes: whole, in order, and without copies of tensors."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
import pytest

from conv_advisor.app.workers.messages import receive, receive_packed, send, unpack

MIB = 2**20
Ends = tuple[Connection, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = Pipe()
    with one, other:
        yield one, other


def passed(ends: Ends, message: Any) -> Any:
    one, other = ends
    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send, one, message)
        found = receive(other)
        sending.result()
    return found


@pytest.mark.parametrize(
    "message",
    [("ready",), None, b"", b"a" * 10 * MIB, {"a": [1, 2.5, None]}, ("failed", ValueError("x"))],
    ids=lambda message: repr(message)[:20],
)
def test_whatever_can_be_pickled_arrives_as_it_was(ends: Ends, message: Any) -> None:
    assert repr(passed(ends, message)) == repr(message)


def test_arrays_arrive_as_they_were_and_can_be_written(ends: Ends) -> None:
    whole = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    arrays = (
        *(whole, np.asfortranarray(whole), whole[:, ::2], whole[:0]),
        *(np.zeros((3, 2**20), np.float16), np.array([np.nan, np.inf, -0.0])),
    )
    for given, found in zip(arrays, passed(ends, ("done", arrays))[1], strict=True):
        assert (found.dtype, found.shape) == (given.dtype, given.shape)
        np.testing.assert_array_equal(found, given)
        assert found.flags.writeable


def test_one_message_follows_another(ends: Ends) -> None:
    one, other = ends
    arrays = [np.full(300_000, index, np.float32) for index in range(5)]
    sending = threading.Thread(target=lambda: [send(one, (index, array)) for index, array in enumerate(arrays)])
    sending.start()
    for index, array in enumerate(arrays):
        found, received = receive(other)
        assert found == index
        np.testing.assert_array_equal(received, array)
    sending.join()


def test_a_tensor_takes_its_own_memory_and_no_more(ends: Ends) -> None:
    given = np.ones(32 * MIB // 4, np.float32)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = passed(ends, ("done", given))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert found[1].nbytes == given.nbytes
    assert given.nbytes <= peak < given.nbytes + MIB, "one copy: the one that arrives"


def test_what_cannot_be_pickled_sends_nothing(ends: Ends) -> None:
    one, other = ends
    with pytest.raises((AttributeError, TypeError, Exception), match="pickle"):
        send(one, (np.zeros(3), threading.Lock()))
    assert not other.poll()
    assert passed(ends, "next") == "next"


def test_what_cannot_be_read_leaves_the_next_message_whole(ends: Ends) -> None:
    one, other = ends
    with ThreadPoolExecutor(1) as thread:
        for sent in ((_Unreadable(), np.ones(5)), "next"):
            thread.submit(send, one, sent).result()
    packed = receive_packed(other)
    with pytest.raises(ZeroDivisionError):
        unpack(packed)
    assert receive(other) == "next"


class _Unreadable:
    """Fails where it is read."""

    def __reduce__(self) -> Any:
        return divmod, (1, 0)


@pytest.mark.parametrize("count", [0, 1, 4 * MIB])
def test_an_end_that_closes_within_a_message_ends_it(ends: Ends, count: int) -> None:
    one, other = ends
    one.send_bytes((8 * MIB).to_bytes(8, "big"))
    with ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(receive, other)
        if count:
            one.send_bytes(b"x" * count)
        one.close()
        with pytest.raises((EOFError, OSError)):
            receiving.result(timeout=300)
