"""The picture of the page in the documentation, made anew: ``python -m tests.app.picture docs/page.png``.

It needs Chromium, and takes what ships: no GPU. It is to be made again where the page looks different.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

from PIL import Image

from tests.app.browser import Visitor, chromium
from tests.app.test_end_to_end import server
from tests.processes import eventually

ADDRESS: Final = "/?layer=14-8-3-256-256&device=nvidia-h200&network=resnet50"
WIDTH: Final = 1280
MOST_BYTES: Final = 250_000

_COLOURS: Final = 256
"""A palette this small leaves text sharp, and the file a quarter of its size."""


def main(path: Path) -> None:
    """Start a service of its own, and take the picture."""
    with tempfile.TemporaryDirectory() as home, chromium() as browser, server(Path(home)) as running:
        assert eventually(lambda: running.http.get("/readyz").status_code == 200)
        address = f"http://127.0.0.1:{running.port}"
        with closing(Visitor(browser, address, viewport={"width": WIDTH, "height": 900})) as visitor:
            take(visitor, path)


def take(visitor: Visitor, path: Path) -> None:
    """Keep the page from its head to the end of the trade-offs."""
    page = visitor.open(ADDRESS)
    bottom = page.locator("#tradeoffs").evaluate("card => card.getBoundingClientRect().bottom + scrollY")
    page.set_viewport_size({"width": WIDTH, "height": int(bottom) + 16})
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
