"""Whether enough was measured on a device to train its tree: checked on a request for one, before any work is done."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from itertools import islice
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
"""Measured problems, each of another layer, that nearly always leave enough to train on: the number people are told."""


def check_enough(measured: Iterable[ConvProblem], device_id: str) -> None:
    """Refuse to train a tree on too little.

    Parameters
    ----------
    measured : iterable of ConvProblem
        All problems that were measured on the device, as its user counts them; read until they are enough.
    device_id : str

    Raises
    ------
    NotEnoughData
    """
    never, n_measured, layers = held_out_layers(), 0, list[ConvProblem]()
    rest = iter(measured)
    while chunk := list(islice(rest, ENOUGH_MEASURED)):
        n_measured += len(chunk)
        layers += [layer for problem in chunk if (layer := problem.layer) not in never]
        if _n_left(layers) >= MIN_PROBLEMS:
            return
    raise NotEnoughData(
        f"device {device_id}: {counted(n_measured, 'problem was', 'problems were')} measured, and"
        f" {counted(_n_left(layers), 'is', 'are')} left to train on beside the layers that judge; allowed: at least"
        f" {MIN_PROBLEMS} left, for which about {ENOUGH_MEASURED} are measured"
    )


def _n_left(layers: Collection[ConvProblem]) -> int:
    """How many layers are left to train on beside those that judge; never fewer where there are more layers."""
    held_out = held_out_of(layers) if layers else set()
    return sum(layer not in held_out and teaches(layer) for layer in layers)


def teaches(problem: ConvProblem) -> bool:
    """Whether a layer is of a kind that networks have.

    One filter over a whole plane, as in the experiments on FFT, is not: there FFT and the plainest kernels win, and a
    tree trained on such layers advised them for the first layers of networks, up to 28 times too slow.
    """
    return problem.gemm_n > 1 or problem.groups > 1


def held_out_of(layers: Collection[ConvProblem]) -> set[ConvProblem]:
    """The layers that judge a retrained tree: the ones whose hash says so, and one at least."""
    return {layer for layer in layers if _judges(layer)} or {min(layers, key=_digest)}


def _judges(layer: ConvProblem) -> bool:
    return _digest(layer) % HOLD_OUT_PARTS == 0


def _digest(layer: ConvProblem) -> int:
    return int.from_bytes(hashlib.sha256(layer.key.encode()).digest()[:8], "big")
