"""A tree of five nodes and a catalogue of five variants, small enough to follow by hand."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
from safetensors.numpy import save

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Algorithm, Backend, Rule, Variant, all_of, filter_is
from conv_advisor.models.tree.arrays import LEAF, RANKING_ARRAYS, packed
from conv_advisor.models.tree.features import FEATURES
from conv_advisor.models.tree.file import TreeModel, decode, make

DEVICE = Device(id="toy-gpu", name="Toy GPU", kind="cuda", capability="9.0")

SMALL = ConvProblem.parse("7-1-3-64-32")
MIDDLE = ConvProblem.parse("28-1-3-64-32")
LARGE = ConvProblem.parse("28-1-3-512-32")
POINTWISE = ConvProblem.parse("7-1-1-64-32")

VARIANTS = ("cuda.plain", "cuda.big", "cuda.only_3x3", "cuda.loose", "cuda.shy")
LEAST_MS = 0.5
"""The roofline of every problem here."""


def _variant(
    variant_id: str,
    *rules: Rule,
    workspace_bytes: int | None = 0,
    is_deterministic: bool = True,
    backend: Backend = Backend.CUDA,
) -> Variant:
    return Variant(
        id=variant_id,
        algorithm=Algorithm.DIRECT,
        backend=backend,
        is_deterministic=is_deterministic,
        why_not=all_of(*rules),
        workspace_bytes=lambda _problem, _device: workspace_bytes,
        source="made up",
    )


CATALOGUE = {
    "cuda.plain": _variant("cuda.plain"),
    "cuda.big": _variant("cuda.big", workspace_bytes=2**20),
    "cuda.only_3x3": _variant("cuda.only_3x3", filter_is((3, 3)), workspace_bytes=None),
    "cuda.loose": _variant("cuda.loose", is_deterministic=False),
    "cuda.shy": _variant("cuda.shy", backend=Backend.CUDNN_GRAPH),
}


def arrays() -> dict[str, np.ndarray]:
    """h up to 16 → leaf 0; else k up to 128 → leaf 1, else leaf 2; in leaf 1 ``cuda.shy`` never runs."""
    h, k = FEATURES.index("log2_h"), FEATURES.index("log2_k")
    slowdowns = [[2, 1, 1.5, 4, 8], [1, 2, 1.05, 4, 1.2], [1, 1, 1, 1, 1]]
    return {
        "feature": np.array([h, -1, k, -1, -1], dtype=np.int32),
        "threshold": np.array([4.0, 0, 7.0, 0, 0]),
        "left": np.array([1, -1, 3, -1, -1], dtype=np.int32),
        "right": np.array([2, -1, 4, -1, -1], dtype=np.int32),
        "place": np.array([-1, 0, -1, 1, 2], dtype=np.int32),
        "log_slowdown": np.log(np.array(slowdowns)).astype(np.float32),
        "support": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0.2], [1, 1, 1, 1, 1]], dtype=np.float32),
        "workspace": np.array([[0, 0, 2, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=np.float32),
        "log_best": np.full(3, math.log(2), dtype=np.float32),
        "roofline": np.tile(np.array([1e15, 1e15, LEAST_MS], dtype=np.float32), (3, 1)),
        "spread": np.full(3, 0.1, dtype=np.float32),
    }


def walkable(nodes: dict[str, np.ndarray]) -> TreeModel:
    """A tree of these nodes that says nothing: the ranking of a leaf is its place."""
    n_leaves = int((nodes["feature"] == LEAF).sum())
    leaves = {"log_best": np.zeros(n_leaves), "spread": np.zeros(n_leaves), "roofline": np.ones((n_leaves, 3))}
    return TreeModel({}, packed(nodes | leaves | dict.fromkeys(RANKING_ARRAYS, np.zeros((n_leaves, 1)))))


def model(device: Device = DEVICE, **changes: Any) -> TreeModel:
    """The tree, with some arrays changed."""
    return make(arrays() | changes, variants=VARIANTS, device=device, card={"created": "2026-01-02T00:00:00+00:00"})


def of_first_protocol() -> TreeModel:
    """The same tree as files had it first, read."""
    stored = arrays()
    content = save(stored | {name: stored[name].astype(np.float16) for name in RANKING_ARRAYS})
    digest = hashlib.sha256(content).hexdigest()
    card = model().card | {"protocol": 1, "sha256": digest, "model_id": digest[:12]}
    return decode(json.dumps(card), content)
