"""Whether enough was measured on a device to train its tree: what a request for one is told before any work is done."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Final

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem

HOLD_OUT_PARTS: Final = 5
"""One of so many parts of the layers is held out to judge a retrained tree."""
MIN_PROBLEMS: Final = 20
"""Fewer measured problems make no tree."""
ENOUGH_MEASURED: Final = 40
"""Measured problems of as many layers, of which enough are nearly always left to train on: what people are told."""


def check_enough(measured: Iterable[ConvProblem], device_id: str) -> None:
    """Refuse to train a tree on too little.

    Parameters
    ----------
    measured : iterable of ConvProblem
        All that were measured on the device, as its user counts them; taken until they are enough.
    device_id : str

    Raises
    ------
    NotEnoughData
    """
    never, layers = held_out_layers(), list[ConvProblem]()
    n_measured, n_left, has_judge = 0, 0, False
    for problem in measured:
        n_measured += 1
        if (layer := problem.layer) in never:
            continue
        layers.append(layer)
        is_judge = _judges(layer)
        has_judge |= is_judge
        n_left += teaches(layer) and not is_judge
        if has_judge and n_left >= MIN_PROBLEMS:
            return
    if layers and not has_judge:
        held_out = held_out_of(layers)
        n_left = sum(layer not in held_out and teaches(layer) for layer in layers)
    if n_left < MIN_PROBLEMS:
        raise NotEnoughData(
            f"device {device_id}: {counted(n_measured, 'problem was', 'problems were')} measured, and"
            f" {counted(n_left, 'is', 'are')} left to train on beside the layers that judge; allowed: at least"
            f" {MIN_PROBLEMS} left, for which about {ENOUGH_MEASURED} are measured"
        )


def teaches(problem: ConvProblem) -> bool:
    """Whether a layer is of a kind that networks have.

    One filter over a whole plane, as in the experiments on FFT, is not: there FFT and the plainest kernels win, and a
    tree that learned so advised them for the first layers of networks, up to 28 times too slow.
    """
    return problem.gemm_n > 1 or problem.groups > 1


def held_out_of(layers: Collection[ConvProblem]) -> set[ConvProblem]:
    """The layers that judge a retrained tree: the ones whose hash says so, and one at least."""
    return {layer for layer in layers if _judges(layer)} or {min(layers, key=_digest)}


def _judges(layer: ConvProblem) -> bool:
    return _digest(layer) % HOLD_OUT_PARTS == 0


def _digest(layer: ConvProblem) -> int:
    return int.from_bytes(hashlib.sha256(layer.key.encode()).digest()[:8], "big")
