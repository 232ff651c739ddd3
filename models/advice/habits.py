"""What other libraries run by habit on a device: cuDNN's heuristic A as a small tree, and PyTorch's modes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from conv_advisor import data
from conv_advisor.models.ranking.checked import read_checked
from conv_advisor.models.tree.features import FEATURES

FOLDER: Final = Path(data.__file__).parent / "peers"
"""One file a device, ``<device>.json``, as ``benchmarks.habits`` writes it."""

HEURISTIC: Final = "cudnn.graph.heuristic_a"
"""Name, in stored picks, of the heuristic that is followed: its first plan is what PyTorch's default runs."""

FORMAT: Final = 2

_LEAF: Final = -1


class Habits(msgspec.Struct, frozen=True):
    """What cuDNN's heuristic A and PyTorch, untuned and tuned, run on a device, where they are not asked.

    Attributes
    ----------
    format : int
    device_id : str
    software : str
        Software under which both were asked.
    features : list of str
        `models.tree.features.FEATURES`; with other features the file is refused.
    variants : list of str
    feature, threshold, left, right : lists
        The tree's nodes; the feature of a leaf is -1.
    choices : list of list of int
        By node: at a leaf, the variants that the heuristic chose there, the most frequent first.
    n_asked : int
        Problems that the heuristic was asked about.
    share_right, share_near : float
        Shares of problems whose layers were held out: where the tree names the heuristic's choice, and where the named
        variant takes within 5 % as long.
    n_beside : int
        Problems that PyTorch was timed on beside the heuristic's choice, without those with its own depthwise kernel.
    share_beside : float
        Share of these where PyTorch took within 5 % as long.
    n_tuned : int
        Problems that PyTorch was timed on with ``cudnn.benchmark``, and cuDNN's engines too.
    share_tuned : float
        Share of these where the fastest engine, each by the heuristics' first plan for it, took within 5 % as long.
    tuned_ratio : float
        Time of PyTorch over that of this engine, geometric mean.
    default_ms, tuned_ms : dict of str to float
        Times of PyTorch's default, and of PyTorch with ``cudnn.benchmark``, by problem key.

    Notes
    -----
    Source: PyTorch, aten/src/ATen/native/cudnn/Conv_v8.cpp, which runs the first plan of heuristic A that works; with
    ``cudnn.benchmark`` the one that took the least time of those that heuristics A and FALLBACK offer, run once each.
    """

    format: int
    device_id: str
    software: str
    features: list[str]
    variants: list[str]
    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    choices: list[list[int]]
    n_asked: int
    share_right: float
    share_near: float
    n_beside: int
    share_beside: float
    n_tuned: int
    share_tuned: float
    tuned_ratio: float
    default_ms: dict[str, float]
    tuned_ms: dict[str, float]

    def likely(self, values: Sequence[float]) -> list[str]:
        """The variants that the heuristic is likely to choose, the likeliest first.

        Parameters
        ----------
        values : sequence of float
            Values of `FEATURES`.
        """
        node = 0
        while (tested := self.feature[node]) != _LEAF:
            node = self.left[node] if values[tested] <= self.threshold[node] else self.right[node]
        return [self.variants[place] for place in self.choices[node]]


@cache
def _files() -> dict[str, Path]:
    """The files that ship, by device: an id is looked up, and never made part of a path."""
    return {path.stem: path for path in FOLDER.glob("*.json")}


def habits_of(device_id: str) -> Habits | None:
    """What is known of the habits on a device; None where nobody looked.

    Raises
    ------
    ModelRejected
        The file is not what was written.
    """
    path = _files().get(device_id)
    return None if path is None else read(path)


@cache
def read(path: Path) -> Habits:
    """Read and check a file.

    Raises
    ------
    ModelRejected
    """
    return read_checked(path, Habits, _fault)


def _fault(habits: Habits) -> str | None:
    """Why a walk may not end at a choice, or a choice is no variant; None where neither is so."""
    size = len(habits.feature)
    if habits.format != FORMAT or habits.features != list(FEATURES):
        return (
            f"its format is {habits.format} with {len(habits.features)} features; allowed: {FORMAT}, today's features"
        )
    if not size or {len(part) for part in (habits.threshold, habits.left, habits.right, habits.choices)} != {size}:
        return "its nodes have parts of several lengths"
    for node, tested in enumerate(habits.feature):
        children = (habits.left[node], habits.right[node])
        is_inner = 0 <= tested < len(FEATURES) and all(node < child < size for child in children)
        is_leaf = (
            tested == _LEAF and habits.choices[node] and set(habits.choices[node]) <= {*range(len(habits.variants))}
        )
        if not (is_inner or is_leaf):
            return f"its node {node} leads nowhere"
    return None
