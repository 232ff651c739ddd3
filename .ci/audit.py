"""Ask an advisory service whether any pinned dependency has a known vulnerability.

    python .ci/audit.py [--service pypi|osv] [--osv-url URL] [requirements ...]

Exit status 1: one was found, or the audit itself broke. 0: none was found, or no advisory service could be asked, which
it says loudly: not having been able to look is no reason to stop, and no reason to say that all is well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCKED = sorted((ROOT / "constraints").glob("*.txt"))
IGNORED: dict[str, str] = {}
"""Advisories that do not concern this project, each with its reason."""

_UNREACHABLE = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ServiceError", "Max retries exceeded")
"""What pip-audit ends with where the service cannot be asked; it has no exit status of its own for that."""


class Verdict(StrEnum):
    """What came of one audit; a closed list."""

    CLEAN = "clean"
    VULNERABLE = "vulnerable"
    NOT_AUDITED = "not audited"
    BROKEN = "broken"


@dataclass(frozen=True)
class Report:
    """One audit: its verdict, and a line for everything worth saying."""

    verdict: Verdict
    lines: list[str] = field(default_factory=list)


def read_report(status: int, printed: str, said: str) -> Report:
    """What an audit means.

    Parameters
    ----------
    status : int
        Exit status of pip-audit: 0 where it found nothing, else 1.
    printed : str
        JSON on its standard output.
    said : str
        Its standard error.
    """
    try:
        found: list[dict[str, Any]] = json.loads(printed)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (said.strip().splitlines() or ["nothing was said"])[-1]
        is_unreachable = any(word in said for word in _UNREACHABLE)
        return Report(Verdict.NOT_AUDITED if is_unreachable else Verdict.BROKEN, [last])
    audited = [each for each in found if "vulns" in each]
    skipped = [each for each in found if "skip_reason" in each]
    vulnerable = [_described(each, advisory) for each in audited for advisory in each["vulns"]]
    if vulnerable:
        return Report(Verdict.VULNERABLE, vulnerable)
    if not audited:
        return Report(Verdict.NOT_AUDITED, [skipped[0]["skip_reason"]] if skipped else ["there was nothing to audit"])
    if status:
        return Report(Verdict.BROKEN, [f"pip-audit ended with {status}", said.strip()[-500:]])
    lines = [f"{len(audited)} dependencies have no known vulnerability"]
    return Report(Verdict.CLEAN, lines + [f"not audited: {each['name']}: {each['skip_reason']}" for each in skipped])


def audit(requirements: Sequence[Path], options: Sequence[str]) -> Report:
    """Run pip-audit on files of pinned and hashed requirements."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--disable-pip"]
    command += ["--no-deps", *options, *(f"--requirement={path}" for path in requirements)]
    command += [f"--ignore-vuln={advisory}" for advisory in IGNORED]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    return read_report(finished.returncode, finished.stdout, finished.stderr)


def main() -> int:
    """Audit with each service until one can be asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", choices=("pypi", "osv"), action="append", help="by default both, in this order")
    parser.add_argument("--osv-url", help="of another OSV service")
    parser.add_argument("requirements", nargs="*", type=Path, default=LOCKED)
    arguments = parser.parse_args()
    report = Report(Verdict.NOT_AUDITED)
    for service in arguments.service or ("pypi", "osv"):
        options = [f"--vulnerability-service={service}", "--timeout=10"]
        options += [f"--osv-url={arguments.osv_url}"] if arguments.osv_url else []
        report = audit(arguments.requirements, options)
        _say(service, report)
        if report.verdict is not Verdict.NOT_AUDITED:
            break
    if report.verdict is Verdict.NOT_AUDITED:
        _say_loudly("THE DEPENDENCIES WERE NOT AUDITED: no advisory service can be reached from here")
    return int(report.verdict in (Verdict.VULNERABLE, Verdict.BROKEN))


def _described(dependency: dict[str, Any], advisory: dict[str, Any]) -> str:
    fixed = ", ".join(advisory.get("fix_versions") or ()) or "no version"
    return f"{dependency['name']} {dependency['version']}: {advisory['id']}, fixed in {fixed}"


def _say(service: str, report: Report) -> None:
    for line in (f"audit by {service}: {report.verdict}", *(f"  {line}" for line in report.lines)):
        sys.stdout.write(f"{line}\n")


def _say_loudly(text: str) -> None:
    frame = "!" * (len(text) + 4)
    sys.stdout.write(f"{frame}\n! {text} !\n{frame}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
