"""Take out of a folder what no part of the service uses: ``prune.py <rules> <folder>``; standard library alone."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a list: ``<glob> <tab or two spaces># <why nothing uses it>``."""

    pattern: str
    reason: str


def read_rules(path: Path) -> list[Rule]:
    """The rules of a list, in order; blank lines and lines that begin with ``#`` are passed over.

    Raises
    ------
    ValueError
        A line gives no reason, or its pattern leaves the folder.
    """
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if not pattern or not reason or pattern.startswith("/") or ".." in pattern:
            raise ValueError(f"{path.name}:{number}: '{line}' is not '<relative glob>  # <reason>'")
        rules.append(Rule(pattern, reason))
    return rules


def prune(root: Path, rule: Rule) -> int | None:
    """Remove what a rule matches below `root`; how many bytes that was, or None where nothing matches."""
    matches = sorted(root.glob(rule.pattern))
    removed = 0
    for path in matches:
        if path.is_dir() and not path.is_symlink():
            removed += sum(inner.lstat().st_size for inner in path.rglob("*") if not inner.is_dir())
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():  # else it went with a folder of the same rule
            removed += path.lstat().st_size
            path.unlink()
    return removed if matches else None


def main(rules: str, folder: str) -> int:
    """Apply a list; 1 if one of its rules has nothing left to remove, for then the list is out of date."""
    stale = []
    for rule in read_rules(Path(rules)):
        removed = prune(Path(folder), rule)
        sys.stdout.write(f"{(removed or 0) / 1e6:9.2f} MB  {rule.pattern}  ({rule.reason})\n")
        if removed is None:
            stale.append(rule.pattern)
    if stale:
        sys.stderr.write(f"{rules}: nothing matches {', '.join(stale)}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
