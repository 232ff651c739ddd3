"""How to train: what a tree is allowed, and the teacher that it learns from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How much work training does, and how large a tree it grows; the defaults are those of the trees that ship.

    Parameters
    ----------
    n_sampled : int
        Made-up problems for each dtype and layout, at the most.
    max_leaves : int
        Mean number of leaves of a dtype and layout: those where splits gain more have more.
    min_samples_leaf : int
    measured_weight : float
        What a measured problem counts, against 1 for a made-up one.
    best_weight : float
        What the spread of the best times counts in choosing a split, against 1 for the cost of one variant.
    least_gain : float
        A leaf of the ranking is split further, for the time alone, where a split takes this much off the variance of
        the log of the best time over all problems.
    n_trees : int
        Randomised trees of the teacher.
    n_rounds : int
        Rounds of boosting the teacher, for the time of each variant; 0 leaves all to the randomised trees.
    """

    n_sampled: int = 60_000
    max_leaves: int = 1000
    min_samples_leaf: int = 3
    measured_weight: float = 3.0
    best_weight: float = 0.05
    least_gain: float = 3e-7
    n_trees: int = 15
    n_rounds: int = 35
