"""Convolutions in a graph of Dynamo: found, and replaced by our operator; everything else stays as it is."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from conv_advisor.data.problem import ConvProblem
from conv_advisor.torch.calls.layers import Geometry, geometry_of, is_tf32_allowed, problem_of
from conv_advisor.torch.graph.endings import Ending, ending_of
from conv_advisor.torch.nodes import layer_of, value_of
from conv_advisor.torch.operators.conv2d import conv2d
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending

CONVOLUTIONS: Final = (torch.conv2d, torch.ops.aten.conv2d.default, torch.ops.aten.conv2d.padding)
"""The targets of convolutions in two dimensions."""
WRAPPED: Final = "it wraps a part of the model, which is not looked into"
"""Why what an operator such as ``torch.cond`` runs is left alone."""
_DEFAULTS: Final = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_SIGNATURE: Final = Signature(
    [
        Parameter("input", Parameter.POSITIONAL_OR_KEYWORD),
        Parameter("weight", Parameter.POSITIONAL_OR_KEYWORD),
        *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value) for name, value in _DEFAULTS.items()),
    ]
)


@dataclass(frozen=True)
class Site:
    """One convolution in a graph.

    Parameters
    ----------
    node : Node
        The call; its value is y.
    geometry : Geometry
    problem : ConvProblem
    dtype : torch.dtype
        Of y, and of x and weight after autocast cast them.
    layer : str
        The name of the module, as its model knows it.
    ending : Ending or None
        What ends in it, which makes it another problem; None where nobody looked for it.
    """

    node: Node
    geometry: Geometry
    problem: ConvProblem
    dtype: Any
    layer: str
    ending: Ending | None = None

    @property
    def operands(self) -> tuple[Node, Node, Node | None]:
        """x, weight and bias, as the call takes them now."""
        x, weight, bias, *_ = arguments_of(self.node)
        return x, weight, bias

    def alone(self) -> Site:
        """The same convolution without what follows it."""
        return dataclasses.replace(self, ending=None, problem=self.problem.plain)

    def set_weight(self, weight: Node, bias: Node | None) -> None:
        """Let the call take another weight and bias."""
        x, _, _, *rest = arguments_of(self.node)
        self.node.args, self.node.kwargs = (x, weight, bias, *rest), {}


def find_sites(gm: GraphModule) -> tuple[list[Site], list[tuple[str, str]]]:
    """Every convolution in a graph.

    Returns
    -------
    sites : list of Site
        Those that are a problem of ours.
    others : list of (str, str)
        The layer of each other one, and why that is no problem of ours.
    """
    sites, others = [], []
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in CONVOLUTIONS:
            site = _site(node)
            if isinstance(site, str):  # why it is none
                others.append((layer_of(node), site))
            else:
                sites.append(site)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            others.append((layer_of(node), WRAPPED))
    return sites, others


def end(sites: Iterable[Site]) -> list[Site]:
    """The same convolutions, each with what follows it and can end in it."""
    ended, taken = [], set[Node]()
    for site in sites:
        ending = ending_of(site.node, has_bias=site.operands[2] is not None, taken=taken)
        taken.update(ending.nodes)
        problem = dataclasses.replace(site.problem, epilogue=ending.epilogue)
        ended.append(dataclasses.replace(site, ending=ending, problem=problem))
    return ended


def replace(gm: GraphModule, site: Site, plan: str) -> None:
    """Put an operator where the convolution was: with what ends in it, or else with its bias added behind it.

    Inductor fuses that addition with what follows.
    """
    if site.ending is not None and site.ending.epilogue:
        _replace_with_ending(gm, site, site.ending, plan)
        return
    graph, node = gm.graph, site.node
    with graph.inserting_before(node):
        x, weight, bias = _operands(gm, site)
        y = graph.call_function(conv2d, (x, weight, *site.geometry.arguments, plan))
        y.meta = dict(node.meta)
        if bias is not None:
            by_filter = graph.call_function(torch.reshape, (bias, (1, -1, 1, 1)))
            y = graph.call_function(operator.add, (y, by_filter))
            y.meta = dict(node.meta)
    node.replace_all_uses_with(y)
    graph.erase_node(node)


def _replace_with_ending(gm: GraphModule, site: Site, ending: Ending, plan: str) -> None:
    """Put the operator where the last node stood: what is added may have been made only shortly before."""
    graph, nodes = gm.graph, (site.node, *ending.nodes)
    with graph.inserting_before(nodes[-1]):
        x, weight, bias = _operands(gm, site)
        names = (ending.epilogue.activation.value, plan)
        y = graph.call_function(conv2d_ending, (x, weight, bias, ending.residual, *site.geometry.arguments, *names))
    y.meta = dict(nodes[-1].meta)
    nodes[-1].replace_all_uses_with(y)
    for node in reversed(nodes):
        graph.erase_node(node)


def _operands(gm: GraphModule, site: Site) -> list[Node | None]:
    """x, weight and bias, in the precision that autocast hands them over in."""
    return [None if tensor is None else _cast(gm, tensor, site.dtype) for tensor in site.operands]


def _site(node: Node) -> Site | str:
    x, weight, _, *rest = arguments_of(node)
    values = [value_of(tensor) for tensor in (x, weight, node) if isinstance(tensor, Node)]
    if len(values) != 3 or not all(isinstance(value, torch.Tensor) for value in values):
        return "its operands were not traced as tensors"
    x_value, weight_value, y_value = values
    if not all(isinstance(number, int) for number in _numbers(rest)):
        return "stride, padding, dilation or groups are not known before it runs"
    geometry = geometry_of(weight_value, *rest)
    x_value, weight_value = (_as_dtype(value, y_value.dtype) for value in (x_value, weight_value))
    problem = problem_of(x_value, weight_value, geometry, is_tf32_allowed=is_tf32_allowed())
    if isinstance(problem, str):
        return problem
    return Site(node, geometry, problem, y_value.dtype, layer_of(node))


def arguments_of(node: Node) -> tuple[Any, ...]:
    """Input, weight, bias, stride, padding, dilation and groups of a call of a convolution."""
    bound = _SIGNATURE.bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.args


def _numbers(arguments: Iterable[Any]) -> Iterable[Any]:
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from argument
        elif not isinstance(argument, str):
            yield argument


def _as_dtype(value: Any, dtype: Any) -> Any:
    """A fake tensor as autocast hands it to the convolution."""
    return value if value.dtype == dtype else value.to(dtype)


def _cast(gm: GraphModule, node: Node, dtype: Any) -> Node:
    if value_of(node).dtype == dtype:
        return node
    return gm.graph.call_function(torch.ops.aten.to.dtype, (node, dtype))
