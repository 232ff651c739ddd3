"""The outline of a model: its nodes, the shapes of its tensors, and only the sizes of its weights."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_NODES: Final = 20_000
"""Most nodes of a model: ten times those of the largest networks in use."""
MAX_TENSORS: Final = 100_000
"""Most tensors of a model."""

Dims = tuple[int | None, ...]
"""A shape; None where a size is unknown."""


class Request(msgspec.Struct, frozen=True):
    """Parameters beside a model: the batch, and the sizes of its symbolic dimensions by name."""

    batch: int
    dims: dict[str, int]


class Node(msgspec.Struct, frozen=True):
    """One operator, with the attributes that a plan needs."""

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
        Shapes of inputs and of nodes' outputs, from shape inference. It checks little, so none of them is trusted.
    weights : dict of str to Dims
        Shapes of tensors that the file contains.
    scalars : dict of str to float
        Values of the tensors that are a single number.
    outputs : tuple of str
        Outputs of the model, and tensors that its branches and loops read.
    inner : tuple of Node
        Convolutions and similar operators within branches and loops.
    written_batch : int or None
        The batch that the model was written for, where the request has another.
    precisions : dict of str to int
        How many convolutions have operands in each precision, by ONNX's names, such as ``FLOAT16``.
    """

    nodes: tuple[Node, ...]
    shapes: dict[str, Dims]
    weights: dict[str, Dims]
    scalars: dict[str, float]
    outputs: tuple[str, ...] = ()
    inner: tuple[Node, ...] = ()
    written_batch: int | None = None
    precisions: dict[str, int] = {}


class Fault(msgspec.Struct, frozen=True):
    """Why a model is refused, with the fields of `InvalidInput`."""

    field: str
    value: str
    allowed: str


class Read(msgspec.Struct, frozen=True):
    """Answer of the reading process: either an outline or a fault."""

    outline: Outline | None = None
    fault: Fault | None = None
