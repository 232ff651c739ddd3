"""What names the kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conv_advisor.kernels import sources


def test_it_follows_from_the_sources_and_from_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch("[0-9a-f]{8}", sources.sources_digest())
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "sources.py"))
    name_of = sources.sources_digest.__wrapped__
    (tmp_path / "family").mkdir()
    kernel = tmp_path / "family" / "family.cu"
    kernel.write_text("one")
    first = name_of()
    (tmp_path / "family" / "notes.txt").write_text("no source")
    assert name_of() == first
    kernel.write_text("two")
    assert name_of() != first
    kernel.write_text("one")
    assert name_of() == first
    kernel.rename(tmp_path / "family.cu")
    assert name_of() != first
