"""The arrays of a tree: packed into the fewest bytes that are walked as they are, and audited before they are used."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from conv_advisor.data.errors import ModelRejected
from conv_advisor.models.tree.features import FEATURES

Arrays = dict[str, np.ndarray]

LEAF: Final = -1
"""Feature of a leaf; in a tree that grows also its left and right, and the place of an inner node."""

NODE_ARRAYS: Final = {"feature": np.int8, "value": np.float32, "next": np.int32}
"""One element per node; `models.tree.file.TreeModel` says what they are."""
RANKING_ARRAYS: Final = ("log_slowdown", "support", "workspace")
"""One row per ranking, one column per variant, one byte each."""
SCALE: Final = "scale"
"""The values that the bytes of `RANKING_ARRAYS` stand for: one row per array, in their order."""
DOMAIN: Final = "domain"
LARGE_DOMAIN: Final = "domain_large"
"""Layers that a tree was trained on: those whose sizes fit two bytes, and the few others. Older trees have none."""
RANKING: Final = "ranking"
"""The row of each leaf's ranking in a tree that grows; without this array each leaf has a row of its own."""

_N_CODES: Final = 256
_MOST_FEATURES: Final = np.iinfo(np.int8).max
_MAX_LOG: Final = 100.0
"""Largest log of a ratio of times: no ratio reaches e to the hundredth, and a product of a few is still finite."""
_FINEST_WORKSPACE: Final = 0.01
"""Share of a problem's bytes below which the steps of workspaces are even, and above which they grow with the share."""

_EVEN: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "log_slowdown": (np.sqrt, np.square),
    "support": (np.positive, np.positive),
    "workspace": (
        lambda share: np.log1p(share / _FINEST_WORKSPACE),
        lambda even: np.expm1(even) * _FINEST_WORKSPACE,
    ),
}
"""Scales on which the values of each array are evenly spaced, and back: slowdowns are finest near the best variant."""


def packed(grown: Arrays) -> Arrays:
    """A grown tree, as its file has it.

    Parameters
    ----------
    grown : dict of str to array
        ``feature``, ``threshold``, ``left``, ``right`` and ``place`` by node: go left where the feature is at most the
        threshold; a leaf, whose feature is `LEAF`, has a place in ``log_best`` (L,), ``spread`` (L,), ``roofline``
        (L, 3) and, where there is one, ``ranking`` (L,). Leaves of one ranking have one spread and one roofline.
        ``log_slowdown``, ``support`` and ``workspace`` (A, V): rankings. ``domain``: see `models.tree.domain`. The same
        is what files of protocol 1 have.

    Raises
    ------
    ModelRejected
        The arrays are no tree.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            nodes, rankings = _nodes(grown), _rankings(grown)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ModelRejected(f"arrays are no tree: {error!r}") from error
    return nodes | rankings


def ranked(arrays: Arrays, name: str, rows: Any = slice(None)) -> np.ndarray:
    """The values that the bytes of rankings stand for, float32 array of the shape of the rows.

    Parameters
    ----------
    arrays : dict of str to array
        Packed.
    name : str
        One of `RANKING_ARRAYS`.
    rows : int, slice or array
    """
    values: np.ndarray = arrays[SCALE][RANKING_ARRAYS.index(name)][arrays[name][rows]]
    return values


def _nodes(grown: Arrays) -> Arrays:
    """The nodes in the order in which they grew, but with the right child behind the left."""
    feature, place = grown["feature"], grown["place"]
    is_leaf = feature == LEAF
    inner, leaves = np.flatnonzero(~is_leaf), np.flatnonzero(is_leaf)
    children = np.stack([grown["left"][inner], grown["right"][inner]], axis=1)
    before = np.concatenate([[0], children[children.min(axis=1).argsort(kind="stable")].ravel()]).astype(np.int64)
    check(np.array_equal(np.sort(before), np.arange(len(feature))), "a node is nobody's child, or the child of two")
    now = np.argsort(before)
    value, following = _rounded_down(grown["threshold"]), np.empty(len(feature), np.int32)
    value[leaves] = grown["log_best"][place[leaves]]
    following[inner], following[leaves] = now[children[:, 0]], _rows_of_leaves(grown)[place[leaves]]
    nodes = {"feature": feature.clip(LEAF - 1, _MOST_FEATURES).astype(np.int8), "value": value, "next": following}
    return {name: values[before] for name, values in nodes.items()}


def _rankings(grown: Arrays) -> Arrays:
    rows, leaf_of_each = np.unique(_rows_of_leaves(grown), return_index=True)
    check(np.array_equal(rows, np.arange(len(grown["log_slowdown"]))), f"{RANKING} leaves rows out, or is out of range")
    packed_rankings = {name: grown[name][leaf_of_each].astype(np.float32) for name in ("roofline", "spread")}
    scales = []
    for name in RANKING_ARRAYS:
        packed_rankings[name], scale = _coded(name, grown[name].astype(np.float32))
        scales.append(scale)
    packed_rankings[SCALE] = np.stack(scales)
    return packed_rankings | (_domain(grown[DOMAIN]) if DOMAIN in grown else {})


def _rows_of_leaves(grown: Arrays) -> np.ndarray:
    return grown.get(RANKING, np.arange(len(grown["log_best"])))


def _rounded_down(threshold: np.ndarray) -> np.ndarray:
    """The threshold as float32, as features are: no feature lies between a threshold and the float32 just below it."""
    nearest = threshold.astype(np.float32)
    return np.where(nearest > threshold, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def _coded(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A byte for each value, and what the bytes stand for: the values themselves where they are few enough."""
    check(bool(np.isfinite(values).all()), f"{name} has a value that is not finite")
    check(bool((values >= 0).all()), f"{name} has a value below 0")
    known = np.unique(values)
    if len(known) > _N_CODES:
        there, back = _EVEN[name]
        first, last = there(known[[0, -1]].astype(np.float64))
        known = back(np.linspace(first, last, _N_CODES)).astype(np.float32)
    middles = (known[1:].astype(np.float64) + known[:-1]) / 2
    codes = np.searchsorted(middles, values).astype(np.uint8)
    return codes, np.pad(known, (0, _N_CODES - len(known)), mode="edge" if len(known) else "constant")


def _domain(sizes: np.ndarray) -> Arrays:
    """The layers whose sizes fit two bytes, and the others."""
    if sizes.ndim != 2 or sizes.dtype != np.int32:
        return {DOMAIN: sizes}  # which `audit` refuses
    is_large = (sizes > np.iinfo(np.int16).max).any(axis=1)
    small = {DOMAIN: sizes[~is_large].astype(np.int16)}
    return small | ({LARGE_DOMAIN: sizes[is_large]} if is_large.any() else {})


def domain_sizes(arrays: Arrays) -> np.ndarray | None:
    """The layers that a tree was trained on, int32 array of shape (P, columns); None where it keeps none."""
    kept = [arrays[name] for name in (DOMAIN, LARGE_DOMAIN) if name in arrays]
    return np.concatenate(kept).astype(np.int32) if kept else None


def audit(arrays: Arrays, n_variants: int) -> None:
    """Refuse packed arrays that could mislead or crash.

    Raises
    ------
    ModelRejected
        With the reason.
    """
    expected = sorted({*NODE_ARRAYS, *RANKING_ARRAYS, "roofline", "spread", SCALE})
    named = sorted(arrays.keys() - {DOMAIN, LARGE_DOMAIN})
    check(named == expected, f"arrays are {named}; allowed: {expected}, {DOMAIN} and {LARGE_DOMAIN}")
    n_nodes, n_rankings = arrays["feature"].size, len(arrays["spread"]) if arrays["spread"].ndim else 0
    check(n_nodes > 0, "there are no nodes")
    for name, dtype in NODE_ARRAYS.items():
        _check_array(name, arrays[name], (dtype,), (n_nodes,))
    for name in RANKING_ARRAYS:
        _check_array(name, arrays[name], (np.uint8,), (n_rankings, n_variants))
    for name, shape in (("spread", (n_rankings,)), ("roofline", (n_rankings, 3)), (SCALE, (3, _N_CODES))):
        _check_array(name, arrays[name], (np.float32,), shape)
    _audit_domain(arrays)
    _audit_structure(arrays, n_rankings)
    _audit_values(arrays)


def _audit_structure(arrays: Arrays, n_rankings: int) -> None:
    """Every node but the first is the child of exactly one node before it, so that every walk ends in a leaf."""
    feature, following = arrays["feature"], arrays["next"]
    check(bool((feature >= LEAF).all() and (feature < len(FEATURES)).all()), "feature has a value out of range")
    inner = np.flatnonzero(feature != LEAF)
    check(bool((following[inner] > inner).all()), "next has a child that does not come after its parent")
    is_whole = np.array_equal(np.sort(following[inner]), np.arange(1, len(feature), 2))
    check(is_whole and len(feature) % 2 == 1, "a node is nobody's child, or the child of two")
    rows = following[feature == LEAF]
    check(bool(((rows >= 0) & (rows < n_rankings)).all()), "next has a ranking out of range")


def _audit_values(arrays: Arrays) -> None:
    slowdown, support, workspace = arrays[SCALE]
    log_best, spread = arrays["value"][arrays["feature"] == LEAF], arrays["spread"]
    for name, values in (("value", log_best), ("log_slowdown", slowdown), ("spread", spread)):
        check(bool((np.abs(values) <= _MAX_LOG).all()), f"{name} has a log of a ratio beyond ±{_MAX_LOG:g}")
    for name, values in (("spread", spread), ("workspace", workspace)):
        check(bool((values >= 0).all()), f"{name} has a value below 0")
    check(bool(((support >= 0) & (support <= 1)).all()), "support has a value outside 0 to 1")
    check(bool((arrays["roofline"] > 0).all()), "roofline has a value that is not above 0")


def _audit_domain(arrays: Arrays) -> None:
    for name in (DOMAIN, LARGE_DOMAIN):
        if name in arrays:
            sizes = arrays[name]
            check(sizes.ndim == 2, f"{name} has {sizes.ndim} dimensions; allowed: 2")
            _check_array(name, sizes, (np.int16, np.int32), sizes.shape)
            check(bool((sizes > 0).all()), f"{name} has a value that is not above 0")
    kept = [arrays[name] for name in (DOMAIN, LARGE_DOMAIN) if name in arrays]
    check(not kept or sum(map(len, kept)) > 0, f"{DOMAIN} has no layer")
    check(len({sizes.shape[1] for sizes in kept}) < 2, f"{DOMAIN} and {LARGE_DOMAIN} have different columns")


def _check_array(name: str, array: np.ndarray, dtypes: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    allowed = " or ".join(str(np.dtype(dtype)) for dtype in dtypes)
    check(array.dtype in dtypes, f"{name} is {array.dtype}; allowed: {allowed}")
    check(array.shape == shape, f"{name} has shape {array.shape}; allowed: {shape}")
    if array.dtype.kind == "f":
        is_finite = not array.size or (-math.inf < array.min() and array.max() < math.inf)  # NaN is in no range
        check(bool(is_finite), f"{name} has a value that is not finite")


def check(is_right: bool, reason: str) -> None:
    """Refuse a tree for this reason, unless the condition is right.

    Raises
    ------
    ModelRejected
    """
    if not is_right:
        raise ModelRejected(reason)
