"""The rules of a pool together: each variant's own answer."""

from __future__ import annotations

import pytest

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.sampling import sample_problems
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import (
    Algorithm,
    Backend,
    Rule,
    Variant,
    all_of,
    dtype_in,
    groups_1,
    no_workspace,
    parts_of,
)
from conv_advisor.models.ranking import rules as rules_module
from conv_advisor.models.ranking.rules import Rules
from tests.shapes import EDGE_SHAPES

DEVICES = [
    Device(id="hopper", name="H200", kind="cuda", capability="9.0", processors=132),
    Device(id="ampere", name="A100", kind="cuda", capability="8.0", processors=108),
    Device(id="old", name="V100", kind="cuda", capability="7.0", processors=80),
    Device(id="cpu", name="CPU", kind="cpu"),
]
POOL = tuple(VARIANTS.values())


def problems() -> list[ConvProblem]:
    sampled = sample_problems(150, seed=4, dtypes=tuple(DType), layouts=tuple(Layout))
    edges = [ConvProblem(**shape, dtype=dtype) for shape in EDGE_SHAPES.values() for dtype in DType]
    return [*sampled, *edges]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.id)
def test_every_variant_has_the_reason_of_its_own_rule(device: Device) -> None:
    rules, asked = Rules(POOL, device), problems()
    for problem in asked:
        expected = tuple(variant.why_not(problem, device) for variant in POOL)
        assert rules.reasons(problem)[: len(POOL)] == expected


def variant(name: str, rule: Rule) -> Variant:
    return Variant(name, Algorithm.DIRECT, Backend.CUDA, True, rule, no_workspace, "")


def test_a_part_that_several_share_is_asked_once() -> None:
    asked: list[ConvProblem] = []

    def shared(problem: ConvProblem, _device: Device) -> str | None:
        asked.append(problem)
        return None

    pool = [
        variant("a", all_of(shared, groups_1)),
        variant("b", all_of(all_of(groups_1, shared))),
        variant("c", shared),
    ]
    reasons = Rules(pool, DEVICES[0]).reasons(ConvProblem.parse("14-1-3-256-128", groups=2))
    assert reasons[:3] == ("groups is 2, not 1", "groups is 2, not 1", None)
    assert len(asked) == 1


def test_equal_rules_are_one_rule() -> None:
    assert dtype_in(DType.TF32) is dtype_in(DType.TF32)
    assert parts_of(all_of(groups_1, all_of(dtype_in(DType.TF32)))) == (groups_1, dtype_in(DType.TF32))


def test_patterns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "_MOST_PATTERNS", 3)
    rules = Rules(POOL, DEVICES[0])
    for problem in problems():
        expected = tuple(variant.why_not(problem, DEVICES[0]) for variant in POOL)
        assert rules.reasons(problem)[: len(POOL)] == expected
        assert len(rules._picks) <= 3
