"""What others run by habit on a device: the choice of cuDNN's heuristic A as a small tree, and PyTorch's modes."""

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
"""Where picks are kept, the name of the heuristic that is followed: its first plan is what PyTorch's default runs."""

FORMAT: Final = 2

_LEAF: Final = -1


class Habits(msgspec.Struct, frozen=True):
    """What cuDNN's heuristic A and PyTorch, as it comes and tuned, run on a device, where they are not asked.

    Attributes
    ----------
    format : int
    device_id : str
    software : str
        Under which both were asked.
    features : list of str
        `models.features.FEATURES`, or the tree is of other features.
    variants : list of str
    feature, threshold, left, right : lists
        The tree's nodes; the feature of a leaf is -1.
    choices : list of list of int
        By node: at a leaf the variants that the heuristic chose there, the most frequent first.
    n_asked : int
        Problems that the heuristic was asked about.
    share_right, share_near : float
        Of problems whose layers were held out: where the tree names the heuristic's choice, and where what it names
        takes within 5 % as long.
    n_beside : int
        Problems that PyTorch was timed on beside the heuristic's choice, without those of its own depthwise kernel.
    share_beside : float
        Of these: where PyTorch took within 5 % as long.
    n_tuned : int
        Problems that PyTorch was timed on with ``cudnn.benchmark``, and cuDNN's engines too.
    share_tuned : float
        Of these: where the fastest engine, each by the first plan that the heuristics offer, took within 5 % as long.
    tuned_ratio : float
        What PyTorch took over what that engine took, the geometric mean.
    default_ms, tuned_ms : dict of str to float
        What PyTorch's default took, and PyTorch with ``cudnn.benchmark``, by problem key.

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
            Of `FEATURES`.
        """
        node = 0
        while (tested := self.feature[node]) != _LEAF:
            node = self.left[node] if values[tested] <= self.threshold[node] else self.right[node]
        return [self.variants[place] for place in self.choices[node]]


@cache
def _files() -> dict[str, Path]:
    """What ships, by device: an id is looked up, and never made part of a path."""
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


def _fault(found: Habits) -> str | None:
    """What keeps a walk from ending at a choice, or a choice from being one."""
    size = len(found.feature)
    if found.format != FORMAT or found.features != list(FEATURES):
        return f"its format is {found.format} with {len(found.features)} features; allowed: {FORMAT}, today's features"
    if not size or {len(part) for part in (found.threshold, found.left, found.right, found.choices)} != {size}:
        return "its nodes have parts of several lengths"
    for node, tested in enumerate(found.feature):
        children = (found.left[node], found.right[node])
        is_inner = 0 <= tested < len(FEATURES) and all(node < child < size for child in children)
        is_leaf = tested == _LEAF and found.choices[node] and set(found.choices[node]) <= {*range(len(found.variants))}
        if not (is_inner or is_leaf):
            return f"its node {node} leads nowhere"
    return None
