"""What follows a convolution, as nodes of cuDNN's graph API; pure Python."""

from __future__ import annotations

from typing import Any, Final

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation, Epilogue
from conv_advisor.data.errors import NotSupported
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem

_NODES: Final[dict[Activation, tuple[str, dict[str, float]]]] = {
    Activation.RELU: ("relu", {}),
    Activation.RELU6: ("relu", {"upper_clip": 6.0}),
    Activation.LEAKY_RELU: ("leaky_relu", {"negative_slope": LEAKY_SLOPE}),
    Activation.SILU: ("swish", {"swish_beta": 1.0}),
    Activation.GELU: ("gelu", {}),
    Activation.GELU_TANH: ("gelu_approx_tanh", {}),
    Activation.SIGMOID: ("sigmoid", {}),
}
"""The frontend's nodes, and what they are set to; hardswish has none."""


def has_nodes(problem: ConvProblem, _device: Device) -> str | None:
    """A rule: applies where the graph API has a node for the activation."""
    activation = problem.epilogue.activation
    if activation is Activation.NONE or activation in _NODES:
        return None
    return f"activation is {activation}, for which cuDNN's graph API has no node"


def ended(graph: Any, epilogue: Epilogue, sums: Any, bias: Any = None, residual: Any = None) -> Any:
    """Add to a graph what follows a convolution.

    Parameters
    ----------
    graph : cudnn.pygraph
    epilogue : Epilogue
    sums : tensor of the graph
        The convolution's, kept in float32.
    bias, residual : tensor of the graph, optional
        Where the epilogue adds them.

    Returns
    -------
    y : tensor of the graph

    Raises
    ------
    NotSupported
        It has no node for the activation.
    """
    if epilogue.bias:
        sums = graph.bias(input=sums, bias=bias)
    if epilogue.residual:
        sums = graph.add(a=sums, b=residual)
    if epilogue.activation is Activation.NONE:
        return sums
    if epilogue.activation not in _NODES:
        raise NotSupported(f"cuDNN's graph API has no {epilogue.activation}")
    node, settings = _NODES[epilogue.activation]
    return getattr(graph, node)(input=sums, **settings)
