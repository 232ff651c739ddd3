"""A trained tree as plain arrays and a card: written whole, audited when read, walked without scikit-learn."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from safetensors.numpy import save

from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.measurement import Device
from conv_advisor.models.features import FEATURES
from conv_advisor.models.in_place import arrays_in, read_whole

PROTOCOL: Final = 1
"""Number of the format; a reader refuses any other."""

TREE_FILE: Final = "tree.safetensors"
CARD_FILE: Final = "card.json"

MAX_FILE_BYTES: Final = 2**28
MAX_CARD_BYTES: Final = 2**24

LEAF: Final = -1
"""Feature, left and right of a leaf; place of an inner node."""

_NODE_ARRAYS: Final = {
    "feature": np.int32,
    "threshold": np.float64,
    "left": np.int32,
    "right": np.int32,
    "place": np.int32,
}
_LEAF_ARRAYS: Final = {"log_best": 1, "spread": 1, "roofline": 2}
"""Dimensions of each; all are float32."""
RANKING_ARRAYS: Final = ("log_slowdown", "support", "workspace")
"""A row a ranking, a column a variant; all are float16, in older trees float32."""
_LOGS: Final = ("log_best", "log_slowdown", "spread")
_MAX_LOG: Final = 100.0
"""Largest log of a ratio of times: e to the hundredth is beyond any, and a product of a few is still a number."""

DOMAIN: Final = "domain"
RANKING: Final = "ranking"
"""Arrays that a tree may lack: those trained before they were kept still load."""


Test = tuple[int, float, int, int]
"""What a node asks: a feature, the largest value that goes left, and where it goes on, left and right (`next`)."""


@dataclass(frozen=True, eq=False)
class TreeModel:
    """A tree of N nodes, L leaves, A rankings and V variants for one device.

    Parameters
    ----------
    card : dict
        What it was made of; `read` and `make` see to its fields.
    arrays : dict of str to array
        ``feature`` int32 (N,), ``threshold`` float64 (N,), ``left`` and ``right`` int32 (N,): go left where the
        feature, as float32, is at most the threshold. ``place`` int32 (N,): a leaf's row in the arrays of leaves.
        These, float32: ``log_best`` (L,): log of the best time to the roofline. ``roofline`` (L, 3): flops a ms, bytes
        a ms, and least ms that were reached. ``spread`` (L,): standard error of the log slowdown of variants near the
        best, on layers never trained on. ``ranking`` int32 (L,), where there is one: the row of a leaf's ranking, which
        leaves that differ in their time alone share; else A is L and each leaf has its own. Rankings, float16 or
        float32: ``log_slowdown`` (A, V): log of a variant's time to the best's. ``support`` (A, V): how likely it
        runs at all. ``workspace`` (A, V): scratch memory expected, as a share of the problem's bytes. ``domain``
        int32 (P, columns), where there is one: the layers it was trained on (`models.domain`).
    """

    card: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def id(self) -> str:
        """Twelve hex digits of the hash of the arrays."""
        return str(self.card["model_id"])

    @cached_property
    def device(self) -> Device:
        """The device it was trained for."""
        return Device(**self.card["device"])

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The variants it knows, in the order of the columns."""
        return tuple(self.card["variants"])

    @cached_property
    def rankings(self) -> np.ndarray:
        """The row of each leaf's ranking, int array of shape (L,)."""
        found = self.arrays.get(RANKING)
        return np.arange(len(self.arrays["log_best"])) if found is None else found

    @cached_property
    def nodes(self) -> tuple[memoryview, memoryview, memoryview, memoryview, memoryview]:
        """feature, threshold, left, right and place, by node.

        As views, whose elements are plain numbers: of an array's they are objects of NumPy's, and slow.
        """
        feature, threshold, left, right, place = (self.arrays[name].data for name in _NODE_ARRAYS)
        return feature, threshold, left, right, place

    @cached_property
    def bounds(self) -> memoryview:
        """The largest value of each node that is at most its threshold once it is rounded to float32; of a leaf 0.

        So values need not be rounded to be compared, which takes as long as the walk itself.
        """
        bounds = np.zeros(self.arrays["threshold"].shape)
        is_inner = self.arrays["feature"] != LEAF
        threshold = self.arrays["threshold"][is_inner]
        with np.errstate(over="ignore"):
            below = threshold.astype(np.float32)
            np.nextafter(below, np.float32(-np.inf), out=below, where=below > threshold)
            above = np.nextafter(below, np.float32(np.inf))
        middle = (below.astype(np.float64) + above) / 2  # a tie goes to the even one
        np.nextafter(middle, -np.inf, out=middle, where=(below.view(np.int32) & 1) != 0)
        bounds[is_inner] = middle
        return bounds.data

    @cached_property
    def tests(self) -> list[Test | None]:
        """The test of each node that a walk has come by; None elsewhere.

        Plain tuples are walked in half the time of views, but all of them take 25 ms and 36 MB to make.
        """
        return [None] * len(self.arrays["feature"])

    @cached_property
    def root(self) -> int:
        """Where a walk begins, as `next` says it."""
        return self.next(0)

    def test(self, node: int) -> Test:
        """Make the test of an inner node, and keep it."""
        feature, _, left, right, _ = self.nodes
        made = self.tests[node] = feature[node], self.bounds[node], self.next(left[node]), self.next(right[node])
        return made

    def next(self, node: int) -> int:
        """Where a walk goes on: an inner node, or of a leaf the complement of its place, which is below 0."""
        feature, _, _, _, place = self.nodes
        return node if feature[node] != LEAF else ~place[node]


class Step(msgspec.Struct, frozen=True):
    """One comparison on the way to a leaf."""

    feature: str
    value: float
    threshold: float
    is_below: bool

    def __str__(self) -> str:
        return f"{self.feature} {'≤' if self.is_below else '>'} {self.threshold:.4g} (it is {self.value:.4g})"


def walk(model: TreeModel, values: Sequence[float]) -> int:
    """The leaf that the values of `FEATURES`, rounded or not, lead to, as a row of the leaf arrays."""
    tests, node = model.tests, model.root
    while node >= 0:
        tested, bound, below, above = tests[node] or model.test(node)
        node = below if values[tested] <= bound else above
    return ~node


def path(model: TreeModel, values: Sequence[float]) -> list[Step]:
    """The comparisons on the way to the leaf."""
    feature, threshold, left, _, _ = model.nodes
    nodes = path_nodes(model, values)
    return [
        Step(FEATURES[feature[node]], float(values[feature[node]]), threshold[node], following == left[node])
        for node, following in pairwise(nodes)
    ]


def path_nodes(model: TreeModel, values: Sequence[float]) -> list[int]:
    """The nodes on the way to the leaf, which is the last."""
    feature, _, left, right, _ = model.nodes
    bound, nodes = model.bounds, [0]
    while (tested := feature[nodes[-1]]) >= 0:
        node = nodes[-1]
        nodes.append(left[node] if values[tested] <= bound[node] else right[node])
    return nodes


def make(arrays: dict[str, np.ndarray], *, variants: Sequence[str], device: Device, card: dict[str, Any]) -> TreeModel:
    """Put arrays and what is known of their origin together, and audit the result.

    Parameters
    ----------
    card : dict
        Further fields: library versions, data hash, options, scores, whatever JSON holds.

    Raises
    ------
    ModelRejected
    """
    digest = hashlib.sha256(save(arrays)).hexdigest()
    full = card | {
        "protocol": PROTOCOL,
        "model_id": digest[:12],
        "sha256": digest,
        "features": list(FEATURES),
        "variants": list(variants),
        "device": asdict(device),
    }
    _audit_card(full)
    _audit_arrays(arrays, len(variants))
    return TreeModel(full, arrays)


def with_scores(model: TreeModel, scores: dict[str, Any]) -> TreeModel:
    """The same tree, with these scores on its card."""
    return replace(model, card=model.card | {"scores": model.card.get("scores", {}) | scores})


def with_card(model: TreeModel, **fields: Any) -> TreeModel:
    """The same tree, with these fields on its card."""
    return replace(model, card=model.card | fields)


def write(folder: Path, model: TreeModel) -> None:
    """Write both files; a reader in between finds a hash that does not match, and refuses."""
    folder.mkdir(parents=True, exist_ok=True)
    card, content = encode(model)
    _replace(folder / TREE_FILE, content)
    _replace(folder / CARD_FILE, card.encode())


def encode(model: TreeModel) -> tuple[str, bytes]:
    """What the two files of a tree hold: the card as JSON, and the arrays as safetensors."""
    card = json.dumps(model.card, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    return card, save(model.arrays)


def read(folder: Path) -> TreeModel:
    """Read both files, and refuse whatever could mislead or crash.

    Raises
    ------
    ModelRejected
        With the reason.
    """
    try:
        _check_size(folder / TREE_FILE, MAX_FILE_BYTES)
        _check_size(folder / CARD_FILE, MAX_CARD_BYTES)
        return decode((folder / CARD_FILE).read_bytes(), read_whole(folder / TREE_FILE))
    except ModelRejected as error:
        raise ModelRejected(f"{folder}: {error}") from None
    except OSError as error:
        raise ModelRejected(f"{folder}: {error}") from error


def decode(card_json: str | bytes, content: bytes | memoryview) -> TreeModel:
    """The tree of a card and of arrays, wherever they were kept; refuses whatever could mislead or crash.

    Raises
    ------
    ModelRejected
        With the reason.
    """
    try:
        card = json.loads(card_json)
        json.dumps(card, ensure_ascii=False).encode()  # no half of a surrogate pair, which no answer could hold
        _audit_card(card)
        digest = hashlib.sha256(content).hexdigest()
        _check(digest == card["sha256"], f"sha256 is {digest}, the card says {card['sha256']}")
        arrays = arrays_in(content)
        _audit_arrays(arrays, len(card["variants"]))
    except (ValueError, RecursionError) as error:
        raise ModelRejected(str(error)) from error
    return TreeModel(card, arrays)


def _audit_card(card: Any) -> None:
    _check(isinstance(card, dict), "the card is no JSON object")
    _check(card.get("protocol") == PROTOCOL, f"protocol is {card.get('protocol')!r}; allowed: {PROTOCOL}")
    _check(card.get("features") == list(FEATURES), "features are not those of this version, in this order")
    variants = card.get("variants")
    is_named = isinstance(variants, list) and all(isinstance(name, str) and name for name in variants)
    _check(is_named and 0 < len(set(variants)) == len(variants), "variants are not a list of different names")
    digest = card.get("sha256")
    _check(isinstance(digest, str) and card.get("model_id") == digest[:12], "model_id is not the start of sha256")
    _audit_device(card.get("device"))


def _audit_device(fields: Any) -> None:
    try:
        device = msgspec.convert(asdict(Device(**fields)), Device)
    except (TypeError, msgspec.ValidationError) as error:
        raise ModelRejected(f"device: {error}") from None
    _check(bool(device.id), f"device has id {device.id!r}; allowed: a name")
    _check(device.kind in ("cpu", "cuda"), f"device has kind {device.kind!r}; allowed: cpu, cuda")
    is_known = re.fullmatch(r"(\d{1,3}\.\d{1,3})?", device.capability, re.ASCII)
    _check(bool(is_known), f"device has capability {device.capability!r}; allowed: such as 9.0, or none")


def _audit_arrays(arrays: dict[str, np.ndarray], n_variants: int) -> None:
    expected = sorted({*_NODE_ARRAYS, *_LEAF_ARRAYS, *RANKING_ARRAYS})
    named = sorted(arrays.keys() - {DOMAIN, RANKING})
    _check(named == expected, f"arrays are {named}; allowed: {expected}, {DOMAIN} and {RANKING}")
    _audit_domain(arrays.get(DOMAIN))
    n_nodes = arrays["feature"].size
    for name, dtype in _NODE_ARRAYS.items():
        _check_array(name, arrays[name], (dtype,), (n_nodes,))
    _check(n_nodes > 0, "there are no nodes")
    is_leaf = arrays["feature"] == LEAF
    n_leaves = int(is_leaf.sum())
    extremes = {
        name: _check_array(name, arrays[name], (np.float32,), (n_leaves, 3)[:dimensions])
        for name, dimensions in _LEAF_ARRAYS.items()
    }
    n_rankings = _audit_ranking(arrays, n_leaves)
    for name in RANKING_ARRAYS:
        extremes[name] = _check_array(name, arrays[name], (np.float16, np.float32), (n_rankings, n_variants))
    _audit_structure(arrays, is_leaf)
    _check(extremes["roofline"][0] > 0, "roofline has a value that is not above 0")
    for name in _LOGS:
        least, most = extremes[name]
        _check(least >= -_MAX_LOG and most <= _MAX_LOG, f"{name} has a value beyond ±{_MAX_LOG:g}")
    for name in ("spread", "workspace"):
        _check(extremes[name][0] >= 0, f"{name} has a value below 0")
    least, most = extremes["support"]
    _check(least >= 0 and most <= 1, "support has a value outside 0 to 1")


def _audit_domain(sizes: np.ndarray | None) -> None:
    if sizes is not None:
        _check(sizes.ndim == 2, f"{DOMAIN} has {sizes.ndim} dimensions; allowed: 2")
        _check_array(DOMAIN, sizes, (np.int32,), sizes.shape)
        _check(sizes.size > 0 and bool((sizes > 0).all()), f"{DOMAIN} has a value that is not above 0, or none at all")


def _audit_ranking(arrays: dict[str, np.ndarray], n_leaves: int) -> int:
    """How many rankings there are; every leaf has one of them."""
    found = arrays.get(RANKING)
    if found is None:
        return n_leaves
    _check_array(RANKING, found, (np.int32,), (n_leaves,))
    n_rankings = len(arrays["log_slowdown"])
    _check(bool(((found >= 0) & (found < n_rankings)).all()), f"{RANKING} has a row out of range")
    return n_rankings


def _audit_structure(arrays: dict[str, np.ndarray], is_leaf: np.ndarray) -> None:
    """Every node but the first is the child of exactly one node before it, so that every walk ends in a leaf."""
    n_nodes = len(is_leaf)
    feature, left, right, place = (arrays[name] for name in ("feature", "left", "right", "place"))
    _check(bool((feature >= LEAF).all() and (feature < len(FEATURES)).all()), "feature has a value out of range")
    _check(bool((left[is_leaf] == LEAF).all() and (right[is_leaf] == LEAF).all()), "a leaf has children")
    inner = np.flatnonzero(~is_leaf)
    for name, children in (("left", left[inner]), ("right", right[inner])):
        _check(bool((children < n_nodes).all()), f"{name} has a child out of range")
        _check(bool((children > inner).all()), f"{name} has a child that does not come after its parent")
    children = np.sort(np.concatenate([left[inner], right[inner]]))
    _check(np.array_equal(children, np.arange(1, n_nodes)), "a node is nobody's child, or the child of two")
    _check(bool((place[inner] == LEAF).all()), "place has a row for an inner node")
    _check(np.array_equal(np.sort(place[is_leaf]), np.arange(is_leaf.sum())), "place does not give each leaf its row")


def _check_array(name: str, array: np.ndarray, dtypes: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[float, float]:
    """The least and the largest value of numbers that may have a fraction; of others both are 0."""
    allowed = " or ".join(str(np.dtype(dtype)) for dtype in dtypes)
    _check(array.dtype in dtypes, f"{name} is {array.dtype}; allowed: {allowed}")
    _check(array.shape == shape, f"{name} has shape {array.shape}; allowed: {shape}")
    if array.dtype.kind != "f":
        return 0.0, 0.0
    least, most = _extremes(array)
    _check(-math.inf < least and most < math.inf, f"{name} has a value that is not finite")
    return least, most


def _extremes(array: np.ndarray) -> tuple[float, float]:
    """The least and the largest value; both infinite and no range at all, or NaN, where a value is NaN."""
    if not array.size:
        return 0.0, 0.0
    if array.dtype != np.float16:
        return float(array.min()), float(array.max())
    # Halves are compared by their bits, twenty times as fast as by their values: of one sign these rise with the
    # magnitude, and a NaN's are beyond infinity's.
    bits = np.ascontiguousarray(array)
    signed, unsigned = bits.view(np.int16), bits.view(np.uint16)
    least = unsigned.max() if signed.min() < 0 else unsigned.min()
    most = signed.max() if signed.max() >= 0 else unsigned.min()
    return float(least.view(np.float16)), float(np.uint16(most).view(np.float16))


def _check(is_right: bool, reason: str) -> None:
    if not is_right:
        raise ModelRejected(reason)


def _check_size(file: Path, most: int) -> None:
    size = file.stat().st_size
    _check(size <= most, f"{file.name} has {size} bytes; allowed: at most {most}")


def _replace(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, file)  # noqa: PTH105 - the name says that it is atomic
    finally:
        unfinished.unlink(missing_ok=True)
