"""What is said of layers that stay PyTorch's own, each at most once."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

log: Final = logging.getLogger("conv_advisor.torch")

_layers: Final[dict[str, str]] = {}
"""The layer that a plan was first made for."""
_warned: Final[set[str]] = set()


def remember_layer(plan: str, layer: str) -> None:
    """Remember the layer that a warning of this plan's failure names."""
    _layers.setdefault(plan, layer)


def layer_of_plan(plan: str) -> str:
    """The layer that was remembered for a plan."""
    return _layers.get(plan, "a convolution")


def warn_of_failure(plan: str, error: Exception) -> None:
    """Warn once of a layer whose variants failed: none of them runs it from now on."""
    if plan in _warned:
        return
    _warned.add(plan)
    name = type(error).__name__
    log.warning("variants of %s (%s) failed and are not used: %s: %s", layer_of_plan(plan), plan, name, error)


def tell(outcomes: Iterable[tuple[str, str]]) -> None:
    """Say of each layer what became of it, at level info."""
    for layer, outcome in outcomes:
        log.info("%s: %s", layer, outcome)
