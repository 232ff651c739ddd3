"""Kernels that several threads want are compiled by one of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda import compile as compiling
from conv_advisor.kernels.cuda.parts.source import Source


class Module:
    """What waits for a second thread to compile at the same time."""

    def __init__(self) -> None:
        self.together = 0
        self._both = threading.Barrier(2)

    def get_function(self, _name: str) -> Module:
        return self

    @property
    def kernel(self) -> None:
        try:
            self._both.wait(0.2)
        except threading.BrokenBarrierError:
            return
        self.together += 1


def test_one_thread_compiles_what_two_want(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module()
    monkeypatch.setattr(compiling, "load_module", lambda *_given, **_defines: module)
    source = Source("appended")

    def load(_index: int) -> Any:
        return compiling.load_kernel(source, "appended", DType.FLOAT32)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(load, range(2))) == [module, module]
    assert module.together == 0
