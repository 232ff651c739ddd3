"""What follows a convolution, as cuDNN's graph is asked for it; no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation, Epilogue
from conv_advisor.data.errors import NotSupported
from conv_advisor.kernels.cudnn.epilogue import ended
from conv_advisor.kernels.cudnn.variants import VARIANTS
from conv_advisor.kernels.variant import Backend, Ending


class Drawn:
    """A graph of the frontend that keeps what is added to it; a node's tensor is its name."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, node: str) -> Any:
        def add(**settings: Any) -> str:
            self.nodes.append((node, settings))
            return node

        return add


def test_a_bias_a_residual_and_an_activation_are_nodes_in_that_order() -> None:
    graph = Drawn()
    y = ended(graph, Epilogue(bias=True, residual=True, activation=Activation.RELU6), "sums", "bias of K", "as y")
    assert graph.nodes == [
        ("bias", {"input": "sums", "bias": "bias of K"}),
        ("add", {"a": "bias", "b": "as y"}),
        ("relu", {"input": "add", "upper_clip": 6.0}),
    ]
    assert y == "relu"


def test_a_convolution_alone_is_what_it_was() -> None:
    graph = Drawn()
    assert ended(graph, Epilogue(), "sums") == "sums"
    assert graph.nodes == []


def test_only_hardswish_has_no_node() -> None:
    for epilogue in EVERY_EPILOGUE[1:]:
        graph = Drawn()
        if epilogue.activation is Activation.HARDSWISH:
            with pytest.raises(NotSupported, match="hardswish"):
                ended(graph, epilogue, "sums")
        else:
            ended(graph, epilogue, "sums")
            assert len(graph.nodes) == epilogue.bias + epilogue.residual + (epilogue.activation != "none")


def test_the_graph_api_fuses_and_the_legacy_api_has_a_kernel_appended() -> None:
    endings = {variant.backend: variant.ending for variant in VARIANTS}
    assert endings == {Backend.CUDNN_GRAPH: Ending.LIBRARY, Backend.CUDNN_LEGACY: Ending.APPENDED}
