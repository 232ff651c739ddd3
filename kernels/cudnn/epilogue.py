"""What follows a convolution in cuDNN: nodes of its graph API, or the fused call of its legacy API; pure Python."""

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
    Activation.GELU: ("gelu", {}),
    Activation.GELU_TANH: ("gelu_approx_tanh", {}),
    Activation.SIGMOID: ("sigmoid", {}),
}
"""The frontend's nodes, and what they are set to; silu is two nodes, and hardswish has none."""

IMPLICIT_PRECOMP_GEMM: Final = 1
"""The only value of cudnnConvolutionFwdAlgo_t whose fused call takes the identity for its activation."""


def has_nodes(problem: ConvProblem, _device: Device) -> str | None:
    """A rule: applies where the graph API has a node for the activation."""
    activation = problem.epilogue.activation
    if activation is Activation.NONE or activation in (*_NODES, Activation.SILU):
        return None
    return f"activation is {activation}, for which cuDNN's graph API has no node"


def in_fused_call(algorithm: int) -> frozenset[Epilogue]:
    """The epilogues that cudnnConvolutionBiasActivationForward computes with an algorithm of the legacy API.

    Parameters
    ----------
    algorithm : int
        Its value in cudnnConvolutionFwdAlgo_t.

    Notes
    -----
    It always adds a bias. Its activation is ReLU, or the identity with `IMPLICIT_PRECOMP_GEMM` alone. Source: NVIDIA
    cuDNN API reference.
    """
    activations = [Activation.RELU, *([Activation.NONE] if algorithm == IMPLICIT_PRECOMP_GEMM else [])]
    return frozenset(Epilogue(True, residual, each) for residual in (False, True) for each in activations)


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
    # The residual first, though elsewhere the bias is: on an H100 cuDNN 9.19 has nothing for a residual behind a bias,
    # or in NHWC slow engines alone, and many plans for one before it. Sums are float32, so all that differs is which
    # of the two is added to them first. A residual without a bias fares as one behind it.
    if epilogue.residual:
        sums = graph.add(a=sums, b=residual)
    if epilogue.bias:
        sums = graph.bias(input=sums, bias=bias)
    if epilogue.activation is Activation.NONE:
        return sums
    if epilogue.activation is Activation.SILU:
        # Not `swish`: frontends 1.17 and 1.18 give its parameters each other's names, and refuse both its beta by name
        # and its default; before and after them the parameters stand in different orders.
        return graph.mul(a=sums, b=graph.sigmoid(input=sums))
    if epilogue.activation not in _NODES:
        raise NotSupported(f"cuDNN's graph API has no {epilogue.activation}")
    node, settings = _NODES[epilogue.activation]
    return getattr(graph, node)(input=sums, **settings)
