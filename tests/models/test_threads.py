"""Training on several threads."""

from __future__ import annotations

import threading
import time

import pytest
from threadpoolctl import threadpool_info

from conv_advisor.models.training.threads import threads


def test_what_comes_out_is_in_the_order_of_what_goes_in() -> None:
    with threads(2) as each:
        assert list(each(lambda seconds: time.sleep(seconds) or seconds, [0.2, 0.0, 0.1])) == [0.2, 0.0, 0.1]


@pytest.mark.parametrize("count", [1, 2])
def test_all_work_and_each_keeps_openmp_to_itself(count: int) -> None:
    together = threading.Barrier(count, timeout=300)

    def look(_place: int) -> tuple[str, list[int]]:
        together.wait()
        limits = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "openmp"]
        return threading.current_thread().name, limits

    with threads(count) as each:
        found = list(each(look, range(count)))
    assert len({name for name, _ in found}) == count
    assert all(limits and set(limits) == {1} for _, limits in found)


def test_an_error_of_one_is_raised() -> None:
    with threads(2) as each, pytest.raises(ZeroDivisionError):
        list(each(lambda number: 1 / number, [1, 0]))
