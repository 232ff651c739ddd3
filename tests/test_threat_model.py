"""The threat model: whatever it says stands against a threat has a test, and that test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def threats() -> list[tuple[str, list[tuple[str, str]]]]:
    """Every threat with the tests named beside it: file and function."""
    text = (ROOT / "docs" / "threat-model.md").read_text()
    table = text.partition("## Threats")[2].partition("## Residual risks")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ") and "**" not in line]
    return [(row[0].strip(), re.findall(r"`([\w/]+\.py)::(test_\w+)`", row[-1])) for row in rows[1:]]


def test_every_threat_names_the_tests_that_show_what_stands_against_it() -> None:
    found = threats()
    assert len(found) > 20
    assert [threat for threat, tests in found if not tests] == []


def test_every_test_that_is_named_exists() -> None:
    named = {test for _, tests in threats() for test in tests}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (ROOT / file).is_file() or f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert missing == []
