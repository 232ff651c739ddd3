"""What the tests of kernels share: every CUDA source compiled once a session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from tests.kernels.accelerator import FakeDriver

if TYPE_CHECKING:
    from conv_advisor.kernels.cuda.resources import Compilation, Resources

    Compiled = dict[Compilation, Future[tuple[bytes, str, list[Resources]]]]


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Iterator[Compiled]:
    """Compilations to come, of the sources that the chosen tests name; all cores work on them from now on."""
    from conv_advisor.kernels.cuda.resources import compilations, new_pool, start

    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {each["source"] for each in params if "source" in each}
    with new_pool() as pool:
        started = start([each for each in compilations() if each.source in wanted], pool)
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def map_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Who encodes tensor maps in the driver's place."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma import encoding

    fake = FakeDriver()
    monkeypatch.setattr(encoding, "_driver", lambda: fake)
    encoding._version.cache_clear()
    return fake
