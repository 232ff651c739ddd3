"""What the tests of kernels share: every CUDA source compiled once a session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

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
