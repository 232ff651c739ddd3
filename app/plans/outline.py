"""What is read of a model: its nodes, the shapes of its tensors, and nothing of its weights but their sizes."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_NODES: Final = 20_000
"""Nodes of a model: ten times those of the largest networks that are run."""
MAX_TENSORS: Final = 100_000
"""Tensors that a model names."""

Dims = tuple[int | None, ...]
"""A shape; None where a size is unknown."""


class Request(msgspec.Struct, frozen=True):
    """What goes with a model: the batch, and sizes for its symbolic dimensions by their names."""

    batch: int
    dims: dict[str, int]


class Node(msgspec.Struct, frozen=True):
    """One operator, with those of its attributes that a plan asks for."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: dict[str, tuple[float, ...]] = {}
    words: dict[str, str] = {}
    has_graph: bool = False


class Outline(msgspec.Struct, frozen=True):
    """A model without its weights.

    Attributes
    ----------
    nodes : tuple of Node
    shapes : dict of str to Dims
        Of inputs and of what nodes make, as shape inference has them: it checks little, so nothing of it is trusted.
    weights : dict of str to Dims
        Of tensors that the file holds.
    scalars : dict of str to float
        The values of those that are a single number.
    outputs : tuple of str
        Tensors that the model answers, and those that its branches and loops read.
    inner : tuple of Node
        Convolutions and their like within branches and loops.
    written_batch : int or None
        The batch that the model was written for, where that is another than was asked for.
    """

    nodes: tuple[Node, ...]
    shapes: dict[str, Dims]
    weights: dict[str, Dims]
    scalars: dict[str, float]
    outputs: tuple[str, ...] = ()
    inner: tuple[Node, ...] = ()
    written_batch: int | None = None


class Fault(msgspec.Struct, frozen=True):
    """Why a model is refused, as `InvalidInput` has it."""

    field: str
    value: str
    allowed: str


class Read(msgspec.Struct, frozen=True):
    """What the reading process answers: one of both."""

    outline: Outline | None = None
    fault: Fault | None = None
