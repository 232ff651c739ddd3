"""What is said of paints: medians of what a real browser tells, and a failure where one is over what is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import paint
from tests.app.browser import chromium
from tests.app.test_end_to_end import server
from tests.processes import eventually


def views_of(*paints_ms: float) -> list[paint.View]:
    """Views that were painted then, and are alike otherwise."""
    return [paint.View(painted_ms, 40, 80, 5, 44_000) for painted_ms in paints_ms]


def test_a_line_has_the_median_of_each_figure_and_the_range_of_paints() -> None:
    views = {("/?layer=1-1-1-1-1&dtype=float16", "phone"): views_of(210.0, 350.0, 190.0)}
    head, line = paint.report(views)
    assert line.split() == ["/?layer=1-1-1-1-1", "phone", "210", "(190,", "350)", "40", "80", "5", "44"]
    assert head.index("KB") + len("KB") == len(line)


@pytest.mark.parametrize(("paints_ms", "status"), [((290.0, 310.0, 280.0), 0), ((290.0, 310.0, 320.0), 1)])
def test_it_fails_where_a_median_is_over_what_is_asked(paints_ms: tuple[float, ...], status: int) -> None:
    views = {("/", "desktop"): views_of(100.0), ("/map", "phone"): views_of(*paints_ms)}
    assert paint.status_of(views) == status


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Playwright's pipes, when it ends
def test_a_browser_tells_of_every_page_in_every_window(tmp_path: Path) -> None:
    with chromium() as browser, server(tmp_path) as running:
        assert eventually(lambda: running.http.get("/readyz").status_code == 200)
        views = paint.look(browser, str(running.http.base_url).rstrip("/"), 1)
    assert set(views) == {(page, window) for page in paint.PAGES for window in paint.WINDOWS}
    for (view,) in views.values():
        assert 0 < view.answered_ms < view.painted_ms
        assert view.worked_ms > 0
        assert view.n_requests > 3, "the page, its sheet and its scripts"
        assert view.n_bytes > 10_000
