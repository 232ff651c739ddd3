"""What the tests of kernels share: every CUDA source compiled once a session, and the table of what kernels take."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conv_advisor.kernels.cuda.resources import Compilation, Resources

    Compiled = dict[Compilation, Future[tuple[bytes, str, list[Resources]]]]

_COMPILED = pytest.StashKey["Compiled"]()


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Iterator[Compiled]:
    """Compilations to come, of the sources that the chosen tests name; all cores work on them from now on."""
    from conv_advisor.kernels.cuda.resources import compilations, new_pool, start

    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {each["source"] for each in params if "source" in each}
    with new_pool() as pool:
        started = start([each for each in compilations() if each.source in wanted], pool)
        request.config.stash[_COMPILED] = started
        yield started
        pool.shutdown(cancel_futures=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the compiled kernels take, so that a test run reports registers and spills."""
    started = terminalreporter.config.stash.get(_COMPILED, None)
    if not started:
        return
    from conv_advisor.kernels.cuda.resources import report

    done = [future for future in started.values() if future.done() and not future.cancelled()]
    terminalreporter.section("registers, memory and spills of every kernel")
    terminalreporter.write_line(
        report([each for future in done if not future.exception() for each in future.result()[2]])
    )
