"""The page of the tree is what its tree and its measurements say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plots import tree as page
from benchmarks.plots.__main__ import DOCS
from conv_advisor.data.records import Records
from conv_advisor.models.costs import from_table
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from conv_advisor.models.tree.first_levels import first_levels


@pytest.mark.slow
def test_the_page_says_what_is_recomputed(tmp_path: Path) -> None:
    told = (DOCS / page.PAGE).read_text(encoding="utf-8")
    (tmp_path / page.PAGE).write_text(told, encoding="utf-8")
    costs = from_table(Records().table("nvidia-h200"), "nvidia-h200")
    page.write(read(SHIPPED / "nvidia-h200"), costs, tmp_path)
    assert (tmp_path / page.PAGE).read_text(encoding="utf-8") == told


def test_the_first_decisions_on_the_page_are_those_of_the_tree_that_ships() -> None:
    told = (DOCS / page.PAGE).read_text(encoding="utf-8")
    assert page.decisions(first_levels(read(SHIPPED / "nvidia-h200"))) in told
