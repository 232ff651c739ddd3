"""What a node of a graph says of itself."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from math import prod
from typing import Any, Final

import torch
from torch.fx import Graph, Node

_CHANGING: Final = ("iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
_IN_PLACE: Final = {getattr(operator, name) for name in (*_CHANGING, "ilshift", "irshift", "setitem", "delitem")}

POOLS: Final = ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d")
POINTWISE: Final = (
    *("abs", "add", "clamp", "clone", "contiguous", "div", "dropout", "elu", "exp", "feature_dropout", "gelu"),
    *("hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "maximum", "minimum", "mish", "mul", "neg", "pow"),
    *("prelu", "relu", "relu6", "rsqrt", "sigmoid", "silu", "softplus", "sqrt", "sub", "tanh", "to", "truediv"),
    "where",
)
"""Kinds of operators that work value by value."""
_BY_PIXEL_OR_CHANNEL: Final = (
    *("batch_norm", "cat", "chunk", "instance_norm", "interpolate", "mean", "pad", "slice", "split"),
    *("split_with_sizes", "upsample_bilinear2d", "upsample_nearest2d"),
)
_REDUCTIONS: Final = (
    *("amax", "amin", "linalg_vector_norm", "max", "mean", "min", "norm", "std", "std_mean", "sum", "var", "var_mean"),
    "vector_norm",
)
_READING: Final = frozenset((*POOLS, *_REDUCTIONS, "interpolate"))
"""Kinds of operators for which True does not mean to write, but to round sizes up or to keep a dimension."""
EITHER: Final = frozenset((*POOLS, *POINTWISE, *_BY_PIXEL_OR_CHANNEL, "getitem"))
"""Kinds of operators that run as fast in either layout: value by value, or on whole pixels or channels."""


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


def kind_of(node: Node) -> str:
    """PyTorch's name of the operator; its form in place has the same."""
    packet = getattr(node.target, "overloadpacket", None)
    name = packet.__name__ if packet is not None else getattr(node.target, "__name__", str(node.target))
    if node.target in _IN_PLACE:
        return str(name).removeprefix("i")
    return str(name).rstrip("_")


def is_pytorchs(node: Node) -> bool:
    """Whether a node calls a function or method of PyTorch's own, whose name says what it does."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target.namespace == "aten")
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target._qualified_op_name).startswith("aten::")
    if isinstance(target, str):
        return bool(node.op == "call_method")
    return str(getattr(target, "__module__", "")).partition(".")[0] in ("torch", "_operator")


def has_layout(value: Any) -> bool:
    """Whether memory differs between the layouts: it does not where there is one channel, or one pixel."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4:
        return False
    _, channels, *plane = map(size_as_made, value.shape)
    return channels != 1 and plane != [1, 1]


def bytes_of(value: Any) -> int:
    """Bytes of a tensor without gaps, as far as its sizes are known."""
    return prod(size_as_made(size) or 1 for size in value.shape) * int(value.element_size())


def size_as_made(size: Any) -> int | None:
    """A size as a number; a symbolic one as it was when the graph was made, None where it was not known then."""
    hint = size if isinstance(size, int) else size.node.hint
    return None if hint is None else int(hint)


def takes_either(node: Node) -> bool:
    """Whether a node works as fast in either layout, and gives what it is given: images in, images out."""
    kind, value = kind_of(node), value_of(node)
    if node.op not in ("call_function", "call_method") or kind not in EITHER:
        return False
    if kind == "contiguous" or node.kwargs.get("memory_format") is not None:
        return False
    values = value if isinstance(value, tuple | list) else (value,)
    dims = {tensor.dim() if isinstance(tensor, torch.Tensor) else 0 for tensor in values}
    return dims == {4} or (kind == "mean" and dims == {2})


def written_by(node: Node) -> Iterator[Node]:
    """The inputs that a node that changes something may write into."""
    if isinstance(node.target, torch._ops.OpOverload):
        written = [
            argument
            for place, declared in enumerate(node.target._schema.arguments)
            if declared.alias_info is not None and declared.alias_info.is_write
            for argument in (*node.args[place : place + 1], node.kwargs.get(declared.name))
        ]
    elif node.args and node.kwargs.get("out") is None and (node.target in _IN_PLACE or kind_of(node) in EITHER):
        written = list(node.args[:1])
    else:
        written = list(node.all_input_nodes)
    yield from (argument for argument in written if isinstance(argument, Node))


def writes_into_inputs(graph: Graph) -> bool:
    """Whether a graph may write into what it is given, or into what it keeps."""
    memories = {memory_of(node) for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    writers = [node for node in graph.nodes if changes_something(node)]
    return any(memory_of(read) in memories | {None} for node in writers for read in node.all_input_nodes)


def is_transformed(graph: Graph) -> bool:
    """Whether a part of a graph is within a transform of ``torch.func``, whose tensors have no memory of their own."""
    values = (value_of(node) for node in graph.nodes)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(isinstance(value, torch.Tensor) and wrapped(value) for value in values)


def memory_of(node: Node) -> int | None:
    """An id of the memory that a node's value lies in, which views share; None where the value is no tensor."""
    value = value_of(node)
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def changes_something(node: Node) -> bool:
    """Whether a node may write into a tensor that it is given."""
    if node.op not in ("call_function", "call_method"):
        return bool(node.op == "call_module")
    if node.kwargs.get("inplace") or node.kwargs.get("out") is not None:
        return True
    if any(arg is True for arg in node.args) and kind_of(node) not in _READING:
        return True  # relu(x, True) has it by position
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    if isinstance(node.target, torch._ops.HigherOrderOperator) or node.target in _IN_PLACE:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    return str(name).endswith("_")
