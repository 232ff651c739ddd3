"""Ties: times that cannot be told apart are levelled, so workspace, determinism and accuracy decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from conv_advisor.models.costs import is_tied

SHARE_OF_SPREAD: Final = 0.05
"""Predictions closer than this share of their spread are level.

On 8,128 problems of layers held out from training, choosing by workspace among those within a twentieth of the spread
was no slower than choosing by time alone (geometric mean 1.028, 95th percentile 1.18, both times), and the advised
variant took no workspace in 54 % of them instead of 52 %. Within a tenth it was 1.030 and 1.19, within a quarter 1.034
and 1.21, for 55 and 57 %.
"""


def level(log_slowdown: Sequence[float], spread: float) -> list[float]:
    """Put predictions level with the fastest that they cannot be told apart from.

    Parameters
    ----------
    log_slowdown : sequence of float
        What is predicted of each variant at one leaf.
    spread : float
        Their standard error.

    Returns
    -------
    list of float
        In the same order. Groups begin with the fastest, so that no prediction moves by more than the band.
    """
    levelled = list(log_slowdown)
    for place, leader in levels(log_slowdown, spread):
        levelled[place] = leader
    return levelled


def levels(log_slowdown: Sequence[float], spread: float) -> Iterator[tuple[int, float]]:
    """What `level` gives, place by place, the fastest first."""
    leader, band = float("-inf"), SHARE_OF_SPREAD * spread
    for place in sorted(range(len(log_slowdown)), key=log_slowdown.__getitem__):
        if log_slowdown[place] - leader > band:
            leader = log_slowdown[place]
        yield place, leader


def level_ms(times: Sequence[tuple[float, float | None]]) -> list[float]:
    """The time that each variant of a ranking counts as: measured ones level with the fastest of their group.

    Parameters
    ----------
    times : sequence of (float, float or None)
        Time in ms, and its relative standard error; None of a predicted time, which `level` has put level with its
        like. An error of 1 or more is that of a single launch, which says only that the variant is far behind.

    Returns
    -------
    list of float
        In the same order; equal for any two variants of one group, so ties break no order.
    """
    levelled = [time_ms for time_ms, _ in times]
    measured = [(time_ms, noise, place) for place, (time_ms, noise) in enumerate(times) if noise is not None]
    leader_ms, leader_noise = 0.0, 1.0
    for time_ms, noise, place in sorted(measured):
        is_single = max(noise, leader_noise) >= 1
        if is_single or not is_tied(time_ms, noise, leader_ms, leader_noise):
            leader_ms, leader_noise = time_ms, noise
        levelled[place] = leader_ms
    return levelled
