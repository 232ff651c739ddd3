"""Small ONNX models, built for tests."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper


class Build:
    """A model of one input, a node at a time."""

    def __init__(self, *shape: int | str | None) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or ("batch", 3, 32, 32))]

    def weight(self, *shape: int, value: float = 0.0) -> str:
        """A weight of one value; its name."""
        name = f"w{len(self.weights)}"
        values = np.full(shape, value, np.float32)
        self.weights.append(helper.make_tensor(name, TensorProto.FLOAT, shape, values.tobytes(), raw=True))
        return name

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """A node; what it makes."""
        made = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [made], name=made, **attributes))
        return made

    def conv(self, x: str, k: int, c: int, r: int = 3, *, bias: bool = False, **attributes: object) -> str:
        """A convolution that keeps its input's size unless told otherwise."""
        given = {"pads": [r // 2] * 4} | attributes if "auto_pad" not in attributes else attributes
        more = (self.weight(k),) if bias else ()
        return self.node("Conv", x, self.weight(k, c, r, r), *more, **given)

    def graph(self, *outputs: str) -> GraphProto:
        """The graph so far."""
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        return helper.make_graph(self.nodes, "graph", self.inputs, results, self.weights)

    def model(self, *outputs: str) -> ModelProto:
        """The model so far."""
        return helper.make_model(self.graph(*outputs))

    def bytes(self, *outputs: str) -> bytes:
        """The model so far as a file has it."""
        return self.model(*outputs).SerializeToString()


def block() -> bytes:
    """A stem, and a residual block behind it."""
    build = Build("batch", 3, 64, 64)
    norm = [build.weight(64) for _ in range(4)]
    stem = build.node("BatchNormalization", build.conv("x", 64, 3, 7, strides=[2, 2]), *norm)
    pool = build.node("MaxPool", build.node("Relu", stem), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    first = build.node("Relu", build.conv(pool, 64, 64, bias=True))
    second = build.conv(first, 64, 64)
    end = build.node("Relu", build.node("Add", second, pool))
    return build.bytes(build.node("Flatten", build.node("GlobalAveragePool", end)))


def stored(*precisions: str) -> bytes:
    """A model of a convolution in each of these precisions, of an input of its own."""
    nodes, weights, inputs = [], [], []
    for place, precision in enumerate(precisions):
        kind = TensorProto.DataType.Value(precision)
        weights.append(helper.make_tensor(f"w{place}", kind, (8, 64, 3, 3), [0.0] * (8 * 64 * 9)))
        inputs.append(helper.make_tensor_value_info(f"x{place}", kind, (1, 64, 28, 28)))
        nodes.append(helper.make_node("Conv", [f"x{place}", f"w{place}"], [f"y{place}"], name=f"conv{place}"))
    results = [helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None) for node in nodes]
    return helper.make_model(helper.make_graph(nodes, "stored", inputs, results, weights)).SerializeToString()
