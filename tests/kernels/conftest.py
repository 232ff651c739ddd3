"""What the tests of kernels share: every CUDA source compiled once a session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

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
        started = start([compilation for compilation in compilations() if compilation.source in wanted], pool)
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes in which CuPy's name is taken by its stand-in."""
    from tests.kernels import host_cuda

    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=host_cuda.install) as executor:
        yield executor


@pytest.fixture
def map_driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Who encodes tensor maps in the driver's place."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma import encoding

    fake = FakeDriver()
    monkeypatch.setattr(encoding, "_driver", lambda: fake)
    encoding._version.cache_clear()
    return fake


@pytest.fixture
def tma_launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Shape and options of what `cuda.implicit_gemm_tma` prepares, then the parameters of each run."""
    from conv_advisor.kernels.cuda.implicit_gemm_tma import launch

    started: list[Any] = []

    def prepare_start(kernel: Any, *shape: Any, **options: Any) -> Any:
        started.append((shape, options))
        return lambda *parameters: started.append(parameters)

    monkeypatch.setattr(launch, "prepare_start", prepare_start)
    monkeypatch.setattr(launch, "load_kernel", lambda source, kernel, *_, **defines: (source, kernel, defines))
    return started
