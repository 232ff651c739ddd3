"""From a model of PyTorch to the network that a plan is made of; it is traced, and nothing is computed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.fx import Node

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import Layout
from conv_advisor.models.planning.network import Network, Operator
from conv_advisor.torch.graph.constants import Constants
from conv_advisor.torch.graph.endings import ending_of
from conv_advisor.torch.graph.normal_form import normalize
from conv_advisor.torch.graph.pads import take_in_pads
from conv_advisor.torch.graph.scaling import Filters, take_in
from conv_advisor.torch.graph.sites import CONVOLUTIONS, WRAPPED, Site, find_sites
from conv_advisor.torch.nodes import EITHER, bytes_of, has_layout, kind_of, layer_of, value_of
from conv_advisor.torch.whole import Call, check_model

_aten: Final = torch.ops.aten
_OTHER_CONVOLUTIONS: Final = {
    _aten.conv1d: "a convolution in one dimension: only two are advised on",
    _aten.conv3d: "a convolution in three dimensions: only two are advised on",
    **dict.fromkeys(
        (_aten.conv_transpose1d, _aten.conv_transpose2d, _aten.conv_transpose3d),
        "a transposed convolution: only forward convolutions are advised on",
    ),
}


def network_of(model: nn.Module, example_inputs: Any) -> Network:
    """The network of a model, for the inputs that it is given.

    Parameters
    ----------
    model : Module
        In evaluation, on any device.
    example_inputs : tensor, tuple or dict
        Only their shapes, precisions and devices count.

    Raises
    ------
    InvalidInput
        The model is in training, or what it computes depends on the values of its inputs.
    """
    check_model(model)
    call = Call.of(example_inputs)
    name = type(model).__name__
    try:
        program = torch.export.export(model, call.args, dict(call.kwargs), strict=False)
    except Exception as error:  # of many kinds, each PyTorch's own
        message = " ".join(str(error).split())[:300]
        raise InvalidInput(
            "model", name, f"a model that torch.export can trace ({type(error).__name__}: {message})"
        ) from error
    return _Reader(program).network(name)


class _Reader:
    """Reads the graph of an exported program."""

    def __init__(self, program: Any) -> None:
        normalize(program.graph_module)
        take_in_pads(program.graph)
        signature = program.graph_signature
        self._weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        sites, others = find_sites(program.graph_module)
        constants = Constants({node: 0 for node in program.graph.nodes if node.name in self._weights})
        self._has_bias = {site.node: _has_bias(site, constants) for site in sites}
        self._nodes = list(program.graph.nodes)
        self._problems = {site.node: site for site in sites}
        self._reasons = dict(others)

    def network(self, name: str) -> Network:
        """The network, each convolution with what ends in it."""
        by_node: dict[Node, Operator] = {}  # by the node whose value it computes, and in whose place it runs
        gone = set[Node]()
        for node in self._nodes:
            if node.op == "call_function" and node not in gone:
                operator, ended = self._operator(node, gone)
                gone.update(ended)
                by_node[(node, *ended)[-1]] = operator
        operators = [by_node[node] for node in self._nodes if node in by_node]
        values = {node.name: value_of(node) for node in self._nodes}
        tensors = {tensor for operator in operators for tensor in (*operator.reads, *operator.writes)}
        n_bytes = {tensor: bytes_of(values[tensor]) for tensor in sorted(tensors) if has_layout(values[tensor])}
        outputs = frozenset(node.name for node in self._nodes[-1].all_input_nodes)
        return Network(name, tuple(operators), n_bytes, outputs, tuple(_remarks(operators)))

    def _operator(self, node: Node, gone: set[Node]) -> tuple[Operator, tuple[Node, ...]]:
        """One operator, and the nodes that end in it."""
        kind = kind_of(node)
        if node not in self._problems:
            reason = self._reason(node)
            reads = tuple(read.name for read in node.all_input_nodes if read.name not in self._weights)
            takes_either = kind in EITHER or bool(reason)
            return Operator(_name(node), kind, reads, (node.name,), takes_either=takes_either, left_out=reason), ()
        site = self._problems[node]
        x, weight, _ = site.operands
        ending = ending_of(node, has_bias=self._has_bias[node], taken=gone)
        nodes_read = [x, *([ending.residual] if ending.residual is not None else [])]
        problem = dataclasses.replace(site.problem, layout=Layout.NCHW, epilogue=ending.epilogue)
        last = ending.nodes[-1] if ending.nodes else node
        names = tuple(read.name for read in nodes_read)
        source = self._weights.get(weight.name, weight.name)
        return Operator(site.layer, kind, names, (last.name,), problem, source), ending.nodes

    def _reason(self, node: Node) -> str:
        """Why a convolution, or an operator that may run some, has no problem; empty for any other operator."""
        if node.target in CONVOLUTIONS:
            return self._reasons[layer_of(node)]
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return WRAPPED
        return _OTHER_CONVOLUTIONS.get(getattr(node.target, "overloadpacket", None), "")


def _has_bias(site: Site, constants: Constants) -> bool:
    """Whether a convolution adds a bias after what the backend folds is folded into it, and is gone from its graph."""
    like = value_of(site.node)
    weight, bias = (node and constants.constant_of(node, like) for node in site.operands[1:])
    if weight is None or (bias is None and site.operands[2] is not None):
        return site.operands[2] is not None
    return take_in(site.node, Filters(weight, bias), constants).bias is not None


def _name(node: Node) -> str:
    layer = layer_of(node)
    return layer if layer == node.name else f"{layer}.{node.name}"


def _remarks(operators: list[Operator]) -> Iterator[str]:
    shared = Counter(operator.weight for operator in operators if operator.problem is not None)
    yield from (f"weight {name} is shared by {count} convolutions" for name, count in shared.items() if count > 1)
