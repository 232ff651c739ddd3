"""Batch norms in a graph, by every name that they have there."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node

_STATISTICS, _AFFINE, _REST = ("mean", "variance"), ("scale", "shift"), ("training", "momentum", "epsilon")
_ORDERS: Final = {
    torch.nn.functional.batch_norm: ("x", *_STATISTICS, *_AFFINE, *_REST),
    torch.ops.aten.batch_norm.default: ("x", *_AFFINE, *_STATISTICS, *_REST, "cudnn_enabled"),
}
_NAMES: Final = {
    **{"input": "x", "running_mean": "mean", "running_var": "variance", "weight": "scale", "bias": "shift"},
    "eps": "epsilon",
}
"""What PyTorch calls its arguments where they are given by name."""


class BatchNorm(NamedTuple):
    """What one batch norm is given: nodes, None, or numbers."""

    x: Any
    mean: Any
    variance: Any
    scale: Any = None
    shift: Any = None
    training: Any = False
    momentum: Any = 0.1
    epsilon: Any = 1e-5
    cudnn_enabled: Any = True

    @property
    def written(self) -> tuple[Any, ...]:
        """The statistics that it writes into; none where it only reads them."""
        return () if self.training is False else (self.mean, self.variance)


def batch_norm_of(node: Node) -> BatchNorm | None:
    """What a node that is a batch norm is given; None where it is something else."""
    order = _ORDERS.get(node.target) if node.op == "call_function" else None
    if order is None:
        return None
    named = {_NAMES.get(name, name): value for name, value in node.kwargs.items()}
    return BatchNorm(**dict(zip(order, node.args, strict=False)), **named)
