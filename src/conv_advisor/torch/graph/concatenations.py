"""Concatenations with fewer copies: those that convolutions write into, and those that share what they begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import torch
from torch.fx import Graph, Node

from conv_advisor.data.problem import Layout
from conv_advisor.torch.calls.loaded import layout_of_plan, run_of
from conv_advisor.torch.nodes import (
    POINTWISE,
    POOLS,
    changes_something,
    is_pytorchs,
    kind_of,
    memory_of,
    takes_either,
    value_of,
    written_by,
)
from conv_advisor.torch.operators.cat_channels import cat_channels
from conv_advisor.torch.operators.conv2d import conv2d
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending
from conv_advisor.torch.operators.conv2d_prologue import conv2d_prologue

_OURS: Final = (conv2d, conv2d_ending, conv2d_prologue)
"""The operators of convolutions, whose last argument is the plan."""
_CHANNELS: Final = (1, -3)
"""The dimension, as it may be given."""
_ALIGNMENT_BYTES: Final = 16
"""Of which a pixel, and what lies in it ahead of a part that is written in place, take a multiple."""
_LOOPS: Final = {*POOLS, *POINTWISE} - {"contiguous", "to"}
"""Kinds of readers that Inductor writes itself, and that read what has gaps as fast as what has none."""
_FUSED: Final = {*POINTWISE, "batch_norm"}
"""Kinds of readers with which Inductor fuses a concatenation, so that it is never written."""
_MOST_FUSED: Final = 8
"""Parts of a concatenation that Inductor reads in the kernel of what follows; each of more it copies on its own."""
_SHARED: Final = 6
"""Parts of one that others begin with: more than Inductor would read again in each, so that it is written once."""
_MOST_COPIED: Final = 1
"""Parts that may still have to be copied: Inductor copies each on its own then, but all at once if it joins them."""


def write_into_concatenations(graph: Graph) -> None:
    """Let the convolutions of a graph write into each concatenation in channels last that spares copies of them."""
    for node in nodes_in_nhwc(graph):
        parts = parts_of(node)
        if parts is None:
            continue
        is_read_early = any(_reads_beginning(reader, node) for part, _ in parts for reader in part.users)
        if not is_read_early and all(kind_of(user) in _FUSED for user in node.users):
            continue
        in_place = _places(node, parts)
        if in_place:
            with graph.inserting_before(node):
                joined = graph.call_function(cat_channels, ([part for part, _ in parts], in_place))
            joined.meta = dict(node.meta)
            node.replace_all_uses_with(joined)
            graph.erase_node(node)


def nodes_in_nhwc(graph: Graph) -> list[Node]:
    """The nodes whose values are surely in channels last, and whose readers would not know it from another layout."""
    in_nhwc: dict[Node, None] = {}
    for node in graph.nodes:
        if _is_in_nhwc(node, in_nhwc):
            in_nhwc[node] = None
    return list(in_nhwc)


def takes_places(node: Node, gone: Collection[Node] = ()) -> bool:
    """Whether enough of what a node concatenates is written to its place in it, once nothing of ``gone`` reads it."""
    parts = parts_of(node)
    return parts is not None and bool(_places(node, parts, gone))


def _places(node: Node, parts: Sequence[tuple[Node, int]], gone: Collection[Node] = ()) -> list[bool]:
    """Which parts of a concatenation are written in their places; empty where too few are."""
    in_place = [_is_written_in_place(part, at, node, gone) for part, at in parts]
    return in_place if any(in_place) and in_place.count(False) <= _MOST_COPIED else []


def _reads_beginning(reader: Node, node: Node) -> bool:
    """Whether a convolution reads what a concatenation begins with, before it is whole."""
    if reader.target is not conv2d_prologue:
        return False
    parts = list(reader.args[0])
    return _tensors(node)[: len(parts)] == parts


def share_beginnings(graph: Graph) -> None:
    """Let long concatenations that begin alike, as those of a DenseNet do, read that from others that are made once."""
    long = [node for node in graph.nodes if len(_tensors(node)) > _MOST_FUSED]
    written = {memory_of(read) for writer in graph.nodes if changes_something(writer) for read in written_by(writer)}
    if not long or None in written:
        return
    # What changes meanwhile is not the same at all times.
    long = [node for node in long if not written & {memory_of(tensor) for tensor in _tensors(node)}]
    count = Counter((group, _dim_of(node)) for node in long for group in _groups(_tensors(node)))
    made = dict[Any, Node]()

    def joined(parts: Sequence[Node], like: Node) -> Node:
        key = (tuple(parts), _dim_of(like))
        if key not in made:
            with graph.inserting_before(like):
                made[key] = graph.call_function(like.target, *_arguments_with(like, list(parts)))
        return made[key]

    for node in long:
        parts = _tensors(node)
        shared = [group for group in _groups(parts) if count[group, _dim_of(node)] > 1]
        if parts[: len(shared) * _SHARED] != [part for group in shared for part in group] or not shared:
            continue
        rest, begun = parts[len(shared) * _SHARED :], [joined(group, node) for group in shared]
        while len(begun) + len(rest) > _MOST_FUSED:
            if len(rest) > 1:
                rest = [joined(rest, node)]
            else:
                begun[:_SHARED] = [joined(begun[:_SHARED], node)]
        node.args, node.kwargs = _arguments_with(node, [*begun, *rest])


def _dim_of(node: Node) -> Any:
    return (*node.args, *node.kwargs.values())[-1]


def _groups(parts: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """What others may begin with too, from the first part on."""
    for begin in range(0, len(parts) - _SHARED + 1, _SHARED):
        yield tuple(parts[begin : begin + _SHARED])


def _tensors(node: Node) -> list[Node]:
    """What a node concatenates; empty where it does not, or not as is usual."""
    if node.op != "call_function" or kind_of(node) not in ("cat", "concat", "concatenate") or not is_pytorchs(node):
        return []
    if len(node.args) + len(node.kwargs) != 2 or list(node.kwargs) not in ([], ["dim"], ["tensors", "dim"]):
        return []
    tensors = node.args[0] if node.args else node.kwargs["tensors"]
    return (
        list(tensors) if isinstance(tensors, list | tuple) and all(isinstance(each, Node) for each in tensors) else []
    )


def _arguments_with(node: Node, tensors: list[Node]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A concatenation's arguments with other tensors."""
    if node.args:
        return (tensors, *node.args[1:]), dict(node.kwargs)
    return (), {**node.kwargs, "tensors": tensors}


def _is_written_in_place(part: Node, at_bytes: int, node: Node, gone: Collection[Node]) -> bool:
    """Whether a part of a concatenation, so many bytes behind a pixel's first channel, is by a variant that can do so.

    What else reads the part then finds gaps from pixel to pixel.
    """
    if part.target not in (conv2d, conv2d_ending) or at_bytes % _ALIGNMENT_BYTES:
        return False
    for reader in part.users:
        is_loop = kind_of(reader) in _LOOPS and is_pytorchs(reader)
        if not (reader is node or is_loop or reader in gone or _reads_beginning(reader, node)):
            return False
    plan = str(part.args[-1])
    run = run_of(plan, value_of(part).device)
    return layout_of_plan(plan) is Layout.NHWC and run is not None and run.writes_within


def _is_in_nhwc(node: Node, in_nhwc: Collection[Node]) -> bool:
    """Whether a node's value is surely in channels last, and what reads it would not know it from another."""
    if node.target in _OURS:
        return layout_of_plan(str(node.args[-1])) is Layout.NHWC
    value = value_of(node)
    if node.op == "placeholder":
        return isinstance(value, torch.Tensor) and value.dim() == 4 and _is_channels_last(value)
    if node.kwargs.get("memory_format") is not None:
        return bool(node.kwargs["memory_format"] == torch.channels_last)
    images = [read for read in node.all_input_nodes if getattr(value_of(read), "ndim", 0) == 4]
    return takes_either(node) and bool(images) and all(read in in_nhwc for read in images)


def _is_channels_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()


def parts_of(node: Node) -> list[tuple[Node, int]] | None:
    """What a node concatenates along channels, each with the bytes of a pixel ahead of it; None where it does not."""
    tensors = _tensors(node)
    if not tensors or _dim_of(node) not in _CHANNELS or len(set(tensors)) != len(tensors):
        return None
    values = [value_of(tensor) for tensor in (node, *tensors)]
    if len({value.dtype for value in values}) != 1 or not all(isinstance(value.shape[1], int) for value in values):
        return None
    parts, at = [], 0
    for tensor, value in zip(tensors, values[1:], strict=True):
        parts.append((tensor, at))
        at += value.shape[1] * value.element_size()
    return None if at % _ALIGNMENT_BYTES else parts
