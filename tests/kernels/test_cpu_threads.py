"""How work is spread over threads, kept on one, and compiled where nothing can be cached."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu import prepare
from conv_advisor.kernels.cpu.compile import FLOATS, INT, OUT_FLOATS, compiled
from conv_advisor.kernels.cpu.threads import LEAST_FLOPS, Threads, available_cores, one_blas_thread
from conv_advisor.kernels.cpu.variants import VARIANTS

ENOUGH = 100 * LEAST_FLOPS


def parts_of(threads, items, flops):
    parts = []
    threads.over(items, flops, lambda first, last: parts.append((first, last, threading.get_ident())))
    return sorted(parts)


@pytest.mark.parametrize(("count", "items"), [(1, 10), (2, 10), (3, 10), (4, 3), (5, 1)])
def test_every_item_is_worked_on_once(count, items):
    parts = parts_of(Threads(count), items, ENOUGH)
    assert [item for first, last, _ in parts for item in range(first, last)] == list(range(items))
    assert len(parts) == min(count, items)


def test_parts_run_at_the_same_time():
    meeting = threading.Barrier(3, timeout=300)
    Threads(3).over(3, ENOUGH, lambda _first, _last: meeting.wait())


def test_one_thread_is_the_callers():
    assert {ident for _, _, ident in parts_of(Threads(1), 100, ENOUGH)} == {threading.get_ident()}


def test_little_work_is_not_handed_over():
    assert len(parts_of(Threads(4), 100, 2 * LEAST_FLOPS - 1)) == 1
    assert len(parts_of(Threads(4), 100, 2 * LEAST_FLOPS)) == 2


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_part_raises_reaches_the_caller(failing):
    def work(first, _last):
        if first == failing:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Threads(2).over(2, ENOUGH, work)


def test_blas_keeps_to_one_thread_and_is_given_back():
    def counts():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = counts()
    with one_blas_thread():
        assert before
        assert set(counts()) == {1}
    assert counts() == before


def test_serial_variants_get_one_thread_and_parallel_ones_every_core(monkeypatch):
    given = {}
    monkeypatch.setattr(prepare, "Threads", lambda count: given.setdefault(variant.id, count))
    monkeypatch.setattr(prepare, "available_cores", lambda: 7)
    monkeypatch.setattr(prepare, "_PREPARE", {variant.algorithm: lambda *_: None for variant in VARIANTS})
    for variant in VARIANTS:
        prepare.prepare(variant, ConvProblem.parse("8-1-3-4-4"))
    assert given == {variant.id: 7 if "parallel" in variant.id else 1 for variant in VARIANTS}
    assert available_cores() >= 1


def test_parts_see_the_callers_error_state():
    seen = []
    with np.errstate(over="ignore", invalid="raise"):
        Threads(3).over(3, ENOUGH, lambda _first, _last: seen.append((np.geterr()["over"], np.geterr()["invalid"])))
    assert seen == [("ignore", "raise")] * 3


def test_a_dropped_launch_ends_its_threads():
    before = set(threading.enumerate())
    threads = Threads(3)
    threads.over(3, ENOUGH, lambda _first, _last: None)
    workers = set(threading.enumerate()) - before
    assert workers
    del threads
    for worker in workers:
        worker.join(timeout=300)
    assert not any(worker.is_alive() for worker in workers)


def test_it_compiles_where_no_cache_can_be_kept(monkeypatch):
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    @compiled(FLOATS, OUT_FLOATS, INT)
    def double(values, out, count):
        for i in range(count):
            out[i] = 2 * values[i]

    out = np.zeros(3, np.float32)
    double(np.ones(3, np.float32), out, 2)
    assert out.tolist() == [2, 2, 0]
