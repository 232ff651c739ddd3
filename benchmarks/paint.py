"""How soon a page is painted: Debian's Chromium, on a desktop and on a phone, against a server of its own.

    python -m benchmarks.paint

Each view is in a window that has nothing of the last one: no file kept, a renderer of its own. The first paint with
content is what the browser tells of itself, from the click on; beside it what the server took of it, the time that the
page's own thread was at work, and what came over the wire. The two windows and the pages take turns.

Times on a machine that does other work say little; processor time, bytes and requests hardly change with it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from benchmarks.startup import serving, wait_for

PAGES: Final = ("/", "/?layer=14-1-3-256-128&dtype=float16&layout=nhwc", "/networks", "/map")
WINDOWS: Final = {"desktop": {"width": 1360, "height": 900}, "phone": {"width": 390, "height": 844}}
ASKED_MS: Final = 300.0
_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')"
_ENTRIES: Final = f"""async () => {{
    while (!{_PAINT}.length) await new Promise((resolve) => setTimeout(resolve, 10));
    const page = performance.getEntriesByType("navigation")[0], files = performance.getEntriesByType("resource");
    const before = files.filter((file) => file.startTime < {_PAINT}[0].startTime);
    return [{_PAINT}[0].startTime, page.responseStart, 1 + before.length,
            [page, ...before].reduce((sum, each) => sum + each.transferSize, 0)];
}}"""


@dataclass(frozen=True, slots=True)
class View:
    """One view of a page: when it was painted and when its first byte came, ms from the click on; what the page's
    thread worked until all was loaded, ms; what was asked for before the paint."""

    painted_ms: float
    answered_ms: float
    worked_ms: float
    n_requests: int
    n_bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a page and window; 1 if the median of any is over what is asked, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paint", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--views", type=int, default=9, help="of each page in each window (default 9)")
    parser.add_argument("--device", default="cpu", help="of the server (default cpu)")
    chosen = parser.parse_args(arguments)
    executable = shutil.which("chromium")
    if executable is None:
        parser.error("there is no chromium; apt-get install chromium fonts-dejavu-core")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "home", chosen.device) as (_process, url):
        wait_for(f"{url}/readyz")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
            views = look(browser, url, chosen.views)
            browser.close()
    print("\n".join(report(views)))
    return status_of(views)


def look(browser: Browser, url: str, n_views: int) -> dict[tuple[str, str], list[View]]:
    """Open every page in every window so often, after a first time, not counted, that fills the server's own caches."""
    views = defaultdict(list)
    for turn in range(n_views + 1):
        for page in PAGES:
            for window in WINDOWS:
                view = _view(browser, url + page, window)
                if turn:
                    views[page, window].append(view)
    return views


def _view(browser: Browser, address: str, window: str) -> View:
    width, height = WINDOWS[window].values()
    context = browser.new_context(viewport={"width": width, "height": height}, is_mobile=window == "phone")
    try:
        page = context.new_page()
        session = context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(address, wait_until="load")
        painted_ms, answered_ms, n_requests, n_bytes = page.evaluate(_ENTRIES)
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    finally:
        context.close()
    return View(painted_ms, answered_ms, 1e3 * metrics["TaskDuration"], n_requests, n_bytes)


def status_of(views: Mapping[tuple[str, str], Sequence[View]]) -> int:
    """1 if the median paint of any page in any window is later than asked, else 0."""
    return int(any(statistics.median(view.painted_ms for view in taken) > ASKED_MS for taken in views.values()))


def report(views: Mapping[tuple[str, str], Sequence[View]]) -> Iterable[str]:
    """A line a page and window, medians but where it says otherwise."""
    names = f"{'first byte':>12}{'its thread':>15}{'requests':>10}{'KB':>7}"
    yield f"{'ms':>42}{'first paint':>12}{'(least, worst)':>17}{names}"
    for (page, window), taken in views.items():
        painted = sorted(view.painted_ms for view in taken)
        answered, worked, n_requests, n_bytes = (
            statistics.median(getattr(view, name) for view in taken)
            for name in ("answered_ms", "worked_ms", "n_requests", "n_bytes")
        )
        range_ms = f"({painted[0]:.0f}, {painted[-1]:.0f})"
        yield (
            f"{page.partition('&')[0]:34}{window:>8}{statistics.median(painted):12.0f}{range_ms:>17}"
            f"{answered:12.0f}{worked:15.0f}{n_requests:10.0f}{n_bytes / 1e3:7.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
