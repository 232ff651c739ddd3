"""What a node of a graph says of itself."""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import Graph, Node

_CHANGING: Final = ("iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
_IN_PLACE: Final = {getattr(operator, name) for name in (*_CHANGING, "ilshift", "irshift", "setitem", "delitem")}


def layer_of(node: Node) -> str:
    """The name of the module whose call a node is, such as ``layer1.0.conv1``; else the node's own."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else node.name
    for start in ("L['self']", "L['fn']", "L['model']"):
        path = path.removeprefix(start)
    return path.lstrip(".") or node.name


def value_of(node: Node) -> Any:
    """The fake tensor that a node had when it was traced."""
    value = node.meta.get("example_value")
    return node.meta.get("val") if value is None else value


def writes_into_inputs(graph: Graph) -> bool:
    """Whether a graph may write into what it is given, or into what it keeps."""
    given = {_memory(node) for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    writers = [node for node in graph.nodes if changes_something(node)]
    return any(_memory(read) in given | {None} for node in writers for read in node.all_input_nodes)


def _memory(node: Node) -> int | None:
    """What tells the memory of a node's value from that of others: views share it; None where it is no tensor."""
    value = value_of(node)
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def changes_something(node: Node) -> bool:
    """Whether a node may write into a tensor that it is given."""
    if node.op not in ("call_function", "call_method"):
        return bool(node.op == "call_module")
    if node.kwargs.get("inplace") or node.kwargs.get("out") is not None or any(arg is True for arg in node.args):
        return True  # relu(x, True) has it by position
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    if isinstance(node.target, torch._ops.HigherOrderOperator) or node.target in _IN_PLACE:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    return str(name).endswith("_")
