"""What all tests share: where a GPU is needed and missing, say so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.databases import database_url  # noqa: F401 - a fixture of many tests

# Workers do not look into the folder they are started in; some tests have them open a fake device of `tests.fakes`.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def _gpu_reason() -> str | None:
    """Why no GPU test can run here, or None where they can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable GPU: {error}"
    return None if count else "no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU; with REQUIRE_GPU=1 they fail instead."""
    needing = [item for item in items if item.get_closest_marker("gpu") or item.get_closest_marker("gpu_exclusive")]
    if not needing:
        return
    reason = _gpu_reason()
    if reason is None:
        return
    if os.environ.get("REQUIRE_GPU") == "1":
        raise pytest.UsageError(f"REQUIRE_GPU=1, but {reason}")
    for item in needing:
        item.add_marker(pytest.mark.skip(reason=reason))
