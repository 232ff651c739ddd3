"""Tensors that a graph computes from parameters and buffers alone: the same at each call until one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from conv_advisor.torch.graph.batch_norms import batch_norm_of
from conv_advisor.torch.nodes import changes_something, is_pytorchs, kind_of, memory_of, value_of, written_by

_COMPUTED: Final = frozenset(
    (
        *("abs", "add", "clamp", "clamp_max", "clamp_min", "div", "exp", "log", "maximum", "minimum", "mul", "neg"),
        *("pow", "reciprocal", "relu", "rsqrt", "sigmoid", "softplus", "sqrt", "square", "sub", "tanh", "truediv"),
        *("cat", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "flip", "getitem", "permute"),
        *("reshape", "reshape_as", "select", "slice", "squeeze", "stack", "transpose", "unsqueeze", "view", "view_as"),
        *("_to_copy", "bfloat16", "float", "half", "to", "type_as", "_weight_norm", "normalize", "norm_except_dim"),
        *("amax", "amin", "linalg_vector_norm", "mean", "norm", "std", "std_mean", "sum", "var", "var_mean"),
        *("vector_norm", "dot", "matmul", "mm", "mv", "vdot"),
    )
)
"""Kinds of operators whose values may be constants: nothing random, and nothing that does more than return."""
_READERS: Final = _COMPUTED | {"addcmul", "conv2d"}
_NO_NEIGHBOURS: Final[Mapping[Node, Sequence[Node]]] = MappingProxyType({})
_CASTS: Final = frozenset(("bfloat16", "float", "half"))


@dataclass(frozen=True, eq=False)
class Given:
    """A parameter or buffer of a graph.

    Parameters
    ----------
    place : int
        Among the graph's inputs.
    """

    place: int

    @property
    def places(self) -> frozenset[int]:
        """Its own place."""
        return frozenset((self.place,))

    def value(self, inputs: Sequence[Any], known: dict[Any, Any]) -> Any:
        """The parameter or buffer itself, in float32."""
        return inputs[self.place].detach().float()


@dataclass(frozen=True, eq=False)
class Computed:
    """What a function returns for constants: computed outside the graph, in float32.

    Parameters
    ----------
    function : callable
    args : tuple
        Constants, numbers, and tuples and lists of them.
    kwargs : mapping
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def places(self) -> frozenset[int]:
        """The places, among a graph's inputs, of all that it is computed from."""
        places = set[int]()

        def add(operand: Any) -> Any:
            places.update(operand.places if isinstance(operand, Given | Computed) else ())
            return operand

        map_aggregate((self.args, dict(self.kwargs)), add)
        return frozenset(places)

    def value(self, inputs: Sequence[Any], known: dict[Any, Any]) -> Any:
        """Its value for these inputs; `known` keeps all that is computed on the way."""
        if self not in known:
            args, kwargs = map_aggregate(
                (self.args, dict(self.kwargs)),
                lambda operand: operand.value(inputs, known) if isinstance(operand, Given | Computed) else operand,
            )
            known[self] = self.function(*args, **kwargs)
        return known[self]


Constant = Given | Computed


class _NotConstantError(Exception):
    """A node takes something that may differ between calls."""


class Constants:
    """The constants of one graph.

    Parameters
    ----------
    sources : mapping of Node to int
        The inputs that are parameters or buffers whose changes are counted, and their places among all inputs. An input
        that the graph itself may write into is no constant even so.
    neighbours : mapping of Node to sequence of Node
        The other inputs in the same memory as an input: what writes into one of them writes into this one.
    """

    def __init__(self, sources: Mapping[Node, int], neighbours: Mapping[Node, Sequence[Node]] = _NO_NEIGHBOURS) -> None:
        self._sources, self._neighbours = sources, neighbours
        self._left_alone: dict[Node, bool] = {}
        self._known: dict[tuple[Node, Any, Any], Constant | None] = {}

    def constant_of(self, node: Node, like: Any) -> Constant | None:
        """The constant that a node's value is; None where it may differ between calls.

        Parameters
        ----------
        node : Node
        like : tensor
            The tensor that it goes into. Where that is less precise than float32, steps of the same precision may be
            computed in float32; a value with any other precision on the way, or on another device, is no constant.
        """
        key = node, like.dtype, like.device
        if key not in self._known:
            self._known[key] = self._constant_of(node, like)
        return self._known[key]

    def _constant_of(self, node: Node, like: Any) -> Constant | None:
        value = value_of(node)
        values = value if isinstance(value, tuple | list) else (value,)
        if not all(isinstance(tensor, torch.Tensor) and _suits(tensor, like) for tensor in values):
            return None
        if node in self._sources:
            return Given(self._sources[node]) if self._is_left_alone(node) else None
        return self._computed(node, like) if _is_computed(node) else None

    def _computed(self, node: Node, like: Any) -> Computed | None:
        if kind_of(node) == "view" and any(isinstance(argument, torch.dtype) for argument in node.args):
            return None  # it reads the same bits as another type
        try:
            args, kwargs = map_aggregate((node.args, node.kwargs), lambda operand: self._operand(operand, like))
        except _NotConstantError:
            return None
        return Computed(_function_of(node), args, kwargs)

    def _operand(self, operand: Any, like: Any) -> Any:
        """The constant, number or precision with which a function is called in the place of one operand."""
        if isinstance(operand, torch.dtype):
            return torch.float32
        if not isinstance(operand, Node):
            return operand
        number = number_of(operand)
        constant = self.constant_of(operand, like) if number is None else number
        if constant is None:
            raise _NotConstantError
        return constant

    def _is_left_alone(self, node: Node) -> bool:
        """Whether nothing in the graph may write into a node's memory, this way or through a view or another input."""
        if node not in self._left_alone:
            here = (node, *self._neighbours.get(node, ()))
            self._left_alone[node] = all(self._is_read(name, user) for name in here for user in name.users)
        return self._left_alone[node]

    def _is_read(self, node: Node, user: Node) -> bool:
        if user.op == "output":
            return True
        norm = batch_norm_of(user)
        if norm is not None:
            return node not in norm.written
        if kind_of(user) not in _READERS or not is_pytorchs(user):
            return False
        if changes_something(user) and node in written_by(user):
            return False
        return memory_of(user) != memory_of(node) or self._is_left_alone(user)


def number_of(operand: Any) -> float | None:
    """The number that an operand is, where it is known before the graph runs; else None.

    A symbolic number counts as unknown: to read its value would have the graph compiled again for each.
    """
    value = value_of(operand) if isinstance(operand, Node) else operand
    is_known = type(value) in (int, float) or (isinstance(value, torch.SymFloat) and value.node.expr.is_number)
    return float(value) if is_known else None


def erase_unread(nodes: Iterable[Node | None]) -> None:
    """Erase nodes that were constants, and what they were computed from, where nobody reads them any more."""
    for node in nodes:
        if node is not None and not node.users and not node._erased and _is_computed(node):
            operands = node.all_input_nodes
            node.graph.erase_node(node)
            erase_unread(operands)


def _suits(value: Any, like: Any) -> bool:
    return value.dtype in (torch.float32, like.dtype) and value.device == like.device


def _is_computed(node: Node) -> bool:
    """Whether a node does nothing but compute a value, which is always the same for the same inputs."""
    norm = batch_norm_of(node)
    if norm is not None:  # one that standardises a weight by its own statistics
        return norm.training is False or (norm.mean is None and norm.variance is None)
    is_call = node.op in ("call_function", "call_method")
    return is_call and kind_of(node) in _COMPUTED and is_pytorchs(node) and not changes_something(node)


def _function_of(node: Node) -> Callable[..., Any]:
    kind = kind_of(node)
    name = "float" if kind in _CASTS else node.target
    function: Callable[..., Any] = getattr(torch.Tensor, name) if isinstance(name, str) else name
    return function
