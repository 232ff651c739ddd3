"""Costs of epilogues, fitted to times of the same variant on the same layer with an epilogue and without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from conv_advisor.models.endings import KINDS, LEAST_SHARE, Cost, Work

LEAST_TIMES: Final = 8
"""Of fewer times no cost is fitted."""
_OUTLIER: Final = 3.0
"""Standard deviations, by the median absolute deviation, beyond which a time does not count in the second fit."""
_MAD_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True)
class Pair:
    """One variant, or PyTorch, on one layer.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    work : Work
        What the epilogue adds.
    alone_ms : float
        The time without it.
    ended_ms : float or None
        The time with it; None where it does not run so.
    """

    kind: str
    work: Work
    alone_ms: float
    ended_ms: float | None


def fit(pairs: Iterable[Pair]) -> dict[str, Cost]:
    """The cost of each kind that enough is known of."""
    by_kind: dict[str, list[Pair]] = {kind: [] for kind in KINDS}
    for pair in pairs:
        by_kind[pair.kind].append(pair)
    return {kind: cost for kind, mine in by_kind.items() if (cost := _cost(mine))}


def errors(pairs: Iterable[Pair], costs: Mapping[str, Cost]) -> dict[str, list[float]]:
    """log(time predicted / time with the epilogue), by kind."""
    found: dict[str, list[float]] = {}
    for pair in pairs:
        if pair.ended_ms is not None and pair.kind in costs:
            predicted_ms = costs[pair.kind].time_ms(pair.alone_ms, pair.work)
            found.setdefault(pair.kind, []).append(float(np.log(predicted_ms / pair.ended_ms)))
    return found


def _cost(pairs: Sequence[Pair]) -> Cost | None:
    """The cost of one kind; of one that never ran so, that it does not."""
    timed = [pair for pair in pairs if pair.ended_ms is not None]
    if len(pairs) < LEAST_TIMES:
        return None
    share = len(timed) / len(pairs)
    if len(timed) < LEAST_TIMES:
        return Cost(1.0, 0.0, 0.0, 0.0, share, len(timed)) if share < LEAST_SHARE else None
    alone_ms, ended_ms = (np.array([getattr(pair, name) for pair in timed]) for name in ("alone_ms", "ended_ms"))
    columns = np.stack([alone_ms, *np.array([pair.work for pair in timed], float).T], axis=1)
    prices = _prices(columns, ended_ms)
    off = _off(columns, ended_ms, prices)
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(off - np.median(off))))
    near = np.abs(off - np.median(off)) <= max(_OUTLIER * sigma, 1e-9)
    prices = _prices(columns[near], ended_ms[near])
    spread = float(np.sqrt(np.mean(_off(columns, ended_ms, prices)[near] ** 2)))
    return Cost(1 + float(prices[0]), float(prices[1]), float(prices[2]), spread, share, len(timed))


def _off(columns: np.ndarray, ended_ms: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """log(predicted / measured), float64 array of shape (N,)."""
    off: np.ndarray = np.log((columns[:, 0] + columns @ prices) / ended_ms)
    return off


def _prices(columns: np.ndarray, ended_ms: np.ndarray) -> np.ndarray:
    """Prices of the columns, none negative, by least squares of relative errors of what the first column lacks.

    With three columns every set of those that cost anything is tried, so the best there is is found.
    """
    matrix = columns / ended_ms[:, None]
    target = 1.0 - columns[:, 0] / ended_ms
    best, least = np.zeros(columns.shape[1]), float(np.sum(target**2))
    used = [column for column in range(columns.shape[1]) if matrix[:, column].any()]
    for count in range(1, len(used) + 1):
        for chosen in combinations(used, count):
            scaled = np.abs(matrix[:, chosen]).max(axis=0)  # bytes are large numbers, kernels small ones
            solved, _, _, _ = np.linalg.lstsq(matrix[:, chosen] / scaled, target, rcond=None)
            if (solved < 0).any():
                continue
            rest = float(np.sum((matrix[:, chosen] / scaled @ solved - target) ** 2))
            if rest < least:
                best, least = np.zeros(columns.shape[1]), rest
                best[list(chosen)] = solved / scaled
    return best
