"""Tree files that were altered: arrays, their bytes, and the card, with hashes that fit again so that only the audit is
left to refuse them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from conv_advisor.models.tree.file import CARD_FILE, TREE_FILE, TreeModel
from tests.reliability.mutation import mutated

Arrays = dict[str, np.ndarray]

_VALUES = (0, -1, 1, 2, 3, 127, 2**31 - 1, -(2**31), np.nan, np.inf, -np.inf, 1e308, -1e308, 3.4e38, 1e-40, -0.0)
_CARD_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**64,
    0.5,
    "",
    "a",
    [],
    {},
    [[]],
    ["a", "a"],
    "\x00",
    "../../x",
    "9" * 999,
)


class Altered:
    """Writes one altered tree after the other; the same for the same seed.

    Parameters
    ----------
    folder : Path
    models : sequence of TreeModel
        Sound trees.
    seed : int
    """

    def __init__(self, folder: Path, models: tuple[TreeModel, ...], seed: int) -> None:
        self._folder = folder
        self._models = [
            (model.card, arrays, save(arrays)) for model in models for arrays in [model.stored or model.arrays]
        ]
        self._rng = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)

    def write_next(self) -> None:
        """Put the next one in the folder."""
        rng = self._rng
        card, arrays, content = rng.choice(self._models)
        ways: tuple[Callable[[], tuple[dict[str, Any] | bytes, bytes]], ...] = (
            lambda: (card, _bytes_altered(rng, content)),
            lambda: _hashed(card, _bytes_altered(rng, content)),
            lambda: _hashed(card, save(_values_altered(rng, arrays))),
            lambda: _hashed(card, save(_arrays_altered(rng, arrays))),
            lambda: (_card_altered(rng, card), content),
            lambda: (mutated(rng, json.dumps(card).encode(), (b"{}",)), content),
        )
        altered, tree = rng.choices(ways, (1, 4, 6, 4, 3, 2))[0]()
        text = altered if isinstance(altered, bytes) else json.dumps(altered).encode()
        (self._folder / CARD_FILE).write_bytes(text)
        (self._folder / TREE_FILE).write_bytes(tree)


def _hashed(card: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    digest = hashlib.sha256(content).hexdigest()
    return card | {"sha256": digest, "model_id": digest[:12]}, content


def _bytes_altered(rng: random.Random, content: bytes) -> bytes:
    return mutated(rng, content, (content,))


def _values_altered(rng: random.Random, arrays: Arrays) -> Arrays:
    """A few values of one or two arrays replaced: what flipped bits in memory or a hostile trainer would give."""
    changed = {name: array.copy() for name, array in arrays.items()}
    for name in rng.choices(list(changed), k=rng.randint(1, 2)):
        flat = changed[name].reshape(-1)
        for _ in range(rng.randint(1, 3)):
            with np.errstate(invalid="ignore", over="ignore"):
                flat[rng.randrange(flat.size)] = np.float64(rng.choice(_VALUES)).astype(flat.dtype)
    return changed


def _arrays_altered(rng: random.Random, arrays: Arrays) -> Arrays:
    """One array left out, renamed, exchanged, cast, cut or reshaped."""
    changed = dict(arrays)
    name, other = rng.choice(list(changed)), rng.choice(list(changed))
    array = changed[name]
    match rng.randrange(6):
        case 0:
            del changed[name]
        case 1:
            changed[other] = array
        case 2:
            with np.errstate(all="ignore"):
                changed[name] = array.astype(rng.choice((np.int8, np.int64, np.float16, np.float32, np.uint8)))
        case 3:
            changed[name] = np.ascontiguousarray(array[: rng.randrange(len(array) + 1)])
        case 4:
            changed[name] = array.reshape(1, -1)
        case 5:
            changed = {each: np.ascontiguousarray(values[::-1]) for each, values in changed.items()}
    return changed


def _card_altered(rng: random.Random, card: dict[str, Any]) -> dict[str, Any]:
    """A field of the card, or of the device on it, replaced or left out."""
    changed = json.loads(json.dumps(card))
    place = changed["device"] if rng.random() < 0.5 else changed
    name = rng.choice(list(place))
    if rng.random() < 0.2:
        del place[name]
    else:
        place[name] = rng.choice(_CARD_VALUES)
    return changed
