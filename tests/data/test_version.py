"""The version: what is installed, and something that says so where nothing is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import pytest

import conv_advisor
from conv_advisor.app.snippets.writer import write_snippet
from conv_advisor.data import version as versions
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog


def test_the_version_is_the_one_that_is_installed() -> None:
    assert versions.version() == conv_advisor.__version__ == version_of("conv-advisor")


def test_sources_that_nobody_installed_run_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version_of", not_found)
    versions.version.cache_clear()
    snippet = write_snippet(ConvProblem.parse("8-1-3-8-8"), catalog.get("cuda.gemm"), workspace_limit_bytes=0)
    versions.version.cache_clear()
    assert f"conv-advisor {versions.NOT_INSTALLED}." in snippet.code
    assert snippet.plan == {"id": "cuda.gemm", "version": versions.NOT_INSTALLED}
