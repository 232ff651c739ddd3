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


def test_a_part_of_the_sources_has_a_digest_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "sources.py"))
    digest_of = sources.sources_digest.__wrapped__
    for folder in ("cuda", "cudnn"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rules.py").write_text("one")
    whole, part = digest_of(), digest_of("cudnn")
    (tmp_path / "cuda" / "rules.py").write_text("two")
    assert (digest_of() == whole, digest_of("cudnn") == part) == (False, True)
    (tmp_path / "cudnn" / "rules.py").write_text("two")
    assert digest_of("cudnn") != part


def test_no_loop_takes_turns_of_three_or_the_like() -> None:
    """Of a loop within another, NVRTC 13.0 makes turns of three with none for what is left."""
    found = {
        int(turns)
        for path in Path(sources.__file__).parent.rglob("*.cu*")
        for turns in re.findall(r"#pragma unroll (\d+)", path.read_text(encoding="utf-8"))
    }
    assert found
    assert [turns for turns in found if turns.bit_count() != 1] == []
