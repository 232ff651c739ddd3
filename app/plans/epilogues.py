"""The epilogue of each convolution of a model: batch norm, bias, residual and activation that can be fused to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isclose, prod, sqrt
from typing import Final

from conv_advisor.app.plans.outline import Node, Outline
from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation, Epilogue


@dataclass(frozen=True, slots=True)
class Fused:
    """A convolution with its fused epilogue.

    Parameters
    ----------
    epilogue : Epilogue
        A batch norm counts as a bias: its scale goes into the weight.
    tensor : str
        Output of the fused operator.
    residual : str
        The tensor that the epilogue adds; empty where there is none.
    places : tuple of int
        Indices of the nodes that are fused into the convolution.
    """

    epilogue: Epilogue
    tensor: str
    residual: str = ""
    places: tuple[int, ...] = ()


_Follower = tuple[Activation, str, tuple[int, ...]]


class Epilogues:
    """Finds the epilogue of a convolution, along tensors that have no other reader.

    Parameters
    ----------
    outline : Outline
    """

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._nodes = outline.nodes
        self._readers: dict[str, list[int]] = {}
        self._maker = {name: index for index, node in enumerate(outline.nodes) for name in node.outputs}
        for index, node in enumerate(outline.nodes):
            for name in dict.fromkeys(node.inputs):
                self._readers.setdefault(name, []).append(index)

    def of(self, place: int) -> Fused:
        """The fused form of the convolution at a place among the nodes."""
        conv = self._nodes[place]
        fused = Fused(Epilogue(bias=len(conv.inputs) > 2 and conv.inputs[2] != ""), conv.outputs[0])
        for step in (self._norm, self._bias, self._residual):
            fused = step(fused, place)
        activation, tensor, places = self._activation(fused.tensor)
        return replace(
            fused,
            epilogue=replace(fused.epilogue, activation=activation),
            tensor=tensor,
            places=fused.places + places,
        )

    def _norm(self, fused: Fused, _place: int) -> Fused:
        """Fuse a batch norm for inference."""
        place = self._only_reader(fused.tensor)
        if place is None:
            return fused
        node = self._nodes[place]
        is_norm = node.kind == "BatchNormalization" and node.inputs[0] == fused.tensor and len(node.outputs) == 1
        if not is_norm or any(node.numbers.get("training_mode", (0.0,))):
            return fused
        return replace(fused, epilogue=Epilogue(bias=True), tensor=node.outputs[0], places=(*fused.places, place))

    def _bias(self, fused: Fused, _place: int) -> Fused:
        """Fuse a constant for each channel that a separate node adds."""
        for place, other in self._added(fused.tensor):
            dims, output_dims = self._outline.weights.get(other), self._outline.shapes.get(fused.tensor)
            is_bias = dims is not None and output_dims is not None and len(output_dims) == 4 and len(dims) in (3, 4)
            if is_bias and dims and output_dims and dims[-3] == prod(size or 0 for size in dims) == output_dims[1]:
                tensor = self._nodes[place].outputs[0]
                return replace(fused, epilogue=Epilogue(bias=True), tensor=tensor, places=(*fused.places, place))
        return fused

    def _residual(self, fused: Fused, conv: int) -> Fused:
        """Fuse the addition of a tensor of the same shape that exists before the convolution runs."""
        for place, other in self._added(fused.tensor):
            shapes = self._outline.shapes
            is_same = shapes.get(other) == shapes.get(fused.tensor) and None not in shapes.get(other, (None,))
            if is_same and other not in self._outline.weights and self._maker.get(other, -1) < conv:
                epilogue = replace(fused.epilogue, residual=True)
                tensor = self._nodes[place].outputs[0]
                return Fused(epilogue, tensor, other, (*fused.places, place))
        return fused

    def _added(self, tensor: str) -> Iterator[tuple[int, str]]:
        """The addition that is the only reader of a tensor, and the other operand."""
        place = self._only_reader(tensor)
        if place is None:
            return
        node = self._nodes[place]
        if node.kind == "Add" and len(node.inputs) == 2 and node.inputs[0] != node.inputs[1]:
            yield place, node.inputs[1] if node.inputs[0] == tensor else node.inputs[0]

    def _activation(self, tensor: str) -> _Follower:
        """The activation after a tensor, its output, and its nodes."""
        readers = self._inner_readers(tensor)
        if len(readers) == 1:
            node = self._nodes[readers[0]]
            activation = self._single(node)
            if activation is not Activation.NONE:
                return activation, node.outputs[0], (readers[0],)
        return self._gate(tensor, readers) or self._gelu(tensor, readers) or (Activation.NONE, tensor, ())

    def _single(self, node: Node) -> Activation:
        """The activation that one node computes."""
        if node.kind in _SINGLE:
            return _SINGLE[node.kind]
        if node.kind == "LeakyRelu" and _is(node.numbers.get("alpha", (LEAKY_SLOPE,))[0], LEAKY_SLOPE):
            return Activation.LEAKY_RELU
        if node.kind == "Gelu":
            approximation = node.words.get("approximate", "none")
            return {"none": Activation.GELU, "tanh": Activation.GELU_TANH}.get(approximation, Activation.NONE)
        if node.kind == "Clip" and self._bounds(node) == (0.0, 6.0):
            return Activation.RELU6
        return Activation.NONE

    def _bounds(self, node: Node) -> tuple[float | None, float | None]:
        """The bounds of a Clip: from inputs, before opset 11 from attributes."""
        inputs = [self._outline.scalars.get(name) for name in (*node.inputs[1:], "", "")[:2]]
        least, most = (node.numbers.get(name, (None,))[0] for name in ("min", "max"))
        return (least if inputs[0] is None else inputs[0], most if inputs[1] is None else inputs[1])

    def _gate(self, tensor: str, readers: Sequence[int]) -> _Follower | None:
        """``x · sigmoid(x)``, or ``x · hardsigmoid(x)``, in two nodes."""
        if len(readers) != 2:
            return None
        gate, product = (self._nodes[place] for place in readers)
        activation = {"Sigmoid": Activation.SILU, "HardSigmoid": Activation.HARDSWISH}.get(gate.kind)
        if activation is None or self._only_reader(gate.outputs[0]) != readers[1]:
            return None
        slope, offset = (gate.numbers.get(name, (default,))[0] for name, default in (("alpha", 0.2), ("beta", 0.5)))
        if activation is Activation.HARDSWISH and not (_is(slope, 1 / 6) and _is(offset, 0.5)):
            return None
        if product.kind != "Mul" or {*product.inputs} != {tensor, gate.outputs[0]}:
            return None
        return activation, product.outputs[0], tuple(readers)

    def _gelu(self, tensor: str, readers: Sequence[int]) -> _Follower | None:
        """``x · (1 + erf(x / √2)) · ½``, in five nodes."""
        if len(readers) != 2:
            return None
        places, current = [readers[0]], readers[0]
        for kind, constant in _GELU:
            node = self._nodes[current]
            if node.kind != kind or not self._has(node, constant):
                return None
            following = self._only_reader(node.outputs[0])
            if following is None:
                return None
            places.append(current := following)
        product = self._nodes[current]
        last = self._only_reader(product.outputs[0])
        if product.kind != "Mul" or tensor not in product.inputs or current != readers[1] or last is None:
            return None
        half = self._nodes[last]
        if half.kind != "Mul" or not self._has(half, 0.5):
            return None
        return Activation.GELU, half.outputs[0], (*places, last)

    def _has(self, node: Node, constant: float | None) -> bool:
        """Whether one of a node's inputs is this constant; true for None."""
        return constant is None or any(_is(self._outline.scalars.get(name), constant) for name in node.inputs)

    def _only_reader(self, tensor: str) -> int | None:
        readers = self._inner_readers(tensor)
        return readers[0] if len(readers) == 1 else None

    def _inner_readers(self, tensor: str) -> list[int]:
        """The nodes that read a tensor; none for an output of the network, which cannot be fused away."""
        return [] if tensor in self._outline.outputs else self._readers.get(tensor, [])


_SINGLE: Final = {"Relu": Activation.RELU, "Sigmoid": Activation.SIGMOID, "HardSwish": Activation.HARDSWISH}
_GELU: Final = (("Div", sqrt(2)), ("Erf", None), ("Add", 1.0))


def _is(value: float | None, expected: float) -> bool:
    """Whether a constant of a model is the expected one, up to the rounding of half precision."""
    return value is not None and isclose(value, expected, rel_tol=1e-3)
