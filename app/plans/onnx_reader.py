"""Reads an ONNX model in a separate process with limited memory and time, because a model may be hostile.

``python -m conv_advisor.app.plans.onnx_reader`` reads a line of JSON (`Request`) and then the model from standard
input, and writes MessagePack (`Read`), which unlike JSON has an infinity, to standard output. It opens no file: weights
outside the model are not read.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

import msgspec

from conv_advisor.app.plans.outline import MAX_NODES, MAX_TENSORS, Dims, Fault, Node, Outline, Read, Request

CPU_S: Final = 10
"""CPU time that reading a model may take."""
MEMORY_BYTES: Final = 3 * 2**30
"""Address space beside the model's own, which is held up to four times."""

CONVOLUTIONS: Final = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv")
"""Kinds of convolutions and similar operators."""
_ASKED: Final = (*CONVOLUTIONS, "Clip", "LeakyRelu", "HardSigmoid", "Gelu", "BatchNormalization", "Concat", "Softmax")
"""Kinds whose attributes a plan needs."""
_KEPT_VALUES: Final = 4096
"""Weights with more values are dropped before shapes are inferred: shapes are computed from few values."""
_IMAGE_DIMS: Final = 4


class Refused(Exception):
    """The model is refused."""

    def __init__(self, value: object, allowed: str, field: str = "model") -> None:
        self.fault = Fault(field, str(value)[:200], allowed)
        super().__init__(self.fault)


def main() -> None:
    """Read one model."""
    head = sys.stdin.buffer.readline(2**20)
    body = sys.stdin.buffer.read()
    room = limit(len(body))
    try:
        answer = Read(outline=outline_of(body, msgspec.json.decode(head, type=Request)))
    except Refused as refused:
        answer = Read(fault=refused.fault)
    except (MemoryError, RecursionError) as error:
        answer = Read(fault=Fault("model", type(error).__name__, f"a model that is read within {room} bytes of memory"))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


def limit(model_bytes: int) -> int:
    """Limit this process, unless its limits are lower already; the address space that it may take from now on."""
    _lower(resource.RLIMIT_CPU, CPU_S, CPU_S + 1)
    _lower(resource.RLIMIT_CORE, 0, 0)
    room = MEMORY_BYTES + 4 * model_bytes
    return _lower(resource.RLIMIT_AS, room, room)


def _lower(kind: int, soft: int, hard: int) -> int:
    """Set a limit, at most the present hard limit, which cannot be raised; the new soft limit."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
    return soft


def outline_of(body: bytes, request: Request) -> Outline:
    """The outline of a model.

    Raises
    ------
    Refused
    """
    model = _parsed(body)
    _check(model)
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    scalars = dict(_scalars(model.graph))
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    written_batch = _fix_inputs(model.graph, weights, request)
    _lighten(model.graph)
    shapes, inferred_types = _inferred(model)
    return Outline(
        nodes=tuple(_node(node, index) for index, node in enumerate(model.graph.node)),
        shapes=shapes,
        weights=weights,
        scalars=scalars,
        outputs=tuple(dict.fromkeys(_leaving(model.graph))),
        inner=tuple(_node(node, 0) for node in _inner(model.graph) if node.op_type in CONVOLUTIONS),
        written_batch=written_batch if written_batch != request.batch else None,
        precisions=dict(_precisions(model.graph, inferred_types | types)),
    )


def _precisions(graph: Any, types: Mapping[str, int]) -> Counter[str]:
    """How many convolutions have operands in each precision; those whose precision is unknown do not count."""
    from onnx import TensorProto

    operands = (node.input for node in graph.node if node.op_type == "Conv")  # both have one type
    known = (next(filter(None, map(types.get, reversed(names[:2]))), 0) for names in operands)
    return Counter(TensorProto.DataType.Name(kind) for kind in known if kind in TensorProto.DataType.values())


def _parsed(body: bytes) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(body)
    except DecodeError:
        raise Refused(f"{len(body)} bytes", "a whole ONNX model: these cannot be parsed as one") from None
    if not model.HasField("graph") or not model.graph.node:
        raise Refused(f"{len(body)} bytes", "an ONNX model with a graph of nodes: there is none in it")
    return model


def _check(model: Any) -> None:
    """Refuse a model of a size or kind that is not read."""
    if model.functions:
        names = ", ".join(function.name for function in model.functions[:3])
        raise Refused(f"functions {names}", "a model without functions of its own: have them inlined when exporting")
    n_nodes = 0
    for graph in _graphs(model.graph):
        n_nodes += len(graph.node)
        n_tensors = len(graph.initializer) + len(graph.value_info) + len(graph.input) + len(graph.output)
        n_tensors += sum(len(node.output) for node in graph.node)
        if n_nodes > MAX_NODES or n_tensors > MAX_TENSORS:
            raise Refused(f"{n_nodes} nodes, {n_tensors} tensors", f"at most {MAX_NODES} nodes, {MAX_TENSORS} tensors")
        if graph.sparse_initializer:
            raise Refused("a sparse weight", "dense weights")
        for tensor in (*graph.initializer, *_attribute_tensors(graph)):
            _check_tensor(tensor)
        for name in _names(graph):
            if isinstance(name, bytes):
                raise Refused(f"the name {name!r}", "names in UTF-8")
    _check_order(model.graph)


def _check_order(graph: Any) -> None:
    """Refuse a graph in which a tensor is made twice, or read before it is made."""
    all_made = {name for node in graph.node for name in node.output if name}
    made: set[str] = set()
    for node in graph.node:
        early = next((name for name in node.input if name in all_made and name not in made), None)
        if early is not None:
            raise Refused(f"tensor {early!r}", "each tensor made before it is read")
        for name in filter(None, node.output):
            if name in made:
                raise Refused(f"tensor {name!r}", "each tensor made once")
            made.add(name)


def _names(graph: Any) -> Iterator[str | bytes]:
    """The names in a graph; protobuf gives a name that is not UTF-8 as bytes."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for tensor in (*graph.initializer, *graph.input, *graph.output):
        yield tensor.name
    for graph_input in graph.input:
        yield from (dim.dim_param for dim in graph_input.type.tensor_type.shape.dim)


def _attribute_tensors(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_tensor(tensor: Any) -> None:
    """Refuse a weight that is neither in the model nor in a file beside it; such a file is never opened."""
    for entry in tensor.external_data:
        if entry.key == "location":
            path, windows = PurePosixPath(entry.value), PureWindowsPath(entry.value)
            if path.is_absolute() or windows.is_absolute() or windows.drive or ".." in {*path.parts, *windows.parts}:
                raise Refused(
                    f"weight {tensor.name!r} at {entry.value!r}", "weights in the model, or in files beside it"
                )
    if any(size < 0 for size in tensor.dims):
        raise Refused(f"weight {tensor.name!r} of {list(tensor.dims)}", "sizes from 0")


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and all graphs within it."""
    remaining = [graph]
    while remaining:
        current = remaining.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    remaining.append(attribute.g)
                remaining.extend(attribute.graphs)


def _inner(graph: Any) -> Iterator[Any]:
    graphs = _graphs(graph)
    next(graphs)
    for inner in graphs:
        yield from inner.node


def _leaving(graph: Any) -> Iterator[str]:
    for result in graph.output:
        yield result.name
    for node in _inner(graph):
        yield from node.input


def _fix_inputs(graph: Any, weights: dict[str, Dims], request: Request) -> int | None:
    """Set every size of the inputs, the batch first; the batch that the model was written for.

    Raises
    ------
    Refused
        The size of a dimension is not known.
    """
    sizes, written_batch = dict(request.dims), None
    used: set[str] = set()
    unknown: dict[str, str] = {}
    # A model that was exported without its parameters has them as inputs, whose first dimension is no batch.
    parameters = {name for node in graph.node if node.op_type == "Conv" for name in node.input[1:]}
    inputs = [graph_input for graph_input in graph.input if graph_input.name not in weights]
    for graph_input in inputs:
        dims = graph_input.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value") and dims[0].dim_param:
            sizes.setdefault(dims[0].dim_param, request.batch)
    for graph_input in inputs:
        dims = graph_input.type.tensor_type.shape.dim
        for place, dim in enumerate(dims):
            is_batch = place == 0 and graph_input.name not in parameters
            if dim.HasField("dim_value") and dim.dim_value > 0:
                if is_batch and len(dims) == _IMAGE_DIMS:
                    written_batch = dim.dim_value
                    dim.dim_value = request.batch
                continue
            used.add(dim.dim_param)
            size = request.batch if is_batch else sizes.get(dim.dim_param)
            where = f"dimension {place} of input {graph_input.name!r}"
            if size is None and not dim.dim_param:
                unnamed = f"of size {dim.dim_value}" if dim.HasField("dim_value") else "without a name"
                raise Refused(f"{where}, {unnamed}", "a model whose dimensions have a size or a name", "dims")
            if size is None:
                unknown.setdefault(dim.dim_param, where)
            else:
                dim.dim_value = size
    if unknown:
        named = ", ".join(f"{where}, {name!r}" for name, where in unknown.items())
        them = "it" if len(unknown) == 1 else "each"
        raise Refused(named, f"a size for {them}, such as {','.join(f'{name}=224' for name in unknown)}", "dims")
    for name in request.dims.keys() - used:
        symbols = ", ".join(sorted(filter(None, used))) or "no symbolic dimension"
        raise Refused(name, f"a symbolic dimension of the model's inputs: {symbols}", "dims")
    return written_batch


def _scalars(graph: Any) -> Iterator[tuple[str, float]]:
    from onnx import numpy_helper

    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    tensors += [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for name, tensor in tensors:
        if all(size == 1 for size in tensor.dims) and not tensor.external_data:
            try:
                yield name, float(numpy_helper.to_array(tensor).reshape(()))
            except (KeyError, TypeError, ValueError):
                continue  # an unknown type, text, or a missing value: nothing depends on it


def _lighten(graph: Any) -> None:
    """Drop the values of large weights, and every shape that the file claims."""
    for tensor in graph.initializer:
        if not _is_kept(tensor):
            graph_input = graph.input.add()
            graph_input.name = tensor.name
            graph_input.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                graph_input.type.tensor_type.shape.dim.add().dim_value = size
    light = [tensor for tensor in graph.initializer if _is_kept(tensor)]
    del graph.initializer[:]
    graph.initializer.extend(light)
    del graph.value_info[:]
    for result in graph.output:
        result.type.tensor_type.ClearField("shape")


def _is_kept(tensor: Any) -> bool:
    return not tensor.external_data and prod(tensor.dims) <= _KEPT_VALUES


def _inferred(model: Any) -> tuple[dict[str, Dims], dict[str, int]]:
    """The shapes and types of all tensors; values that shapes depend on are followed only if convolutions need it."""
    from onnx import shape_inference

    body = model.SerializeToString()
    convolved = {node.input[0] for node in model.graph.node if node.op_type in CONVOLUTIONS and node.input}
    shapes: dict[str, Dims] = {}
    types: dict[str, int] = {}
    for follows_values in (False, True):
        try:
            inferred = shape_inference.infer_shapes(body, data_prop=follows_values)
        except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
            if shapes:
                break
            raise Refused(_first_line(error), "a model whose shapes can be inferred") from None
        values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
        shapes = {value.name: _dims(value) for value in values if value.type.tensor_type.HasField("shape")}
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        if all(None not in shapes.get(name, (None,)) for name in convolved):
            break
    return shapes, types


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _dims(value: Any) -> Dims:
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim)


def _node(node: Any, place: int) -> Node:
    numbers: dict[str, tuple[float, ...]] = {}
    words: dict[str, str] = {}
    if node.op_type in _ASKED:
        for attribute in node.attribute:
            if attribute.HasField("s"):
                words[attribute.name] = attribute.s[:100].decode("utf-8", "replace")
            elif attribute.ints or attribute.floats:
                numbers[attribute.name] = tuple(map(float, (*attribute.ints, *attribute.floats)))[:100]
            elif attribute.HasField("i") or attribute.HasField("f"):
                numbers[attribute.name] = (float(attribute.i if attribute.HasField("i") else attribute.f),)
    return Node(
        name=node.name or f"{node.op_type}_{place}",
        kind=node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}",
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        numbers=numbers,
        words=words,
        has_graph=any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute),
    )


if __name__ == "__main__":
    main()
