"""The figures of the pages: drawn where the site is built, from what ships, and kept nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.plots.pages import marks, rewritten
from benchmarks.plots.style import STYLE

FOLDER: Final = "figures"
"""Where the figures are, beside the pages."""
UNDRAWN: Final = "*Drawn where the site is built: `make docs`.*"
"""What a page says in a figure's place until then."""
UNMEASURED: Final = "Not measured."


@dataclass(frozen=True)
class Drawing:
    """One figure and where it stands.

    Parameters
    ----------
    group : str
        The figures that stand together; its marks are those of `place_of`.
    name : str
        Path within the folder of figures, without its ending.
    caption : str
    figure : Figure
    """

    group: str
    name: str
    caption: str
    figure: Figure


def place_of(group: str) -> str:
    """The lines of a page between which a group of figures is shown, before any is drawn."""
    begin, end = marks(f"figures of {group}")
    return "\n\n".join((begin, UNDRAWN, end))


def show(page: Path, groups: Sequence[str], drawings: Iterable[Drawing]) -> list[Path]:
    """Write figures beside a page, and show them in it; the files.

    Parameters
    ----------
    page : Path
        Has the marks of every group.
    groups : sequence of str
        All groups of the page; one without a drawing was not measured.
    drawings : iterable of Drawing
        In the order in which they are shown; each is drawn as it is taken.
    """
    images: dict[str, list[str]] = {group: [] for group in groups}
    files = []
    with mpl.rc_context(STYLE):
        for drawing in drawings:
            file = page.parent / FOLDER / f"{drawing.name}.svg"
            file.parent.mkdir(parents=True, exist_ok=True)
            drawing.figure.savefig(file, metadata={"Date": None})  # the same figure gives the same bytes
            images[drawing.group].append(f"![{drawing.caption}]({file.relative_to(page.parent).as_posix()})")
            files.append(file)
    parts = {f"figures of {group}": "\n\n".join(shown) or UNMEASURED for group, shown in images.items()}
    page.write_text(rewritten(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    return files
