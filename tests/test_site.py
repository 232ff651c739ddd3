"""The documentation as a site: it builds strictly, shows every figure, and asks no other host for anything."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

from conv_advisor.app.cli import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
UNDRAWN = "Drawn where the site is built"
"""What a page says in a figure's place until then."""


class Links(HTMLParser):
    """The addresses that a page loads: scripts, styles, icons, images, frames."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.images: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = {"script": "src", "link": "href", "img": "src", "iframe": "src"}.get(tag)
        given = dict(attrs)
        if tag == "img":
            self.images.append(given["src"] or "")
        if given.get("rel") != "canonical":
            self.loaded += [value for key, value in attrs if key == name and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs")
    built = subprocess.run(
        [sys.executable, "-W", "ignore", ".ci/docs.py", "--pages", folder / "pages", "--site", folder / "site"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    assert len(pages) > 20
    loaded = {link for page in pages.values() for link in Links(page).loaded}
    assert any(link.endswith(".css") for link in loaded)
    assert sorted(link for link in loaded if re.match(r"(https?:)?//", link)) == []
    styles = [style.read_text() for style in site.rglob("*.css")]
    assert [url for style in styles for url in re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)", style)] == []


def test_every_figure_is_drawn_and_shown(site: Path) -> None:
    images = {link for page in ("kernels", "guidelines") for link in Links((site / f"{page}.html").read_text()).images}
    drawn = {str(path.relative_to(site)) for path in (site / "figures").rglob("*.svg")}
    assert {link for link in images if link.startswith("figures/")} == drawn
    assert {f"figures/{name}-float16-nhwc.svg" for name in ("winners", "speedups", "slowdowns")} < drawn
    assert {f"figures/guidelines/{name}.svg" for name in ("shares", "course", "cuconv-float32-nchw")} < drawn
    assert not [page.name for page in site.glob("*.html") if UNDRAWN in page.read_text()]


def test_the_site_wears_the_colours_of_the_page(site: Path) -> None:
    colours, dressed = ((site / name).read_text() for name in ("colours.css", "site.css"))
    assert (ROOT / "app" / "web" / "static" / "page.css").read_text().startswith(colours)
    assert set(re.findall(r"var\((--[\w-]+)\)", dressed)) <= set(re.findall(r"(--[\w-]+):", colours))
    assert {"colours.css", "site.css"} < set(Links((site / "index.html").read_text()).loaded)


def test_the_site_opens_with_a_picture_and_an_example_that_runs(site: Path) -> None:
    assert "page.png" in Links((site / "index.html").read_text()).images
    home = (ROOT / "docs" / "index.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", home, re.DOTALL | re.MULTILINE)
    first, second = example.split("\n\n")
    assert first == "import conv_advisor"
    assert eval(second, {"conv_advisor": importlib.import_module("conv_advisor")}).variant  # noqa: S307 - our own line


def test_references_have_every_command_route_and_module(site: Path) -> None:
    from conv_advisor.app.main import create_app
    from conv_advisor.app.settings import Settings

    http, line, api = ((site / "reference" / f"{name}.html").read_text() for name in ("http", "cli", "api"))
    assert [path for path in create_app(Settings()).openapi()["paths"] if path not in http] == []
    assert [name for name in typer.main.get_command(cli).commands if f"conv-advisor {name}" not in line] == []
    for name in ("ConvProblem", "Measurement", "Advisor", "Report", "BenchOptions", "Variant", "for_device_kind"):
        assert re.search(rf'id="[\w.]+\.{name}"', api), name
