"""The epilogue of a convolution in cuDNN: nodes of its graph API, or the fused call of its legacy API; pure Python."""

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
"""The frontend's nodes and their settings; silu takes two nodes, and hardswish has none."""

IMPLICIT_PRECOMP_GEMM: Final = 1
"""The only value of cudnnConvolutionFwdAlgo_t whose fused call takes the identity as activation."""


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
    The call always adds a bias. Its activation is ReLU; only `IMPLICIT_PRECOMP_GEMM` also takes the identity. Source:
    NVIDIA cuDNN API reference.
    """
    activations = [Activation.RELU, *([Activation.NONE] if algorithm == IMPLICIT_PRECOMP_GEMM else [])]
    return frozenset(Epilogue(True, residual, activation) for residual in (False, True) for activation in activations)


def ended(graph: Any, epilogue: Epilogue, sums: Any, bias: Any = None, residual: Any = None) -> Any:
    """Add the epilogue of a convolution to a graph.

    Parameters
    ----------
    graph : cudnn.pygraph
    epilogue : Epilogue
    sums : tensor of the graph
        Output of the convolution, kept in float32.
    bias, residual : tensor of the graph, optional
        Where the epilogue adds them.

    Returns
    -------
    y : tensor of the graph

    Raises
    ------
    NotSupported
        cuDNN has no node for the activation.
    """
    # The residual comes first, though elsewhere the bias does: on an H100 cuDNN 9.19 has no plan for a residual after
    # a bias (in NHWC, slow engines only), and many plans for a residual before a bias. Sums are float32, so only the
    # order of the two additions differs. A residual without a bias fares like a residual after one.
    if epilogue.residual:
        sums = graph.add(a=sums, b=residual)
    if epilogue.bias:
        sums = graph.bias(input=sums, bias=bias)
    if epilogue.activation is Activation.NONE:
        return sums
    if epilogue.activation is Activation.SILU:
        # Not `swish`: frontends 1.17 and 1.18 swap the names of its parameters, and refuse both its beta by name and
        # its default; earlier and later frontends order the parameters differently.
        return graph.mul(a=sums, b=graph.sigmoid(input=sums))
    if epilogue.activation not in _NODES:
        raise NotSupported(f"cuDNN's graph API has no {epilogue.activation}")
    node, settings = _NODES[epilogue.activation]
    return getattr(graph, node)(input=sums, **settings)
