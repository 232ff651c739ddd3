"""Counts and their nouns agree."""

from __future__ import annotations

import pytest

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import NoAdvice


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 problems were"), (1, "1 problem was"), (2, "2 problems were"), (1200, "1,200 problems were")],
)
def test_one_is_no_plural(count: int, said: str) -> None:
    assert counted(count, "problem was", "problems were") == said


def test_many_is_one_with_an_s_unless_said_otherwise() -> None:
    assert (counted(1, "layer"), counted(3, "layer")) == ("1 layer", "3 layers")


def test_variants_that_are_out_for_one_reason_are_named_together() -> None:
    error = NoAdvice("nothing is known", {"one": "not measured", "two": "not deterministic", "three": "not measured"})
    assert str(error) == "nothing is known (one, three: not measured; two: not deterministic)"
