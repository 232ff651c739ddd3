"""These tests load the machine for minutes, and some have not passed yet: they run where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is in this folder, with the reason, unless CONV_TEST_RELIABILITY or CONV_TEST_FULL is set."""
    if os.environ.get("CONV_TEST_RELIABILITY") or os.environ.get("CONV_TEST_FULL"):
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(
                pytest.mark.skip(reason="set CONV_TEST_RELIABILITY=1: takes minutes, see docs/reliability.md")
            )
