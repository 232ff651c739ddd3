"""The figures of the page are drawn from measurements, and the page names every kernel of ours."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="only the figures need matplotlib")

from benchmarks import plots
from benchmarks.contest.choice import CUDNN, OURS
from data import parquet
from data.measurement import Measurement, Outcome
from data.networks import problems
from data.problem import DType
from kernels.cuda.variants import VARIANTS
from tests.benchmarks.made_up import GPU

COLUMN = ("float32", "nchw")
PAGE = "# A page\n\n" + "\n".join(plots.MARKS) + "\n\nThe end.\n"


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
    parquet.write(parquet.measurements_to_table(measured()), tmp_path / GPU.id / "all.parquet")
    return tmp_path


def test_every_figure_is_drawn_and_the_page_shows_it(timings, capsys) -> None:
    page = timings / "docs" / "kernels.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    options = ["--device", GPU.id, "--timings", str(timings), "--page", str(page)]
    assert plots.main(options) == 0
    drawn = {path.name: path.read_bytes() for path in (page.parent / "figures").iterdir()}
    assert set(drawn) == {f"{name}-float32-nchw.svg" for name in plots.FIGURES}
    assert all(b"cuda.implicit_gemm" in svg and b"cuda.winograd" not in svg for svg in drawn.values())
    written = page.read_text()
    assert set(re.findall(r"\(figures/(.*?)\)", written)) == set(drawn)
    assert written.startswith("# A page")
    assert written.endswith("The end.\n")
    assert "| float32 nchw | 172 | 50 % | 1.41 | 2.00 | `cuda.implicit_gemm` 86 |" in written
    assert "| 5x5 | 2.00 (100 %) | 0.50 (0 %) |" in written
    assert plots.main(options) == 0
    assert page.read_text() == written, "drawn again, nothing changes"
    assert {path.name: path.read_bytes() for path in (page.parent / "figures").iterdir()} == drawn
    assert "no figure of tf32 nchw: nothing in" in capsys.readouterr().err


def test_the_best_of_each_side_and_who_wins(timings) -> None:
    costs = plots.load(timings / GPU.id, GPU.id, COLUMN)
    is_one_image = np.array([problem.n == 1 for problem in costs.problems])
    _, ours_ms, _ = plots.best_of(costs, OURS)
    _, cudnn_ms, _ = plots.best_of(costs, CUDNN)
    np.testing.assert_allclose(ours_ms, np.where(is_one_image, 1.0, 4.0))
    np.testing.assert_allclose(cudnn_ms, 2.0)
    assert (plots.is_win(costs) == is_one_image).all()
    assert np.isinf(plots.best_of(costs, ["cuda.fft"])[1]).all()


def test_without_measurements_there_is_no_figure(tmp_path, capsys) -> None:
    assert plots.main(["--device", "nobody", "--timings", str(tmp_path)]) == 1
    assert "no figure of float32 nchw" in capsys.readouterr().err


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="one line"):
        plots.rewritten("# A page\n", {}, GPU.id)


def test_ours_have_colours_of_their_own() -> None:
    colours = [plots.colour_of(variant)[0] for variant in OURS]
    assert len(set(colours)) == len(OURS)
    assert not set(colours) & {plots.colour_of(variant)[0] for variant in CUDNN}


def test_the_page_names_every_variant_and_shows_every_figure_there_is() -> None:
    text = plots.PAGE.read_text()
    assert [variant.id for variant in VARIANTS if f"`{variant.id}`" not in text] == []
    shown = set(re.findall(r"\(figures/(.*?)\)", text))
    assert shown == {path.name for path in (plots.PAGE.parent / "figures").iterdir()}
