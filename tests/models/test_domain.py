"""The domain of a tree: what is inside, what is outside and why, and trees that have none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.table import sizes_of
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.arrays import DOMAIN
from conv_advisor.models.tree.domain import COLUMNS, LEAST_LIMIT, WEIGHTS, Domain, coordinates, domain_of, learn_domain
from conv_advisor.models.tree.file import CARD_FILE, TREE_FILE, TreeModel, read, with_card, write
from tests.models import hand_made

LAYERS = ("14-1-3-256-128", "28-1-3-128-64", "56-1-1-64-256", "7-1-1-512-832", "28-1-5-32-16")
PROBLEMS = [ConvProblem.parse(layer, n=n) for layer in LAYERS for n in (1, 8, 64)]


def domain(problems: list[ConvProblem] | None = None) -> Domain:
    """The domain of these, with the least limit: so few layers are further from each other than from any other."""
    sizes, card = learn_domain(problems or PROBLEMS)
    return Domain(sizes, dict.fromkeys(card["limits"], LEAST_LIMIT))


def model_of(problems: list[ConvProblem]) -> TreeModel:
    sizes, card = learn_domain(problems)
    return with_card(hand_made.model(**{DOMAIN: sizes}), domain=card)


def test_what_was_trained_on_is_inside_at_no_distance() -> None:
    for problem in PROBLEMS:
        place = domain().locate(problem)
        assert place.is_inside
        assert place.distance == 0
        assert place.reason is None


def test_a_distance_counts_octaves_by_their_weight() -> None:
    near = ConvProblem.parse("14-1-3-128-128")  # half the filters
    assert domain().locate(near).distance == pytest.approx(1.0)
    assert domain().locate(ConvProblem.parse("14-2-3-256-128")).distance == pytest.approx(0.5)
    wide = ConvProblem(n=1, c=128, h=14, w=28, k=256, r=3, s=3, pad_h=1, pad_w=1)
    assert domain().locate(wide).distance == pytest.approx(math.sqrt(0.5))
    assert dict(zip(COLUMNS, WEIGHTS, strict=True))["groups"] == 3.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"r": 9, "s": 9, "pad_h": 4, "pad_w": 4}, "filter height is 9; trained on 1 to 5"),
        ({"groups": 32}, "groups is 32; trained on 1 alone"),
        ({"dilation_h": 2, "dilation_w": 2, "pad_h": 2, "pad_w": 2}, "dilation down is 2; trained on 1 alone"),
        ({"stride_w": 4}, "stride across is 4; trained on 1 alone"),
        ({"k": 8192}, "filters is 8192; trained on 32 to 512"),
        ({"n": 256, "k": 8192}, "filters is 8192; trained on 32 to 512"),
    ],
)
def test_outside_the_size_and_what_was_trained_on_are_named(changes: dict[str, int], said: str) -> None:
    place = domain().locate(replace(ConvProblem.parse("14-1-3-256-128"), **changes))
    assert not place.is_inside
    assert place.distance > place.limit
    assert place.reason == said


@pytest.mark.parametrize(
    ("layer", "changes", "said"),
    [
        ("14-1-3-256-128", {"pad_h": 200}, "padding down is 200; allowed: at most 2, the dilated filter less one"),
        ("28-1-5-32-16", {"pad_w": 5}, "padding across is 5; allowed: at most 4, the dilated filter less one"),
        ("7-1-1-512-832", {"pad_w": 1}, "padding across is 1; allowed: at most 0, the dilated filter less one"),
        ("14-1-3-256-128", {"pad_h": 2, "pad_w": 2}, None),
        ("14-1-3-256-128", {"pad_h": 0, "pad_w": 0}, None),
    ],
)
def test_padding_wider_than_the_filter_is_outside(layer: str, changes: dict[str, int], said: str | None) -> None:
    place = domain().locate(replace(ConvProblem.parse(layer), **changes))
    assert place.is_inside == (said is None)
    assert said is None or place.reason == f"{said}; trained on half of that"
    assert place.distance == 0


def test_a_dilated_filter_may_be_padded_as_wide_as_it_is() -> None:
    dilated = replace(PROBLEMS[0], dilation_h=2, dilation_w=2, pad_h=4, pad_w=4, pad_h_end=4, pad_w_end=4)
    known = domain([dilated, *PROBLEMS])
    assert known.locate(dilated).is_inside
    assert not known.locate(replace(dilated, pad_h=5)).is_inside
    assert not known.locate(replace(dilated, pad_h_end=5)).is_inside
    assert not known.locate(replace(dilated, pad_w_end=5)).is_inside


def test_a_gap_between_layers_is_outside_too() -> None:
    between = ConvProblem.parse("56-1-1-512-16")
    place = domain().locate(between)
    assert not place.is_inside
    assert place.reason.startswith("depth is 16, and the nearest layer trained on, 56x56-1-1x1-64-256, has 256: ")
    assert f"{place.distance:.1f} octaves away, the limit is {place.limit:.1f}" in place.reason


def test_each_precision_and_layout_has_a_domain_of_its_own() -> None:
    narrow = [replace(problem, dtype=DType.FLOAT16) for problem in PROBLEMS[:3]]
    found = domain(PROBLEMS + narrow)
    assert found.locate(PROBLEMS[-1]).is_inside
    assert not found.locate(replace(PROBLEMS[-1], dtype=DType.FLOAT16)).is_inside
    place = found.locate(replace(PROBLEMS[0], layout=Layout.NHWC))
    assert place.reason == "precision and layout are float32 nhwc; trained on float32 nchw, float16 nchw"
    assert place.distance == math.inf


def test_the_limit_is_what_nearly_every_layer_keeps_from_the_next_but_not_less_than_is_known_to_be_safe() -> None:
    sparse = [ConvProblem.parse(f"{size}-1-3-{filters}-64") for size in (7, 112) for filters in (8, 128, 2048)]
    _, card = learn_domain(sparse)
    assert card["limits"] == {"float32/nchw": pytest.approx(4.0)}, "the next layer has 16 times the filters"
    dense = [ConvProblem.parse(f"14-1-3-{filters}-64") for filters in range(64, 128, 4)]
    assert learn_domain(dense)[1]["limits"] == {"float32/nchw": LEAST_LIMIT}
    assert learn_domain(PROBLEMS[:3])[1]["limits"] == {"float32/nchw": LEAST_LIMIT}, "batches of one layer"


def test_what_is_learned_does_not_depend_on_the_order() -> None:
    sizes, card = learn_domain(PROBLEMS)
    again, same = learn_domain(PROBLEMS[::-1])
    assert np.array_equal(sizes, again)
    assert card == same
    assert len(sizes) == len(PROBLEMS)
    assert np.allclose(coordinates(sizes_of(PROBLEMS[:1]))[0][:2], [0.0, math.log2(128)])


def test_a_trained_tree_keeps_its_domain(trained: TreeModel, tmp_path: Path) -> None:
    write(tmp_path, trained)
    found = domain_of(read(tmp_path))
    assert found is not None
    assert found.locate(ConvProblem.parse("14-1-3-208-96")).distance == 0
    assert not found.locate(ConvProblem.parse("14-1-3-208-96", dtype="tf32")).is_inside


def test_a_tree_without_a_domain_loads_and_has_none(tmp_path: Path) -> None:
    write(tmp_path, hand_made.model())
    assert domain_of(read(tmp_path)) is None


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (np.ones((2, 13), np.int64), "domain is int64"),
        (np.ones(13, np.int32), "domain has 1 dimensions"),
        (np.zeros((1, 13), np.int32), "not above 0"),
        (np.ones((0, 13), np.int32), "no layer"),
    ],
)
def test_an_array_that_is_no_domain_is_refused(sizes: np.ndarray, reason: str) -> None:
    with pytest.raises(ModelRejected, match=reason):
        hand_made.model(**{DOMAIN: sizes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"columns": ["n"]}, "domain has columns"),
        ({"weights": [1.0]}, "domain has columns"),
        ({"limits": {}}, "no limit for float32/nchw"),
        ({"limits": {"float32/nchw": "far"}}, "could not convert"),
        ({"limits": None}, "NoneType"),
    ],
)
def test_a_card_that_contradicts_the_array_is_refused(changes: dict, reason: str) -> None:
    model = model_of(PROBLEMS)
    with pytest.raises(ModelRejected, match=reason):
        domain_of(with_card(model, domain=model.card["domain"] | changes))
    with pytest.raises(ModelRejected, match="domain: KeyError"):
        domain_of(hand_made.model(**{DOMAIN: model.arrays[DOMAIN]}))


def test_one_altered_byte_of_the_domain_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, model_of(PROBLEMS))
    content = bytearray((tmp_path / TREE_FILE).read_bytes())
    place = content.rindex(np.int16(128).tobytes())
    content[place] ^= 1
    (tmp_path / TREE_FILE).write_bytes(content)
    with pytest.raises(ModelRejected, match="sha256"):
        read(tmp_path)
    assert json.loads((tmp_path / CARD_FILE).read_text())["domain"]["columns"] == list(COLUMNS)


def test_the_layers_of_networks_are_inside_the_shipped_domain_and_other_kinds_are_not() -> None:
    found = domain_of(read(SHIPPED / "nvidia-h200"))
    assert found is not None
    for name in networks.GROUPS["seeds"]:
        for problem in networks.problems(name, batches=(1, 32, 256)):
            assert found.locate(problem).is_inside, problem.short
    for layer in ("14-1-13-1-1", "14-1-3-256-16384"):
        assert not found.locate(ConvProblem.parse(layer)).is_inside, layer
