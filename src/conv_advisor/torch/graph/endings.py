"""What follows a convolution in a graph and can end in it: a bias, a residual and an activation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

import torch
from torch.fx import Node

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation, Epilogue
from conv_advisor.torch.nodes import changes_something, kind_of, memory_of, value_of

_aten: Final = torch.ops.aten
_functional: Final = torch.nn.functional


@dataclass(frozen=True)
class Ending:
    """What ends in one convolution.

    Parameters
    ----------
    epilogue : Epilogue
    nodes : tuple of Node
        Those that it stands for, without the convolution; the value of the last is y.
    addition : (Node, int) or None
        The node that adds the residual, and the place of that among its arguments.
    """

    epilogue: Epilogue
    nodes: tuple[Node, ...] = ()
    addition: tuple[Node, int] | None = None

    @property
    def residual(self) -> Any:
        """The node that is added, as the graph has it now; None where none is."""
        if self.addition is None:
            return None
        node, place = self.addition
        return node.args[place]


def ending_of(conv: Node, *, has_bias: bool, taken: Collection[Node] = ()) -> Ending:
    """What follows a convolution, along values that nobody else reads.

    Parameters
    ----------
    conv : Node
    has_bias : bool
        Whether the call itself adds one.
    taken : collection of Node
        Those that end in another convolution.

    Notes
    -----
    The convolution will read its operands where the last node stands. A node on the way that may change one of them
    ends the search: ``y = conv(x); x.relu_(); relu(y + x)`` must read x as it was.
    """
    y, nodes = conv, list[Node]()
    addition: tuple[Node, int] | None = None
    activation = Activation.NONE
    while activation is Activation.NONE:
        gate, user = _next(y)
        if user is None or user in taken or not is_in_place_of(user, conv) or _is_disturbed(y, user):
            break
        if addition is None and (place := _place_of_residual(user, y, conv)) is not None:
            addition = user, place
        elif (activation := _GATED[kind_of(gate)] if gate else activation_of(user, y)) is Activation.NONE:
            break
        nodes += [gate, user] if gate else [user]
        y = user
    return Ending(Epilogue(has_bias, addition is not None, activation), tuple(nodes), addition)


def _next(y: Node) -> tuple[Node | None, Node | None]:
    """(None, the only reader of y), or (a gate of y, y times it) where those two read it; else (None, None)."""
    users = list(y.users)
    if len(users) == 1:
        return None, users[0]
    for gate, product in (users, users[::-1]) if len(users) == 2 else ():
        is_gate = kind_of(gate) in _GATED and gate.all_input_nodes == [y] and list(gate.users) == [product]
        is_product = kind_of(product) == "mul" and set(product.args) == {y, gate} and not product.kwargs
        if is_gate and is_product and not changes_something(gate):
            return gate, product
    return None, None


def activation_of(node: Node, y: Node) -> Activation:
    """The activation that a node computes of y; NONE where it computes another function, or one of another tensor."""
    read_activation = _ACTIVATIONS.get(node.target)
    kwargs = dict(node.kwargs)
    operand = node.args[0] if node.args else kwargs.pop("input", None)
    if read_activation is None or operand is not y:
        return Activation.NONE
    try:
        return read_activation(*node.args[1:], **kwargs)
    except TypeError:  # arguments that it is not known to take
        return Activation.NONE


def _is_disturbed(first: Node, last: Node) -> bool:
    """Whether anything between two nodes may write into a tensor."""
    node = first.next
    while node is not last:
        if changes_something(node):
            return True
        node = node.next
    return False


def _place_of_residual(node: Node, y: Node, conv: Node) -> int | None:
    """Which argument of a node is added to y; None where it does anything else, or writes where others may read."""
    if node.target not in _ADDITIONS or len(node.args) != 2 or any(value != 1 for value in node.kwargs.values()):
        return None
    place = 1 if node.args[0] is y else 0
    other = node.args[place]
    if not isinstance(other, Node) or other is y or not _is_alike(other, conv):
        return None
    return None if place == 0 and changes_something(node) and not _is_read_by_it_alone(other, node) else place


def _is_read_by_it_alone(node: Node, writer: Node) -> bool:
    """Whether the writer alone sees what it writes into a node's memory: then it need not be written at all."""
    memory = memory_of(node)
    if memory is None or node.op in ("placeholder", "get_attr") or list(node.users) != [writer]:
        return False
    return not any(memory_of(earlier) == memory for earlier in _before(writer) if earlier is not node)


def _before(node: Node) -> Iterator[Node]:
    return takewhile(lambda earlier: earlier is not node, node.graph.nodes)


def _is_alike(node: Node, conv: Node) -> bool:
    """Whether a node's value is a tensor of the same shape and precision as the convolution's."""
    value, conv_value = value_of(node), value_of(conv)
    if (
        not isinstance(value, torch.Tensor)
        or not isinstance(conv_value, torch.Tensor)
        or value.dtype != conv_value.dtype
        or value.dim() != conv_value.dim()
    ):
        return False
    return all(bool(size == conv_size) for size, conv_size in zip(value.shape, conv_value.shape, strict=True))


def is_in_place_of(node: Node, conv: Node) -> bool:
    """Whether a node's value may be what the convolution returns: memory laid out in the same way, too."""
    return _is_alike(node, conv) and value_of(node).stride() == value_of(conv).stride()


def _plain(activation: Activation) -> Callable[..., Activation]:
    def read(inplace: bool = False) -> Activation:
        return activation

    return read


def _gelu(approximate: str = "none") -> Activation:
    return {"none": Activation.GELU, "tanh": Activation.GELU_TANH}.get(approximate, Activation.NONE)


def _leaky_relu(negative_slope: float = 0.01, inplace: bool = False) -> Activation:
    return Activation.LEAKY_RELU if negative_slope == LEAKY_SLOPE else Activation.NONE


def _clamp(min: float | None = None, max: float | None = None) -> Activation:  # noqa: A002 - PyTorch's names
    if min != 0:
        return Activation.NONE
    return Activation.RELU if max is None else _hardtanh(0.0, max)


def _hardtanh(min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Activation:
    return Activation.RELU6 if (min_val, max_val) == (0, 6) else Activation.NONE


_ADDITIONS: Final = (operator.add, operator.iadd, torch.add, "add", "add_", _aten.add.Tensor, _aten.add_.Tensor)

_relu, _silu, _sigmoid, _hardswish, _relu6 = map(
    _plain, (Activation.RELU, Activation.SILU, Activation.SIGMOID, Activation.HARDSWISH, Activation.RELU6)
)
_ACTIVATIONS: Final[dict[Any, Callable[..., Activation]]] = {
    **dict.fromkeys((_functional.relu, torch.relu, torch.relu_, "relu", "relu_"), _relu),
    **dict.fromkeys((_aten.relu.default, _aten.relu_.default), _relu),
    **dict.fromkeys((_functional.silu, _aten.silu.default, _aten.silu_.default), _silu),
    **dict.fromkeys((_functional.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_"), _sigmoid),
    **dict.fromkeys((_aten.sigmoid.default, _aten.sigmoid_.default), _sigmoid),
    **dict.fromkeys((_functional.hardswish, _aten.hardswish.default, _aten.hardswish_.default), _hardswish),
    _functional.relu6: _relu6,
    **dict.fromkeys((_functional.hardtanh, _functional.hardtanh_), _hardtanh),
    **dict.fromkeys((_aten.hardtanh.default, _aten.hardtanh_.default), _hardtanh),
    **dict.fromkeys((_functional.leaky_relu, _functional.leaky_relu_), _leaky_relu),
    **dict.fromkeys((_aten.leaky_relu.default, _aten.leaky_relu_.default), _leaky_relu),
    **dict.fromkeys((torch.clamp, torch.clamp_, "clamp", "clamp_"), _clamp),
    **dict.fromkeys((torch.clamp_min, torch.clamp_min_, "clamp_min", "clamp_min_"), _clamp),
    **dict.fromkeys((_aten.clamp.default, _aten.clamp_.default, _aten.clamp_min.default), _clamp),
    **dict.fromkeys((_functional.gelu, _aten.gelu.default), _gelu),
}
"""How the arguments behind y are read, by every way to call an activation that a graph may have."""

_GATED: Final = {"sigmoid": Activation.SILU, "hardsigmoid": Activation.HARDSWISH}
"""What y times a gate of y is, by the kind of the gate."""
