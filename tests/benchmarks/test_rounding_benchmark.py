"""Sums that truncate: within a bound on one layer, and far beyond it over a network."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rounding
from benchmarks.rounding import errors, nearest, truncated


def test_truncation_is_towards_zero_and_exact_values_stay() -> None:
    values = np.array([1.0, 1 + 2.0**-24, 1 + 3 * 2.0**-24, -1 - 3 * 2.0**-24, 0.0, 2.0**-126])
    assert truncated(values).tolist() == [1.0, 1.0, 1 + 2.0**-23, -1 - 2.0**-23, 0.0, 2.0**-126]
    assert nearest(values).tolist()[2:4] == [1 + 2.0**-22, -1 - 2.0**-22]


def test_errors_of_one_sign_add_up_over_layers_and_no_average_takes_them_away() -> None:
    rounded, cut = (errors(add, layers=6, channels=16) for add in (nearest, truncated))
    ratios = [ours / own for ours, own in zip(cut, rounded, strict=True)]
    assert all(shallow < deep for shallow, deep in pairwise(ratios))
    assert rounded.averaged < rounded.network / 4
    assert cut.averaged > cut.network / 4


def test_the_page_of_the_backend_says_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rounding.main()
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    for line in capsys.readouterr().out.splitlines()[2:]:
        name, *_ = line.strip("| ").split(" | ")
        (said,) = (each for each in page.splitlines() if each.startswith(f"| {name} |"))
        for figure, printed in zip(said.split(" | ")[1:], line.split(" | ")[1:], strict=True):
            assert float(figure.strip(" |")) == pytest.approx(float(printed.strip(" |")), rel=0.2)
