"""Reads an ONNX model in a process of its own, whose memory and time are limited: a model may be anybody's.

``python -m conv_advisor.app.plans.onnx_reader`` takes a line of JSON (`Request`) and then the model on standard input,
and answers with MessagePack (`Read`), which unlike JSON has an infinity, on standard output. No file is opened: weights
that lie outside the model stay there.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from math import prod
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

import msgspec

from conv_advisor.app.plans.outline import MAX_NODES, MAX_TENSORS, Dims, Fault, Node, Outline, Read, Request

CPU_S: Final = 10
"""CPU time that reading a model may take."""
MEMORY_BYTES: Final = 3 * 2**30
"""Address space beside what the model itself takes, which is held up to four times over."""

CONVOLUTIONS: Final = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv")
"""A convolution, and its like."""
_ASKED: Final = (*CONVOLUTIONS, "Clip", "LeakyRelu", "HardSigmoid", "Gelu", "BatchNormalization", "Concat", "Softmax")
"""Kinds whose attributes a plan asks for."""
_KEPT_VALUES: Final = 4096
"""Weights with more values are left aside before shapes are inferred: what a shape is computed from has few."""
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
    """Limit this process, unless it is limited to less already; the address space that it may take from now on."""
    _lower(resource.RLIMIT_CPU, CPU_S, CPU_S + 1)
    _lower(resource.RLIMIT_CORE, 0, 0)
    room = MEMORY_BYTES + 4 * model_bytes
    return _lower(resource.RLIMIT_AS, room, room)


def _lower(kind: int, soft: int, hard: int) -> int:
    """Set a limit, no higher than the hard one that there is, which nobody may raise; the soft limit from now on."""
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
    return soft


def outline_of(body: bytes, asked: Request) -> Outline:
    """The outline of a model.

    Raises
    ------
    Refused
    """
    model = _parsed(body)
    _check(model)
    weights = {each.name: tuple(each.dims) for each in model.graph.initializer}
    scalars = dict(_scalars(model.graph))
    written = _fix_inputs(model.graph, weights, asked)
    _lighten(model.graph)
    shapes = _inferred(model)
    return Outline(
        nodes=tuple(_node(each, place) for place, each in enumerate(model.graph.node)),
        shapes=shapes,
        weights=weights,
        scalars=scalars,
        outputs=tuple(dict.fromkeys(_leaving(model.graph))),
        inner=tuple(_node(each, 0) for each in _inner(model.graph) if each.op_type in CONVOLUTIONS),
        written_batch=written if written != asked.batch else None,
    )


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
    """See that a model is of a size, and of a kind, that is read."""
    if model.functions:
        named = ", ".join(each.name for each in model.functions[:3])
        raise Refused(f"functions {named}", "a model without functions of its own: have them inlined when exporting")
    count = 0
    for graph in _graphs(model.graph):
        count += len(graph.node)
        n_tensors = len(graph.initializer) + len(graph.value_info) + len(graph.input) + len(graph.output)
        n_tensors += sum(len(node.output) for node in graph.node)
        if count > MAX_NODES or n_tensors > MAX_TENSORS:
            raise Refused(f"{count} nodes, {n_tensors} tensors", f"at most {MAX_NODES} nodes, {MAX_TENSORS} tensors")
        if graph.sparse_initializer:
            raise Refused("a sparse weight", "dense weights")
        for tensor in (*graph.initializer, *_attribute_tensors(graph)):
            _check_tensor(tensor)
        for name in _names(graph):
            if isinstance(name, bytes):
                raise Refused(f"the name {name!r}", "names in UTF-8")
    _check_order(model.graph)


def _check_order(graph: Any) -> None:
    """See that each tensor is made once, before it is read."""
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
    """The names in a graph; protobuf gives one that is no UTF-8 as bytes."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for each in (*graph.initializer, *graph.input, *graph.output):
        yield each.name
    for given in graph.input:
        yield from (dim.dim_param for dim in given.type.tensor_type.shape.dim)


def _attribute_tensors(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _check_tensor(tensor: Any) -> None:
    """See that a weight lies in the model, or in a file beside it, which is never opened."""
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
    """A graph and all that lie within it."""
    waiting = [graph]
    while waiting:
        found = waiting.pop()
        yield found
        for node in found.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                waiting.extend(attribute.graphs)


def _inner(graph: Any) -> Iterator[Any]:
    graphs = _graphs(graph)
    next(graphs)
    for found in graphs:
        yield from found.node


def _leaving(graph: Any) -> Iterator[str]:
    for result in graph.output:
        yield result.name
    for node in _inner(graph):
        yield from node.input


def _fix_inputs(graph: Any, weights: dict[str, Dims], asked: Request) -> int | None:
    """Give each size of an input a number, the batch first; the batch that the model was written for.

    Raises
    ------
    Refused
        Nothing says how large a dimension is.
    """
    known, written = dict(asked.dims), None
    used: set[str] = set()
    # Where a model is exported without its parameters, they are inputs, and begin with no batch.
    parameters = {name for node in graph.node if node.op_type == "Conv" for name in node.input[1:]}
    inputs = [each for each in graph.input if each.name not in weights]
    for given in inputs:
        dims = given.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value") and dims[0].dim_param:
            known.setdefault(dims[0].dim_param, asked.batch)
    for given in inputs:
        dims = given.type.tensor_type.shape.dim
        for place, dim in enumerate(dims):
            is_batch = place == 0 and given.name not in parameters
            if dim.HasField("dim_value") and dim.dim_value > 0:
                if is_batch and len(dims) == _IMAGE_DIMS:
                    written = dim.dim_value
                    dim.dim_value = asked.batch
                continue
            used.add(dim.dim_param)
            size = asked.batch if is_batch else known.get(dim.dim_param)
            if size is None:
                unnamed = f"of size {dim.dim_value}" if dim.HasField("dim_value") else "without a name"
                named = repr(dim.dim_param) if dim.dim_param else unnamed
                allowed = f"a size for it, such as {dim.dim_param or 'height'}=224"
                if not dim.dim_param:
                    allowed = "a model whose dimensions have a size or a name"
                raise Refused(f"dimension {place} of input {given.name!r}, {named}", allowed, "dims")
            dim.dim_value = size
    for name in asked.dims.keys() - used:
        found = ", ".join(sorted(filter(None, used))) or "no symbolic dimension"
        raise Refused(name, f"a symbolic dimension of the model's inputs: {found}", "dims")
    return written


def _scalars(graph: Any) -> Iterator[tuple[str, float]]:
    from onnx import numpy_helper

    held = [(each.name, each) for each in graph.initializer]
    held += [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for name, tensor in held:
        if all(size == 1 for size in tensor.dims) and not tensor.external_data:
            try:
                yield name, float(numpy_helper.to_array(tensor).reshape(()))
            except (KeyError, TypeError, ValueError):
                continue  # a type that nobody knows, text, or a value that is not there: nothing follows from it


def _lighten(graph: Any) -> None:
    """Leave the values of large weights aside, and every shape that the file claims."""
    for tensor in graph.initializer:
        if not _is_kept(tensor):
            given = graph.input.add()
            given.name = tensor.name
            given.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                given.type.tensor_type.shape.dim.add().dim_value = size
    kept = [tensor for tensor in graph.initializer if _is_kept(tensor)]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.value_info[:]
    for result in graph.output:
        result.type.tensor_type.ClearField("shape")


def _is_kept(tensor: Any) -> bool:
    return not tensor.external_data and prod(tensor.dims) <= _KEPT_VALUES


def _inferred(model: Any) -> dict[str, Dims]:
    """The shapes of all tensors; values that shapes depend on are followed where those of convolutions need it."""
    from onnx import shape_inference

    body = model.SerializeToString()
    wanted = {node.input[0] for node in model.graph.node if node.op_type in CONVOLUTIONS and node.input}
    shapes: dict[str, Dims] = {}
    for follows_values in (False, True):
        try:
            found = shape_inference.infer_shapes(body, data_prop=follows_values)
        except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
            if shapes:
                break
            raise Refused(_first_line(error), "a model whose shapes can be inferred") from None
        shapes = {
            each.name: _dims(each)
            for each in (*found.graph.input, *found.graph.value_info, *found.graph.output)
            if each.type.tensor_type.HasField("shape")
        }
        if all(None not in shapes.get(name, (None,)) for name in wanted):
            break
    return shapes


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
