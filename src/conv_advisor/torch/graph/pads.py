"""Zeros that a graph puts around an image ahead of convolutions: they become the convolutions' own padding."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Graph, Node

from conv_advisor.torch.calls.layers import Sides, geometry_of, sides_of
from conv_advisor.torch.graph.constants import number_of
from conv_advisor.torch.graph.sites import CONVOLUTIONS, arguments_of
from conv_advisor.torch.nodes import changes_something, is_pytorchs, kind_of, memory_of, value_of

_aten: Final = torch.ops.aten
_NAMES: Final = {"pad": ("input", "pad", "mode", "value"), "constant_pad_nd": ("input", "pad", "value")}
"""The arguments of what pads, by its kind."""


def take_in_pads(graph: Graph) -> None:
    """Let convolutions pad their input themselves, in place, where only convolutions read a padded image.

    One whose opposite sides differ then has a padding of four numbers, which PyTorch's own does not take: for those
    that stay PyTorch's own, `put_back_pads` puts the zeros back.
    """
    for node in reversed(list(graph.nodes)):  # of two in a row the last first
        sides = _sides_of_pad(node)
        if sides is not None and node.users and all(_can_take(user, node) for user in node.users):
            for conv in list(node.users):
                _take(conv, _image(node), sides)
            graph.erase_node(node)


def put_back_pads(graph: Graph) -> None:
    """Pad ahead of PyTorch's own convolutions what they cannot pad themselves."""
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in CONVOLUTIONS:
            continue
        x, weight, bias, stride, padding, *rest = arguments_of(node)
        if isinstance(padding, tuple | list) and len(padding) == 4:
            top, left, bottom, right = padding
            with graph.inserting_before(node):
                arguments = (x, [left, right, top, bottom], 0.0)
                padded = graph.call_function(_aten.constant_pad_nd.default, arguments)
            padded.meta["example_value"] = _aten.constant_pad_nd.default(value_of(x), *arguments[1:])
            node.args, node.kwargs = (padded, weight, bias, stride, (0, 0), *rest), {}


def _sides_of_pad(node: Node) -> Sides | None:
    """How many zeros a node puts at each side of an image; None where it does anything else."""
    names = _NAMES.get(kind_of(node)) if node.op == "call_function" and is_pytorchs(node) else None
    if names is None:
        return None
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    amounts, value = arguments.get("pad"), value_of(node)
    if arguments.get("mode", "constant") != "constant" or number_of(arguments.get("value") or 0) != 0:
        return None
    if not isinstance(amounts, tuple | list) or not isinstance(value, torch.Tensor) or value.dim() != 4:
        return None
    if not all(type(amount) is int and amount >= 0 for amount in amounts) or any(amounts[4:]):
        return None
    left, right, top, bottom = (*amounts, 0, 0)[:4]
    return top, left, bottom, right


def _image(pad: Node) -> Node:
    return pad.all_input_nodes[0]


def _can_take(user: Node, pad: Node) -> bool:
    """Whether a reader of a padded image is a convolution that can read the bare image at its own place."""
    if user.op != "call_function" or user.target not in CONVOLUTIONS:
        return False
    image, (x, *others) = _image(pad), arguments_of(user)
    formats = {torch._prims_common.suggest_memory_format(value_of(node)) for node in (image, pad)}
    if x is not pad or pad in others or len(formats) != 1:
        return False
    return _own_sides(user) is not None and not _may_be_written(image, pad, user)


def _own_sides(conv: Node) -> Sides | None:
    """What a convolution pads itself; None where that is not known before it runs."""
    _, weight, _, stride, padding, dilation, groups = arguments_of(conv)
    if isinstance(padding, str):
        return geometry_of(value_of(weight), stride, padding, dilation, groups).padding
    amounts = padding if isinstance(padding, tuple | list) else [padding]
    return sides_of(padding) if all(type(amount) is int for amount in amounts) else None


def _may_be_written(image: Node, first: Node, last: Node) -> bool:
    """Whether anything between two nodes may write into an image, which the last is to see as the first did."""
    node = first.next
    while node is not last:
        if changes_something(node) and {memory_of(read) for read in node.all_input_nodes} & {None, memory_of(image)}:
            return True
        node = node.next
    return False


def _take(conv: Node, image: Node, sides: Sides) -> None:
    _, weight, bias, stride, _, *rest = arguments_of(conv)
    own: Any = _own_sides(conv)
    top, left, bottom, right = (own_side + side for own_side, side in zip(own, sides, strict=True))
    padding = (top, left) if (top, left) == (bottom, right) else (top, left, bottom, right)
    if conv.target is _aten.conv2d.padding:
        conv.target = _aten.conv2d.default
    conv.args, conv.kwargs = (image, weight, bias, stride, padding, *rest), {}
