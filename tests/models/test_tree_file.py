"""A tree's file: what was written is read, whatever was altered is refused, and walks go where they should."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.arrays import DOMAIN, LARGE_DOMAIN, RANKING_ARRAYS, domain_sizes, packed
from conv_advisor.models.tree.features import features
from conv_advisor.models.tree.file import (
    CARD_FILE,
    TREE_FILE,
    TreeModel,
    decode,
    encode,
    make,
    path,
    read,
    walk,
    with_scores,
    write,
)
from tests.models import hand_made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "tree", hand_made.model())
    return tmp_path / "tree"


def rewrite(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Put other arrays in the file, and their hash on the card: only the structure can give it away."""
    content = save(arrays)
    (folder / TREE_FILE).write_bytes(content)
    change_card(folder, sha256=hashlib.sha256(content).hexdigest(), model_id=hashlib.sha256(content).hexdigest()[:12])


def change_card(folder: Path, **changes: Any) -> None:
    card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8")) | changes
    (folder / CARD_FILE).write_text(json.dumps(card), encoding="utf-8")


def test_what_was_written_is_read(folder: Path) -> None:
    model, again = hand_made.model(), read(folder)
    assert again.card == model.card
    assert again.id == model.id
    assert again.device == hand_made.DEVICE
    assert again.variants == hand_made.VARIANTS
    assert all(np.array_equal(again.arrays[name], values) for name, values in model.arrays.items())


def test_writing_leaves_two_files_and_the_same_bytes(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    write(folder, hand_made.model())
    assert sorted(before) == [CARD_FILE, TREE_FILE]
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_walk_and_path_go_to_the_leaf() -> None:
    model = hand_made.model()
    problems = (hand_made.SMALL, hand_made.MIDDLE, hand_made.LARGE)
    assert [walk(model, features(problem)) for problem in problems] == [1, 3, 4]
    assert [str(step) for step in path(model, features(hand_made.LARGE))] == [
        "log2_h > 4 (it is 4.807)",
        "log2_k > 7 (it is 9)",
    ]
    assert [step.is_below for step in path(model, features(hand_made.MIDDLE))] == [False, True]


def test_a_walk_keeps_the_tests_that_it_comes_by_and_no_others() -> None:
    model = hand_made.model()
    walk(model, features(hand_made.SMALL))
    assert [test is not None for test in model.tests] == [True, False, False, False, False]
    walk(model, features(hand_made.LARGE))
    assert [test is not None for test in model.tests] == [True, False, True, False, False]
    assert walk(model, features(hand_made.MIDDLE)) == 3


def test_a_tree_of_one_leaf_is_walked_at_once() -> None:
    alone = {name: np.array([-1]) for name in ("feature", "left", "right")}
    model = hand_made.walkable(alone | {"threshold": np.zeros(1), "place": np.array([0])})
    assert walk(model, features(hand_made.LARGE)) == 0


def test_a_value_on_the_threshold_goes_left() -> None:
    model = hand_made.model()
    on_it = [4.0 if name == "log2_h" else 9.0 for name in model.card["features"]]
    assert walk(model, on_it) == 1


@given(st.floats(-(2.0**99), 2.0**99, width=32) | st.floats(allow_nan=False, allow_infinity=False), st.floats(-1, 1))
@example(0.0, 0.0)
@example(1 + 2**-23, 2**-24)
@example(4.0, -(2.0**-25))
def test_a_value_need_not_be_rounded_to_go_the_way_of_the_rounded_one(threshold: float, off: float) -> None:
    arrays = hand_made.arrays() | {"threshold": np.array([threshold, 0, 7.0, 0, 0])}
    bound = TreeModel({}, packed(arrays)).bounds[0]
    with np.errstate(over="ignore"):
        nearest = np.float32(threshold)
        below, above = (float(np.nextafter(nearest, np.float32(side))) for side in (-np.inf, np.inf))
        beside = [float(nearest), below, above, threshold, (below + float(nearest)) / 2, (float(nearest) + above) / 2]
        beside += [math.nextafter(value, side) for value in beside for side in (-math.inf, math.inf)]
        values = [value for value in [*beside, threshold + off * (above - threshold)] if abs(value) < 3e38]
        assert [value <= bound for value in values] == [float(np.float32(value)) <= threshold for value in values]


@pytest.mark.parametrize("name", hand_made.model().arrays)
def test_any_altered_array_is_refused(folder: Path, name: str) -> None:
    arrays = load_file(folder / TREE_FILE)
    flat = arrays[name].view(np.uint8).reshape(-1)
    flat[len(flat) // 2] ^= 1
    (folder / TREE_FILE).write_bytes(save(arrays))
    with pytest.raises(ModelRejected, match="sha256"):
        read(folder)


def test_any_altered_byte_is_refused(folder: Path) -> None:
    content = (folder / TREE_FILE).read_bytes()
    for place in range(0, len(content), 7):
        altered = bytearray(content)
        altered[place] ^= 0x10
        (folder / TREE_FILE).write_bytes(altered)
        with pytest.raises(ModelRejected):
            read(folder)


Change = Callable[[dict[str, np.ndarray]], Any]


def put(name: str, place: Any, value: float) -> Change:
    return lambda arrays: arrays[name].__setitem__(place, value)


STRUCTURE: dict[str, tuple[Change, str]] = {
    "child out of range": (put("next", 2, 99), "a node is nobody's child"),
    "child before its parent": (put("next", 2, 1), "next has a child that does not come after"),
    "cycle": (put("next", 2, 2), "next has a child that does not come after"),
    "one child of two": (put("next", 0, 3), "a node is nobody's child"),
    "a right child as the left": (put("next", 0, 2), "a node is nobody's child"),
    "negative child": (put("next", 0, -7), "next has a child that does not come after"),
    "ranking out of range": (put("next", 1, 3), "next has a ranking out of range"),
    "ranking below 0": (put("next", 1, -1), "next has a ranking out of range"),
    "one leaf more": (put("feature", 2, -1), "a node is nobody's child"),
    "feature out of range": (put("feature", 0, 100), "feature has a value out of range"),
    "feature below a leaf's": (put("feature", 0, -2), "feature has a value out of range"),
    "threshold not a number": (put("value", 0, np.nan), "value has a value that is not finite"),
    "best time beyond any": (put("value", 1, 1e3), "value has a log of a ratio beyond ±100"),
    "infinite value": (put("scale", (0, 0), np.inf), "scale has a value that is not finite"),
    "value not a number": (put("scale", (1, 255), np.nan), "scale has a value that is not finite"),
    "logarithm of no ratio": (put("spread", 0, 1e3), "spread has a log of a ratio beyond ±100"),
    "logarithm below any": (put("scale", (0, 0), -1e3), "log_slowdown has a log of a ratio beyond ±100"),
    "support above 1": (put("scale", (1, 0), 1.5), "support has a value outside 0 to 1"),
    "negative workspace": (put("scale", (2, 0), -1), "workspace has a value below 0"),
    "negative spread": (put("spread", 0, -1), "spread has a value below 0"),
    "no roofline": (put("roofline", (0, 0), 0), "roofline has a value that is not above 0"),
    "array missing": (lambda arrays: arrays.pop("spread"), "arrays are"),
    "array too many": (lambda arrays: arrays.update(more=np.zeros(1, np.float32)), "arrays are"),
    "wrong type": (lambda arrays: arrays.update(next=arrays["next"].astype(np.int64)), "next is int64"),
    "wrong length": (lambda arrays: arrays.update(next=arrays["next"][:-1]), "next has shape"),
    "wrong columns": (lambda arrays: arrays.update(support=arrays["support"][:, :-1]), "support has shape"),
    "too few rankings": (lambda arrays: arrays.update(support=arrays["support"][:-1]), "support has shape"),
    "too few bytes said": (lambda arrays: arrays.update(scale=arrays["scale"][:, :-1]), "scale has shape"),
    "a column of numbers": (lambda arrays: arrays.update(spread=arrays["spread"][:, None]), "spread has shape"),
    "no nodes": (lambda arrays: arrays.update({name: values[:0] for name, values in arrays.items()}), "no nodes"),
    "a domain of one dimension": (lambda arrays: arrays.update(domain=np.ones(3, np.int16)), "domain has 1 dim"),
    "columns too many": (
        lambda arrays: arrays.update(domain=np.ones((1, 3), np.int16), domain_large=np.ones((1, 4), np.int32)),
        "different columns",
    ),
    "a size of 0": (lambda arrays: arrays.update(domain=np.zeros((1, 3), np.int16)), "domain has a value"),
}


def test_leaves_may_share_a_ranking() -> None:
    own = hand_made.arrays()
    shared = {name: own[name][:2] for name in RANKING_ARRAYS}
    apart, joined = hand_made.model(), hand_made.model(**shared, ranking=np.array([0, 1, 0], np.int32))
    third = ConvProblem(1, 8, 32, 32, 256, 1, 1)
    leaf = walk(joined, features(third))
    assert [model.arrays["next"][leaf] for model in (apart, joined, decode(*encode(joined)))] == [2, 0, 0]
    assert Advisor(joined, variants=hand_made.CATALOGUE).choose(third) == "cuda.big"
    assert Advisor(apart, variants=hand_made.CATALOGUE).choose(third) != "cuda.big"


def test_few_values_of_a_ranking_are_kept_as_they_are_and_many_nearly() -> None:
    own = hand_made.arrays()
    model = hand_made.model()
    for name in RANKING_ARRAYS:
        assert np.array_equal(model.ranked(name), own[name])
        assert model.arrays[name].dtype == np.uint8
    rng = np.random.default_rng(0)
    largest = {"log_slowdown": 3.0, "support": 1.0, "workspace": 6e4}
    many = {name: (most * rng.random((3, 500)) ** 4).astype(np.float32) for name, most in largest.items()}
    found = packed(own | many)
    model = TreeModel({}, found)
    off = {name: np.abs(model.ranked(name) - many[name]) for name in many}
    assert all(values.max() > 0 for values in off.values())
    assert (off["log_slowdown"] <= 0.0069 * np.sqrt(many["log_slowdown"]) + 1e-4).all(), "finest near the best"
    assert off["support"].max() <= 0.5 / 255 + 1e-6
    assert (off["workspace"] <= 0.04 * many["workspace"] + 0.001).all()
    assert model.ranked("support", 1).shape == (500,)


def test_a_right_child_that_was_far_from_the_left_comes_behind_it() -> None:
    own = hand_made.arrays()
    far = {"left": np.array([1, -1, 3, -1, -1]), "right": np.array([2, -1, 4, -1, -1])}
    swapped = [0, 1, 4, 2, 3]  # the right child of the root last
    now = np.argsort(swapped)
    moved = {name: own[name][np.argsort(now)] for name in ("feature", "threshold", "place")}
    moved |= {name: np.where(far[name] < 0, -1, now[far[name]])[np.argsort(now)].astype(np.int32) for name in far}
    assert moved["right"][0] == 3
    assert hand_made.model(**moved).id == hand_made.model().id


def test_all_trees_that_ship_take_at_most_5_mb() -> None:
    files = [file for file in SHIPPED.glob("*/*") if file.is_file()]
    assert {file.name for file in files} == {TREE_FILE, CARD_FILE}
    assert sum(file.stat().st_size for file in files) <= 5_000_000


@pytest.mark.parametrize(("largest", "n_large"), [(2**15 - 1, 0), (2**15, 1)])
def test_layers_that_need_four_bytes_a_size_are_kept_apart(largest: int, n_large: int) -> None:
    sizes = np.array([[2, 8, 32], [1, 8, largest]], np.int32)
    model = hand_made.model(**{DOMAIN: sizes})
    kept = domain_sizes(model.arrays)
    assert model.arrays[DOMAIN].dtype == np.int16
    assert len(model.arrays.get(LARGE_DOMAIN, ())) == n_large
    assert kept is not None
    assert kept.dtype == np.int32
    assert np.array_equal(kept, sizes)


def test_a_domain_of_large_layers_alone_is_one() -> None:
    sizes = np.full((2, 3), 2**17, np.int32)
    assert np.array_equal(domain_sizes(hand_made.model(**{DOMAIN: sizes}).arrays), sizes)


def test_a_domain_of_four_bytes_a_size_is_read_as_it_was_written(folder: Path) -> None:
    sizes = np.array([[2, 8, 32], [1, 8, 2**15]], np.int32)
    rewrite(folder, hand_made.model().arrays | {DOMAIN: sizes})
    assert np.array_equal(domain_sizes(read(folder).arrays), sizes)


def test_a_tree_of_the_first_protocol_says_the_same_and_is_written_as_it_was(folder: Path, tmp_path: Path) -> None:
    write(folder, hand_made.of_first_protocol())
    model, now = read(folder), hand_made.model()
    for problem in (hand_made.SMALL, hand_made.MIDDLE, hand_made.LARGE):
        old, new = (Advisor(each, variants=hand_made.CATALOGUE).advise(problem) for each in (model, now))
        assert [choice.variant for choice in old.ranking] == [choice.variant for choice in new.ranking]
        assert old.best.time_ms == pytest.approx(new.best.time_ms, rel=1e-3)
        assert old.path == new.path
    write(tmp_path / "again", with_scores(model, {"a": 1}))
    assert (tmp_path / "again" / TREE_FILE).read_bytes() == (folder / TREE_FILE).read_bytes()
    assert read(tmp_path / "again").id == model.id


FIRST: dict[str, tuple[Change, str]] = {
    "child out of range": (put("right", 0, 99), "a node is nobody's child"),
    "child before its parent": (put("left", 2, 0), "a node is nobody's child"),
    "feature out of range": (put("feature", 0, 1000), "feature has a value out of range"),
    "feature below a leaf's": (put("feature", 0, -300), "feature has a value out of range"),
    "threshold not a number": (put("threshold", 0, np.nan), "value has a value that is not finite"),
    "infinite value": (put("log_slowdown", (0, 0), np.inf), "log_slowdown has a value that is not finite"),
    "support above 1": (put("support", (0, 0), 1.5), "support has a value outside 0 to 1"),
    "negative workspace": (put("workspace", (0, 0), -1), "workspace has a value below 0"),
    "row out of range": (put("place", 1, 5), "arrays are no tree: IndexError"),
    "array missing": (lambda arrays: arrays.pop("spread"), "arrays are no tree: KeyError"),
    "wrong type": (lambda arrays: arrays.update(left=arrays["left"].astype(np.float32)), "arrays are no tree"),
    "wrong columns": (lambda arrays: arrays.update(support=arrays["support"][:, :-1]), "support has shape"),
    "ranking out of range": (
        lambda arrays: arrays.update(ranking=np.array([0, 3, 1], np.int32)),
        "ranking leaves rows",
    ),
    "no nodes": (lambda arrays: arrays.update({name: values[:0] for name, values in arrays.items()}), "nobody's child"),
}


@pytest.mark.parametrize(("change", "reason"), FIRST.values(), ids=FIRST)
def test_a_bad_tree_of_the_first_protocol_is_refused(folder: Path, change: Change, reason: str) -> None:
    write(folder, hand_made.of_first_protocol())
    arrays = {name: values.copy() for name, values in load_file(folder / TREE_FILE).items()}
    change(arrays)
    rewrite(folder, arrays)
    with pytest.raises(ModelRejected, match=reason):
        read(folder)


@pytest.mark.parametrize(("change", "reason"), STRUCTURE.values(), ids=STRUCTURE)
def test_bad_structure_is_refused_even_with_its_own_hash(folder: Path, change: Change, reason: str) -> None:
    arrays = {name: values.copy() for name, values in load_file(folder / TREE_FILE).items()}
    change(arrays)
    rewrite(folder, arrays)
    with pytest.raises(ModelRejected, match=reason):
        read(folder)


CARDS: dict[str, tuple[dict[str, Any], str]] = {
    "protocol": ({"protocol": 3}, "protocol is 3; allowed: 1 or 2"),
    "features": ({"features": ["log2_h"]}, "features are not those"),
    "variants twice": ({"variants": ["a", "a", "b", "c", "d"]}, "variants"),
    "variants no strings": ({"variants": [1, 2, 3, 4, 5]}, "variants"),
    "another protocol than its arrays": ({"protocol": 1}, "arrays are no tree"),
    "no protocol": ({"protocol": True}, "protocol is True; allowed: 1 or 2"),
    "too few variants": ({"variants": ["a"]}, "log_slowdown has shape"),
    "model id": ({"model_id": "0123456789ab"}, "model_id"),
    "no device": ({"device": None}, "device"),
    "device of no kind": ({"device": {"id": "a", "name": "A", "kind": "abacus"}}, "kind 'abacus'"),
    "device with more": ({"device": {"id": "a", "name": "A", "kind": "cpu", "more": 1}}, "more"),
    "device of a text of memory": ({"device": {"id": "a", "name": "A", "kind": "cpu", "memory_bytes": "8"}}, "`int`"),
    "device of no capability": (
        {"device": {"id": "a", "name": "A", "kind": "cuda", "capability": "new"}},
        "capability 'new'",
    ),
    "hash": ({"sha256": "0" * 64, "model_id": "0" * 12}, "sha256"),
    "half of a pair": ({"created_at": "\ud800"}, "surrogates not allowed"),
    "hash no string": ({"sha256": 5}, "sha256"),
}


@pytest.mark.parametrize(("changes", "reason"), CARDS.values(), ids=CARDS)
def test_a_card_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any], reason: str) -> None:
    change_card(folder, **changes)
    with pytest.raises(ModelRejected, match=reason):
        read(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '"card"', "[" * 100_000])
def test_a_card_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / CARD_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(ModelRejected, match=str(folder)):
        read(folder)


@pytest.mark.parametrize("length", [0, 4, 8, 200])
def test_a_truncated_file_is_refused(folder: Path, length: int) -> None:
    content = (folder / TREE_FILE).read_bytes()[:length]
    (folder / TREE_FILE).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    change_card(folder, sha256=digest, model_id=digest[:12])
    with pytest.raises(ModelRejected, match=str(folder)):
        read(folder)


@pytest.mark.parametrize("name", [CARD_FILE, TREE_FILE])
def test_a_missing_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelRejected, match=name):
        read(folder)


def test_make_audits_too() -> None:
    broken = hand_made.arrays() | {"left": np.zeros(5, dtype=np.int32)}
    with pytest.raises(ModelRejected, match="a node is nobody's child"):
        make(broken, variants=hand_made.VARIANTS, device=hand_made.DEVICE, card={})


def test_scores_do_not_change_the_tree() -> None:
    model = with_scores(with_scores(hand_made.model(), {"a": 1}), {"b": 2})
    assert model.card["scores"] == {"a": 1, "b": 2}
    assert model.id == hand_made.model().id
