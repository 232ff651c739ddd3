"""Which layers are measured: those of whole networks, each with the epilogue that it has there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.rivals.orders import Named
from conv_advisor.data import networks
from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.networks import Layer
from conv_advisor.data.problem import DType, Layout

NETWORKS: Final = networks.GROUPS["seeds"]
"""Networks whose epilogues are known here: plain chains of convolutions with ReLU, and ResNet-50."""
OTHERS: Final = networks.GROUPS["more-networks"]
"""Networks that have other kinds of layers, grouped, depthwise and first ones, each taken with a bias and ReLU."""
BATCHES: Final = (1, 8, 32, 256)
COLUMNS: Final = (
    (DType.FLOAT16, Layout.NHWC),
    (DType.BFLOAT16, Layout.NHWC),
    (DType.FLOAT16, Layout.NCHW),
    (DType.BFLOAT16, Layout.NCHW),
    (DType.TF32, Layout.NCHW),
    (DType.TF32, Layout.NHWC),
    (DType.FLOAT32, Layout.NCHW),
)
"""Dtype and layout of the lines of the tables."""

_USUAL: Final = Epilogue(bias=True, activation=Activation.RELU)
"""A bias, the network's own or what normalisation leaves once it is folded, and ReLU."""


def epilogue_of(network: str, layer: Layer) -> Epilogue:
    """What follows a layer in a seed network, with every normalisation folded into the convolution before it.

    In ResNet-50 the last 1x1 of a block has the block's input added before its ReLU, and a projection of that input has
    a bias alone (He et al. arXiv:1512.03385, figure 5 and option B). All layers of `OTHERS` count as having the usual.
    """
    if network == "resnet50":
        if "last 1x1" in layer.source:
            return replace(_USUAL, residual=True)
        if "projection" in layer.source:
            return Epilogue(bias=True)
    return _USUAL


def wanted(names: Iterable[str], batches: Sequence[int], dtypes: Sequence[DType], layouts: Sequence[Layout]) -> Named:
    """Every layer of these networks with its epilogue, in the `COLUMNS` of these dtypes and layouts.

    Returns
    -------
    dict of ConvProblem to str
        The names of the networks that have such a layer, separated by blanks.
    """
    layers: dict[str, Named] = {}
    columns = [(dtype, layout) for dtype, layout in COLUMNS if dtype in dtypes and layout in layouts]
    for name in names:
        layers[name] = {
            replace(layer.problem, n=n, dtype=dtype, layout=layout, epilogue=epilogue_of(name, layer)): name
            for layer in networks.whole(name)
            for n in batches
            for dtype, layout in columns
        }
    every = dict.fromkeys(problem for problems in layers.values() for problem in problems)
    return {problem: " ".join(name for name, problems in layers.items() if problem in problems) for problem in every}
