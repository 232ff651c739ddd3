"""A trained tree as plain arrays and a card: written whole, audited when read, walked without scikit-learn."""

from __future__ import annotations

import hashlib
import json
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
from conv_advisor.models.tree.arrays import LEAF, NODE_ARRAYS, Arrays, audit, check, packed, ranked
from conv_advisor.models.tree.features import FEATURES
from conv_advisor.models.tree.in_place import arrays_in, read_whole

PROTOCOL: Final = 2
"""Number of the format that `write` writes."""
_READ: Final = (1, PROTOCOL)
"""Protocols that a reader takes; it refuses any other. Trees of the first are packed as they are read."""

TREE_FILE: Final = "tree.safetensors"
CARD_FILE: Final = "card.json"

MAX_FILE_BYTES: Final = 2**28
MAX_CARD_BYTES: Final = 2**24


Test = tuple[int, float, int, int]
"""The test of a node: a feature, the largest value that goes left, and where a walk goes on left and right (`next`)."""


@dataclass(frozen=True, eq=False)
class TreeModel:
    """A tree of N nodes, A rankings and V variants for one device.

    Parameters
    ----------
    card : dict
        Origin and format of the tree; `read` and `make` audit its fields.
    arrays : dict of str to array
        ``feature`` int8 (N,): what a node compares; -1 in a leaf. ``value`` float32 (N,): go left where the feature, as
        float32, is at most that; in a leaf, the log of the best time over the roofline. ``next`` int32 (N,): the left
        child, followed by the right one; in a leaf, the row of its ranking, which leaves that differ in their time
        alone share. By ranking: ``roofline`` float32 (A, 3): flops a ms, bytes a ms, and least ms that were reached.
        ``spread`` float32 (A,): standard error of the log slowdown of variants near the best, on layers never trained
        on. uint8 (A, V): ``log_slowdown``, log of a variant's time over the best's; ``support``, how likely it runs at
        all; ``workspace``, scratch memory expected, as a share of the problem's bytes. ``scale`` float32 (3, 256): what
        a byte of each of these stands for. ``domain`` int16 (P, columns), int32 in older files, and int32
        ``domain_large`` of the few with larger sizes, where there are any: the layers it was trained on
        (`models.tree.domain`).
    stored : dict of str to array, optional
        The arrays of its file, where that is of an older protocol.
    """

    card: dict[str, Any]
    arrays: Arrays
    stored: Arrays | None = None

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
    def nodes(self) -> tuple[memoryview, memoryview, memoryview]:
        """feature, value and next, by node.

        As views, whose elements are plain numbers: elements of an array are NumPy objects, which are slow.
        """
        feature, value, following = (self.arrays[name].data for name in NODE_ARRAYS)
        return feature, value, following

    @cached_property
    def bounds(self) -> memoryview:
        """The largest number that rounds to a float32 of at most the value of each node.

        So a walk need not round values before it compares them, which takes as long as the walk itself.
        """
        value = self.arrays["value"]
        with np.errstate(over="ignore"):
            above = np.nextafter(value, np.float32(np.inf))
        middle = (value.astype(np.float64) + above) / 2  # a tie rounds to the even one
        np.nextafter(middle, -np.inf, out=middle, where=(value.view(np.int32) & 1) != 0)
        return middle.data

    def ranked(self, name: str, rows: Any = slice(None)) -> np.ndarray:
        """``log_slowdown``, ``support`` or ``workspace`` of all rankings or of some, float32 array of their shape."""
        return ranked(self.arrays, name, rows)

    def roofline(self, leaf: Any) -> np.ndarray:
        """Flops a ms, bytes a ms and least ms of a leaf, or of many: float32 array of shape (3,) or (n, 3)."""
        rooflines: np.ndarray = self.arrays["roofline"][self.arrays["next"][leaf]]
        return rooflines

    @cached_property
    def tests(self) -> list[Test | None]:
        """The test of each node that a walk has passed; None elsewhere.

        Plain tuples are walked in half the time of views, but making all of them takes 25 ms and 36 MB.
        """
        return [None] * len(self.arrays["feature"])

    @cached_property
    def root(self) -> int:
        """Where a walk begins, in the terms of `next`."""
        return self.next(0)

    def test(self, node: int) -> Test:
        """Make the test of an inner node, and keep it."""
        feature, _, following = self.nodes
        below = following[node]
        test = self.tests[node] = feature[node], self.bounds[node], self.next(below), self.next(below + 1)
        return test

    def next(self, node: int) -> int:
        """Where a walk goes on: an inner node, or the complement of a leaf, which is below 0."""
        return node if self.nodes[0][node] != LEAF else ~node


class Step(msgspec.Struct, frozen=True):
    """One comparison on the way to a leaf."""

    feature: str
    value: float
    threshold: float
    is_below: bool

    def __str__(self) -> str:
        return f"{self.feature} {'≤' if self.is_below else '>'} {self.threshold:.4g} (it is {self.value:.4g})"


def walk(model: TreeModel, values: Sequence[float]) -> int:
    """The leaf that the values of `FEATURES`, rounded or not, lead to: a node."""
    tests, node = model.tests, model.root
    while node >= 0:
        tested, bound, below, above = tests[node] or model.test(node)
        node = below if values[tested] <= bound else above
    return ~node


def path(model: TreeModel, values: Sequence[float]) -> list[Step]:
    """The comparisons on the way to the leaf."""
    feature, threshold, left = model.nodes
    nodes = path_nodes(model, values)
    return [
        Step(FEATURES[feature[node]], float(values[feature[node]]), threshold[node], following == left[node])
        for node, following in pairwise(nodes)
    ]


def path_nodes(model: TreeModel, values: Sequence[float]) -> list[int]:
    """The nodes on the way to the leaf, which is the last."""
    feature, _, following = model.nodes
    bound, nodes = model.bounds, [0]
    while (tested := feature[node := nodes[-1]]) >= 0:
        nodes.append(following[node] + (values[tested] > bound[node]))
    return nodes


def make(grown: Arrays, *, variants: Sequence[str], device: Device, card: dict[str, Any]) -> TreeModel:
    """Pack a grown tree, add what is known of its origin, and audit the result.

    Parameters
    ----------
    grown : dict of str to array
        As `models.tree.arrays.packed` takes it.
    card : dict
        Further fields: library versions, data hash, options, scores, whatever JSON holds.

    Raises
    ------
    ModelRejected
    """
    arrays = packed(grown)
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
    audit(arrays, len(variants))
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
    return card, save(model.stored or model.arrays)


def read(folder: Path) -> TreeModel:
    """Read both files; content that could mislead or crash is refused.

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
    """The tree of a card and of arrays, wherever they were kept; content that could mislead or crash is refused.

    Raises
    ------
    ModelRejected
        With the reason.
    """
    try:
        card = json.loads(card_json)
        json.dumps(card, ensure_ascii=False).encode()  # refuses half a surrogate pair, which no answer could hold
        _audit_card(card)
        digest = hashlib.sha256(content).hexdigest()
        check(digest == card["sha256"], f"sha256 is {digest}, the card says {card['sha256']}")
        stored = arrays_in(content)
        arrays = stored if card["protocol"] == PROTOCOL else packed(stored)
        audit(arrays, len(card["variants"]))
    except (ValueError, RecursionError) as error:
        raise ModelRejected(str(error)) from error
    return TreeModel(card, arrays, None if arrays is stored else stored)


def _audit_card(card: Any) -> None:
    check(isinstance(card, dict), "the card is no JSON object")
    protocol = card.get("protocol")
    is_read = type(protocol) is int and protocol in _READ
    check(is_read, f"protocol is {protocol!r}; allowed: {' or '.join(map(str, _READ))}")
    check(card.get("features") == list(FEATURES), "features are not those of this version, in this order")
    variants = card.get("variants")
    is_named = isinstance(variants, list) and all(isinstance(name, str) and name for name in variants)
    check(is_named and 0 < len(set(variants)) == len(variants), "variants are not a list of different names")
    digest = card.get("sha256")
    check(isinstance(digest, str) and card.get("model_id") == digest[:12], "model_id is not the start of sha256")
    _audit_device(card.get("device"))


def _audit_device(fields: Any) -> None:
    try:
        device = msgspec.convert(asdict(Device(**fields)), Device)
    except (TypeError, msgspec.ValidationError) as error:
        raise ModelRejected(f"device: {error}") from None
    check(bool(device.id), f"device has id {device.id!r}; allowed: a name")
    check(device.kind in ("cpu", "cuda"), f"device has kind {device.kind!r}; allowed: cpu, cuda")
    is_known = re.fullmatch(r"(\d{1,3}\.\d{1,3})?", device.capability, re.ASCII)
    check(bool(is_known), f"device has capability {device.capability!r}; allowed: such as 9.0, or none")


def _check_size(file: Path, most: int) -> None:
    size = file.stat().st_size
    check(size <= most, f"{file.name} has {size} bytes; allowed: at most {most}")


def _replace(file: Path, content: bytes) -> None:
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, file)  # noqa: PTH105 - the name says that it is atomic
    finally:
        unfinished.unlink(missing_ok=True)
