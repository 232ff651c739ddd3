"""A graph in the form that all else reads: identities are gone, and what core ATen took apart is whole again."""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from conv_advisor.torch.nodes import kind_of, value_of

_aten: Final = torch.ops.aten
_DROPOUTS: Final = frozenset(
    ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
"""Kinds of operators that take x, a probability, and whether to drop anything."""
_WRAPPERS: Final = {"tag_activation_checkpoint": 0, "wrap_with_set_grad_enabled": 1}
"""Operators that do nothing but run a graph where no gradients are recorded, and which argument the graph is."""


def normalize(gm: GraphModule) -> None:
    """Bring a graph of Dynamo, or of an exported program, into the form that all else reads, in place.

    The graph within a checkpoint or ``torch.no_grad`` takes the place of its call: no gradients are recorded.
    Dropout in evaluation goes: it returns its input, and would stand between a convolution and what follows it.
    ``aten.convolution`` and the batch norm of core ATen, which ``run_decompositions`` leaves, become ``aten.conv2d``
    and ``aten.batch_norm``.
    """
    _unwrap(gm)
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            continue
        if _is_idle_dropout(node):
            _replace(gm, node, node.all_input_nodes[0])
        elif node.target is _aten.convolution.default:
            _make_conv2d(node)
        elif node.target is operator.getitem and node.args[1] == 0:
            _make_batch_norm(gm, node)


def _unwrap(gm: GraphModule) -> None:
    """Replace operators that do nothing but run a graph by that graph, the innermost first."""
    for node in list(gm.graph.nodes):
        place = _WRAPPERS.get(kind_of(node)) if isinstance(node.target, torch._ops.HigherOrderOperator) else None
        if place is None or (place and node.args[0] is not False):
            continue
        inner = getattr(gm, str(node.args[place].target))
        _unwrap(inner)
        is_closed = all(inner_node.op != "get_attr" for inner_node in inner.graph.nodes)
        if is_closed and all(taker.target is operator.getitem for taker in node.users):
            _put_in_place(gm, node, place, inner.graph)


def _put_in_place(gm: GraphModule, node: Node, place: int, inner: Graph) -> None:
    placeholders = [inner_node for inner_node in inner.nodes if inner_node.op == "placeholder"]
    body, *operands = node.args[place:]
    values = dict(zip(placeholders, operands, strict=True))
    with gm.graph.inserting_before(node):
        returned: Any = gm.graph.graph_copy(inner, values)
    for taker in list(node.users):
        _replace(gm, taker, returned[taker.args[1]])
    gm.graph.erase_node(node)
    if not body.users:
        gm.graph.erase_node(body)


def _is_idle_dropout(node: Node) -> bool:
    """Whether a node is a dropout that is told to drop nothing."""
    if kind_of(node) not in _DROPOUTS:
        return False
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", node.kwargs.get("train"))
    return training is False


def _make_conv2d(node: Node) -> None:
    x, weight, bias, stride, padding, dilation, is_transposed, _, groups = node.args
    if is_transposed is False and value_of(weight).dim() == 4:
        node.target = _aten.conv2d.default
        node.args = (x, weight, bias, stride, padding, dilation, groups)


def _make_batch_norm(gm: GraphModule, first: Node) -> None:
    """Replace a batch norm of three outputs by one that returns the first: the others are empty, and never read."""
    norm = first.args[0]
    if norm.target is not _aten._native_batch_norm_legit_no_training.default:
        return
    x, weight, bias, mean, variance, momentum, epsilon = norm.args
    arguments: tuple[Any, ...] = (x, weight, bias, mean, variance, False, momentum, epsilon, True)
    with gm.graph.inserting_before(first):
        whole = gm.graph.call_function(_aten.batch_norm.default, arguments)
    whole.meta = dict(first.meta)
    _replace(gm, first, whole)
    if not norm.users:
        gm.graph.erase_node(norm)


def _replace(gm: GraphModule, node: Node, other: Node) -> None:
    node.replace_all_uses_with(other)
    gm.graph.erase_node(node)
