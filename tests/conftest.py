"""What all tests share: which of them this machine can run, and which of them run together."""

from __future__ import annotations

import os
import sqlite3
import sys
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.databases import database_url  # noqa: F401 - a fixture of many tests

# Workers do not look into the folder they are started in; some tests have them open a fake device of `tests.fakes`.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# The same examples every time, however long each takes: a machine that does much else fails none, and what has passed
# does not fail by chance the next time. HYPOTHESIS_PROFILE=default tries others.
# Tests of the GPU need no Hypothesis, and a GPU host may have none.
if find_spec("hypothesis"):
    from hypothesis import settings

    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ON_GPU = "_gpu.py"
"""End of the name of a module whose tests need a GPU: it is collected only where there is one."""


@cache
def why_no_gpu() -> str:
    """Why no test can run on a GPU here; empty where there is one."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable GPU: {error}"
    return "" if count else "no GPU"


class _Watched(sqlite3.Connection):
    """Says what Python 3.13 says of a connection that nobody has closed."""

    is_closed = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()

    def __del__(self) -> None:
        if not self.is_closed:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, source=self, stacklevel=1)


def _connect_watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
    return _connect(*arguments, **{"factory": _Watched, **options})


_connect = sqlite3.dbapi2.connect
if sys.version_info < (3, 13):
    sqlite3.connect = sqlite3.dbapi2.connect = _connect_watched


def pytest_configure() -> None:
    """Refuse to go on where a GPU is required and there is none."""
    if os.environ.get("REQUIRE_GPU") == "1" and why_no_gpu():
        raise pytest.UsageError(f"REQUIRE_GPU=1, but {why_no_gpu()}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: then all processors have something to do until the end.

    Those that stand beside this one try the whole, and take longer than those of a room.
    """
    here, slow = Path(__file__).parent, {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent != here))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that need a GPU where there is none, before they are imported."""
    return True if collection_path.name.endswith(ON_GPU) and why_no_gpu() else None


def pytest_report_header() -> str:
    """Say what is left out."""
    return f"*{ON_GPU} are not collected: {why_no_gpu()}" if why_no_gpu() else f"*{ON_GPU} run on the GPU"


class ByFile(LoadScopeScheduling):
    """Gives a file to one worker, for its fixtures; and all that needs the GPU to one, for some tests time it."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return ON_GPU if file.endswith(ON_GPU) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Whatever ``--dist`` says."""
    config.option.loadscopereorder = False  # would begin with the files of many tests, which are the quick ones
    return ByFile(config, log)
