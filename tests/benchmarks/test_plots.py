"""The figures of the pages are drawn from measurements, and the page of our kernels names every one of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="only the figures need matplotlib")

from benchmarks import measured as book
from benchmarks.contest.choice import CUDNN, OURS
from benchmarks.contest.scores import COLUMNS
from benchmarks.guidelines.study import GUIDELINES
from benchmarks.plots import algorithms, figures, guidelines, kernels, pages, shares
from benchmarks.plots.__main__ import DOCS, main
from benchmarks.plots.configurations import MOST_NORMALISED
from benchmarks.plots.style import colour_of
from conv_advisor.data import parquet
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.networks import problems
from conv_advisor.data.problem import DType
from conv_advisor.kernels.cuda.catalog import VARIANTS
from tests.benchmarks.made_up import GPU
from tests.data import arrow

COLUMN = ("float32", "nchw")
ROOT = Path(__file__).parents[2]
PARTS = [
    *("summary", "guidelines", "together", "statements", "rules", "rules for cuDNN", "scatter", "growth", "workspaces"),
    "course-cpu",
]


def test_without_matplotlib_it_says_what_installs_it() -> None:
    code = (
        "import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_module('benchmarks.plots', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "benchmarks.plots: matplotlib is not installed; constraints/dev.txt has it: make .venv/.dev installs that\n"
    )


def page_of(*names: str, groups: Sequence[str] = ()) -> str:
    """A page with nothing but the marks of these parts and groups of figures."""
    places = ["\n".join(pages.marks(name)) for name in names] + [figures.place_of(group) for group in groups]
    return "\n\n".join(("# A page", *places, "The end.\n"))


def measured() -> list[Measurement]:
    """Two variants on all layers at two batches, ours ahead at batch 1; a third one is pruned."""
    rows = []
    for problem in problems("seeds", batches=[1, 8], dtypes=[DType.FLOAT32]):
        ours_ms = 1.0 if problem.n == 1 else 4.0
        for variant, time_ms in (("cudnn.implicit_gemm", 2.0), ("cuda.implicit_gemm", ours_ms)):
            rows.append(Measurement(problem, variant, GPU, Outcome.MEASURED, samples_ms=(time_ms,) * 3, max_error=1e-7))
        rows.append(Measurement(problem, "cuda.direct_naive", GPU, Outcome.PRUNED, samples_ms=(90.0,), max_error=1e-7))
    return rows


@pytest.fixture
def timings(tmp_path: Path) -> Path:
    """A folder as data/timings, with one device."""
    parquet.write(arrow.measurements_to_table(measured()), tmp_path / GPU.id / "all.parquet")
    return tmp_path


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder as docs, with the two pages."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "kernels.md").write_text(page_of("where each wins"))
    (folder / "guidelines.md").write_text(page_of(*PARTS, groups=guidelines.GROUPS))
    return folder


def files_of(docs: Path) -> dict[str, bytes]:
    """Everything that was written, by its path in the folder."""
    return {str(path.relative_to(docs)): path.read_bytes() for path in sorted(docs.rglob("*.*"))}


def shown(page: str) -> set[str]:
    """The figures that a page shows."""
    return {f"figures/{name}" for name in re.findall(r"\(figures/(.*?)\)", page)}


def test_the_pages_say_what_was_measured(timings, docs, capsys) -> None:
    options = ["--device", GPU.id, "--timings", str(timings), "--docs", str(docs), "--trained", str(timings)]
    assert main(options) == 0
    written = files_of(docs)
    assert set(written) == {"kernels.md", "guidelines.md"}, "no figure is drawn into the pages that are kept"
    ours, guides = (written[name].decode() for name in ("kernels.md", "guidelines.md"))
    for page in (ours, guides):
        assert page.startswith("# A page")
        assert page.endswith("The end.\n")
        assert figures.UNDRAWN in page
        assert not shown(page)
    assert "| float32 nchw | 172 | 50 % | 1.41 | 2.00 | `cuda.implicit_gemm` 86 |" in ours
    assert "| 5x5 | 2.00 (100 %) | 0.50 (0 %) |" in ours
    assert f"of {len(GUIDELINES)} guidelines 1 hold, " in guides
    assert (
        "| 1×1, batch 1 | 45 | 100 % | 100 % | 100 % | 1.00 | 2.00 | `cudnn.implicit_gemm` 100 % | **holds** |"
        in guides
    )
    assert "| batch 1 | `cuda.implicit_gemm` | `cudnn.implicit_gemm` | 86 | 100 % | 1.00 | 1.00 |" in guides
    assert "| float32 nchw | 1.00 · 1.00 | 1.41 · 2.00 | 1.00 · 1.00 | 1.00 · 1.00 | - |" in guides
    assert main(options) == 0
    assert files_of(docs) == written, "written again, nothing changes"
    assert "nothing of tf32 nchw, seeds: nothing in" in capsys.readouterr().err


def test_every_figure_is_drawn_into_a_copy_of_the_pages_which_shows_them(timings, docs) -> None:
    options = ["--device", GPU.id, "--timings", str(timings)]
    assert main([*options, "--docs", str(docs), "--trained", str(timings)]) == 0
    assert main([*options, "--figures", str(docs)]) == 0
    drawn = files_of(docs)
    ours, guides = (drawn.pop(name).decode() for name in ("kernels.md", "guidelines.md"))
    assert shown(ours) == {f"figures/{name}-float32-nchw.svg" for name in kernels.FIGURES}
    names = ("shares", "algorithms-float32-nchw", "methods-float32-nchw")
    assert shown(guides) == {f"figures/guidelines/{name}.svg" for name in names}
    assert shown(ours) | shown(guides) == set(drawn)
    assert all(b"cuda.implicit_gemm" in drawn[name] and b"cuda.winograd" not in drawn[name] for name in shown(ours))
    assert figures.UNMEASURED in guides, "of cuConv nothing was measured"
    assert figures.UNDRAWN not in ours + guides
    assert main([*options, "--figures", str(docs)]) == 0
    again = files_of(docs)
    assert (again.pop("kernels.md").decode(), again.pop("guidelines.md").decode()) == (ours, guides)
    assert again == drawn, "drawn again, nothing changes"


def test_the_best_of_each_side_and_who_wins(timings) -> None:
    costs = book.load(timings / GPU.id, GPU.id, COLUMN)
    is_one_image = np.array([problem.n == 1 for problem in costs.problems])
    _, ours_ms, _ = book.best_of(costs, OURS)
    _, cudnn_ms, _ = book.best_of(costs, CUDNN)
    np.testing.assert_allclose(ours_ms, np.where(is_one_image, 1.0, 4.0))
    np.testing.assert_allclose(cudnn_ms, 2.0)
    assert (book.is_win(costs) == is_one_image).all()
    assert np.isinf(book.best_of(costs, ["cuda.fft"])[1]).all()


def test_without_measurements_nothing_is_written(tmp_path, capsys) -> None:
    assert main(["--device", "nobody", "--timings", str(tmp_path), "--docs", str(tmp_path)]) == 1
    assert "nothing of float32 nchw" in capsys.readouterr().err


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        pages.rewritten(page_of("rules", "rules"), {"rules": "new"})
    with pytest.raises(ValueError, match="one line"):
        pages.rewritten("# A page\n", {"rules": "new"})


def test_ours_have_colours_of_their_own() -> None:
    colours = [colour_of(variant)[0] for variant in OURS]
    assert len(set(colours)) == len(OURS)
    assert not set(colours) & {colour_of(variant)[0] for variant in CUDNN}


def test_a_line_goes_over_the_layers_in_order_with_a_gap_between_batches(timings) -> None:
    costs = book.load(timings / GPU.id, GPU.id, COLUMN)
    figure = algorithms.algorithms(costs, COLUMN)
    assert figure is not None
    panels = figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == ["1x1, 45 layers", "3x3, 32 layers", "5x5, 9 layers"]
    (line,) = [line for line in panels[2].lines if len(line.get_xdata()) > 2]
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    np.testing.assert_array_equal(np.isnan(y), [place % 10 == 9 for place in range(20)])
    np.testing.assert_array_equal(y[~np.isnan(y)], 1.0)
    drawn = x[~np.isnan(y)]
    assert (np.diff(drawn) > 0).all()
    assert ((drawn[:9] > 0) & (drawn[:9] < 1) & (drawn[9:] > 1) & (drawn[9:] < 2)).all()
    assert panels[0].get_ylim()[1] == MOST_NORMALISED


def test_shares_of_wins_are_of_the_configurations_of_a_filter(timings) -> None:
    costs = book.load(timings / GPU.id, GPU.id, COLUMN)
    everything = shares.POOLS["of everything"]
    assert shares.wins(costs, 3, everything) == {("cuDNN", "implicit GEMM"): 0.5, ("ours", "implicit GEMM"): 0.5}
    assert shares.wins(costs, 3, book.LEGACY) == {("cuDNN", "implicit GEMM"): 1.0}
    assert shares.wins(costs, 7, everything) == {}


@pytest.mark.slow
def test_the_pages_say_what_the_shipped_measurements_say(tmp_path: Path) -> None:
    for page in ("kernels.md", "guidelines.md"):
        shutil.copy(DOCS / page, tmp_path)
    kept = files_of(tmp_path)
    assert main(["--docs", str(tmp_path), "--evaluation", str(tmp_path / "none")]) == 0
    stale = [name for name, page in files_of(tmp_path).items() if page != kept[name]]
    assert stale == [], "run python -m benchmarks.plots"


def test_the_pages_name_every_variant_and_have_a_place_for_every_figure() -> None:
    ours, guides = ((DOCS / name).read_text() for name in ("kernels.md", "guidelines.md"))
    assert [variant.id for variant in VARIANTS if f"`{variant.id}`" not in ours] == []
    assert all(figures.place_of(" ".join(column)) in ours for column in COLUMNS)
    assert all(figures.place_of(group) in guides for group in guidelines.GROUPS)
    assert not shown(ours) | shown(guides)
    assert [guideline.quote for guideline in GUIDELINES if guideline.quote not in guides] == []
