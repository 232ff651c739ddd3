"""The audit of dependencies: the real pip-audit, asked of an advisory service that these tests run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
AUDIT = ROOT / ".ci" / "audit.py"
PINNED = f"jinja2==2.4.1 --hash=sha256:{'0' * 64}\n"
LOUD = "THE DEPENDENCIES WERE NOT AUDITED"
ADVISORY = {
    "id": "GHSA-test-0001",
    "summary": "made up",
    "published": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.5"}]}],
            "versions": ["2.4.1"],
        }
    ],
}


@contextmanager
def advisories(status: int, answer: dict[str, Any] | None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A service that answers every OSV query so; its address, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = json.dumps(answer).encode() if answer is not None else b"not JSON"
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def audited(tmp_path: Path, url: str, pinned: str = PINNED) -> subprocess.CompletedProcess[str]:
    requirements = tmp_path / "pinned.txt"
    requirements.write_text(pinned)
    command = [sys.executable, AUDIT, "--service", "osv", "--osv-url", url, requirements]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_a_vulnerability_that_is_found_fails(tmp_path: Path) -> None:
    with advisories(200, {"vulns": [ADVISORY]}) as (url, asked):
        finished = audited(tmp_path, url)
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert "audit by osv: vulnerable" in finished.stdout
    assert "jinja2 2.4.1: GHSA-test-0001, fixed in 2.5" in finished.stdout
    assert [each["package"]["name"] for each in asked] == ["jinja2"]


def test_none_that_is_found_passes_and_says_how_many_were_looked_at(tmp_path: Path) -> None:
    with advisories(200, {}) as (url, _):
        finished = audited(tmp_path, url)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "audit by osv: clean\n  1 dependencies have no known vulnerability\n" in finished.stdout
    assert LOUD not in finished.stdout


@pytest.mark.parametrize("status", [None, 500, 503])
def test_a_service_that_cannot_be_asked_passes_but_loudly(tmp_path: Path, status: int | None) -> None:
    with advisories(status or 200, {}) as (url, _):
        reachable = url
    if status is None:
        finished = audited(tmp_path, reachable)  # nobody listens there any more
    else:
        with advisories(status, {}) as (url, _):
            finished = audited(tmp_path, url)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "audit by osv: not audited" in finished.stdout
    assert LOUD in finished.stdout


def test_an_audit_that_breaks_is_no_audit_that_passes(tmp_path: Path) -> None:
    with advisories(200, {}) as (url, _):
        finished = audited(tmp_path, url, pinned="jinja2 >= 2 ; nonsense ===\n")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    assert "audit by osv: broken" in finished.stdout
    assert LOUD not in finished.stdout
