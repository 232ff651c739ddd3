"""A real browser: Debian's Chromium, driven by Playwright; skipped, and saying so, where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

DESKTOP = {"width": 1360, "height": 900}
PHONE = {"width": 390, "height": 844}

_PATIENCE_MS = 250_000
"""For what promises no time: a new server imports all that ships meanwhile."""

_NOTE_VIOLATIONS = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) =>
        window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it; where it is not installed the test is skipped, or fails if REQUIRE_BROWSER is 1."""
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail("REQUIRE_BROWSER=1, but there is no chromium")
        pytest.skip("no chromium; .ci/run installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Somebody with a browser window, and a record of everything that a page should not do.

    Parameters
    ----------
    browser : Browser
    address : str
        The service's: whatever is asked of anybody else is a fault.
    options
        As Playwright's new_context takes them: viewport, color_scheme and so on.
    """

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.address = address
        self.context: BrowserContext = browser.new_context(**{"viewport": DESKTOP, **options})
        self.context.set_default_timeout(_PATIENCE_MS)
        expect.set_options(timeout=_PATIENCE_MS)
        self.context.add_init_script(_NOTE_VIOLATIONS)
        self.page: Page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("console", lambda message: self.faults.append(message.text) if _is_fault(message) else None)
        self.page.on("request", lambda request: self._check(request.url))

    def open(self, path: str) -> Page:
        """Go there, and wait until nothing moves any more."""
        self.page.goto(self.address + path)
        self.page.wait_for_load_state("load")
        return self.page

    def check(self) -> None:
        """Nothing that a page should not do was done."""
        self.faults += [f"policy: {found}" for found in self.page.evaluate("window.violations")]
        assert not self.faults, self.faults

    def picture(self, path: Path) -> None:
        """Keep a screenshot of the whole page."""
        self.page.screenshot(path=path, full_page=True)

    def close(self) -> None:
        """Close the window."""
        self.context.close()

    def _check(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:")):
            self.faults.append(f"asked elsewhere: {url}")


def _is_fault(message: Any) -> bool:
    """Refusals are statuses that the browser notes too, and that tests ask for."""
    return message.type in ("error", "warning") and "the server responded with a status of 4" not in message.text
