"""From the outline of an ONNX model to a network; the inferred shapes of a convolution are checked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from conv_advisor.app.plans.epilogues import Epilogues
from conv_advisor.app.plans.onnx_reader import CONVOLUTIONS
from conv_advisor.app.plans.outline import Dims, Node, Outline
from conv_advisor.app.wire.spellings import AutoPad, automatic_pads
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.models.planning.network import Network, Operator

_EITHER: Final = frozenset(
    (
        *("Abs", "Add", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Div", "Dropout", "Elu"),
        *("Erf", "Exp", "Floor", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity"),
        *("LRN", "LeakyRelu", "Log", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal"),
        *("Relu", "Resize", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh"),
        *("ThresholdedRelu", "Upsample", "Where", "InstanceNormalization", "Pad", "Concat", "Split", "Slice"),
    )
)
"""Kinds that run equally fast in either layout: they work on single values, or on whole pixels or channels."""
_OTHERS: Final = {
    "ConvTranspose": "a transposed convolution: only forward convolutions are advised on",
    "ConvInteger": "a convolution of integers: only floating point is advised on",
    "QLinearConv": "a convolution of quantised integers: only floating point is advised on",
    "DeformConv": "a deformable convolution: only plain ones are advised on",
}


_DTYPES: Final = {"FLOAT": DType.FLOAT32, "FLOAT16": DType.FLOAT16, "BFLOAT16": DType.BFLOAT16}
"""Precisions by ONNX's names."""


def network_of(outline: Outline, name: str, dtype: DType | None) -> Network:
    """The network of a model.

    Parameters
    ----------
    outline : Outline
    name : str
        Name of the network.
    dtype : DType or None
        Precision of the network, whatever the model is stored in; None: that of most of the model's convolutions.

    Raises
    ------
    InvalidInput
        No precision is given, and the model's own is none of ours.
    """
    chosen = dtype or _own_dtype(outline)
    operators = _fused(outline, chosen)
    n_bytes = {
        tensor: prod(dims) * chosen.itemsize_bytes
        for operator in operators
        for tensor in (*operator.reads, *operator.writes)
        if (dims := _known(outline.shapes.get(tensor))) and _has_layout(dims)
    }
    inner = [Operator(node.name, node.kind, (), (), left_out=_INNER) for node in outline.inner]
    remarks = (*_remarks(outline, operators), *(() if dtype else _in_others(outline, chosen)))
    return Network(name, (*operators, *inner), n_bytes, frozenset(outline.outputs), remarks)


def _own_dtype(outline: Outline) -> DType:
    """The precision of most convolutions of a model; float32 where none is known.

    Raises
    ------
    InvalidInput
    """
    precision = max(outline.precisions, key=outline.precisions.__getitem__, default="FLOAT")
    if precision not in _DTYPES:
        allowed = f"{', '.join(DType)}; the model is in none of them, so name the one to plan it in"
        raise InvalidInput("dtype", precision, allowed)
    return _DTYPES[precision]


def _in_others(outline: Outline, dtype: DType) -> Iterator[str]:
    """A remark for each precision that a model has beside the one that it is planned in."""
    for precision, count in outline.precisions.items():
        if _DTYPES.get(precision) is not dtype:
            yield f"{counted(count, 'convolution')} in {precision} planned in {dtype}, as most of the model is"


def _fused(outline: Outline, dtype: DType) -> list[Operator]:
    """The operators of a model, without those fused into a convolution."""
    epilogues = Epilogues(outline)
    operators: dict[int, Operator] = {}
    fused_places: set[int] = set()
    for place, node in enumerate(outline.nodes):
        if place in fused_places or node.kind == "Constant":
            continue
        operator = operators[place] = _operator(node, outline, dtype)
        if operator.problem is not None:
            fused = epilogues.of(place)
            fused_places.update(fused.places)
            operators[place] = replace(
                operator,
                problem=replace(operator.problem, epilogue=fused.epilogue),
                reads=(*operator.reads, *filter(None, (fused.residual,))),
                writes=(fused.tensor,),
            )
    return list(operators.values())


_INNER: Final = "it lies within a branch or a loop, and how often that runs is unknown"


def _operator(node: Node, outline: Outline, dtype: DType) -> Operator:
    writes = tuple(name for name in node.outputs if name)
    if node.kind not in CONVOLUTIONS:
        reads = tuple(name for name in node.inputs if name and name not in outline.weights)
        return Operator(node.name, node.kind, reads, writes, takes_either=node.kind in _EITHER)
    weight = node.inputs[1] if len(node.inputs) > 1 else ""
    try:
        problem, reason = _problem(node, outline, dtype), ""
    except (_NotOurs, InvalidProblem) as error:
        problem, reason = None, str(error)
    # An operator that is left out still runs somewhere, possibly in either layout.
    return Operator(node.name, node.kind, node.inputs[:1], writes, problem, weight, problem is None, reason)


class _NotOurs(Exception):
    """The advisor has no advice for this convolution."""


def _problem(node: Node, outline: Outline, dtype: DType) -> ConvProblem:
    """The problem of a node.

    Raises
    ------
    _NotOurs, InvalidProblem
    """
    if node.kind in _OTHERS:
        raise _NotOurs(_OTHERS[node.kind])
    if len(node.inputs) < 2:
        raise _NotOurs("it has no weight")
    x, weight = (_shape(name, outline) for name in node.inputs[:2])
    if len(weight) != 4:
        raise _NotOurs(f"a convolution in {counted(max(len(weight) - 2, 0), 'dimension')}: only two are advised on")
    if len(x) != 4:
        raise _NotOurs(f"its input has the shape {_said(x)}, and not four dimensions")
    n, c, h, w = x
    k, depth, r, s = weight
    groups, (stride_h, stride_w), (dilation_h, dilation_w) = (
        _integers(node, "group", 1, 1)[0],
        _integers(node, "strides", 2, 1),
        _integers(node, "dilations", 2, 1),
    )
    if groups < 1:
        raise InvalidProblem("group", groups, "an integer from 1")
    if depth * groups != c:
        by_group = f" in each of {groups} groups" if groups > 1 else ""
        raise _NotOurs(f"its input has {counted(c, 'channel')}, and its weight is for {depth}{by_group}")
    if "kernel_shape" in node.numbers and _integers(node, "kernel_shape", 2, 1) != (r, s):
        raise InvalidProblem("kernel_shape", node.numbers["kernel_shape"], f"{r}x{s}, as the weight has it")
    sizes = {
        **{"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s, "groups": groups},
        **{"stride_h": stride_h, "stride_w": stride_w, "dilation_h": dilation_h, "dilation_w": dilation_w},
    }
    fields: dict[str, Any] = sizes | _pads(node, sizes)
    problem = ConvProblem(**fields, dtype=dtype)
    inferred = _known(outline.shapes.get(node.outputs[0])) if node.outputs else None
    if inferred and inferred != problem.y_shape:
        raise _NotOurs(f"it makes {_said(problem.y_shape)}, and the model's shapes say {_said(inferred)}")
    return problem


def _shape(name: str, outline: Outline) -> tuple[int, ...]:
    dims = outline.weights.get(name) or outline.shapes.get(name)
    if dims is None:
        raise _NotOurs(f"the shape of {name!r} is unknown")
    sizes = _known(dims)
    if sizes is None:
        raise _NotOurs(f"the shape of {name!r} depends on values: {_said(dims)}")
    return sizes


def _pads(node: Node, sizes: Mapping[str, int]) -> dict[str, int]:
    """Rows and columns of zero padding, as fields of a problem of these sizes."""
    mode, pads = node.words.get("auto_pad", AutoPad.NOTSET), _integers(node, "pads", 4, 0)
    automatic = automatic_pads(mode, sizes)
    if automatic is None:
        return dict(zip(("pad_h", "pad_w", "pad_h_end", "pad_w_end"), pads, strict=True))
    if any(pads):
        raise InvalidProblem("pads", pads, f"not together with auto_pad={mode}")
    return automatic


def _integers(node: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    """An attribute of `count` integers.

    Raises
    ------
    InvalidProblem
    """
    values = node.numbers.get(name, (default,) * count)
    if name in node.words or len(values) != count or not all(float(value).is_integer() for value in values):
        raise InvalidProblem(name, node.words.get(name, values), counted(count, "integer"))
    return tuple(map(int, values))


def _known(dims: Dims | None) -> tuple[int, ...] | None:
    if dims is None:
        return None
    sizes = tuple(size for size in dims if size is not None)
    return sizes if len(sizes) == len(dims) else None


def _has_layout(dims: tuple[int, ...]) -> bool:
    """Whether the layouts differ in memory: they do not with a single channel or a single pixel."""
    return len(dims) == 4 and dims[1] > 1 and dims[2] * dims[3] > 1


def _said(dims: Dims) -> str:
    return "x".join("?" if size is None else str(size) for size in dims) or "of no dimension"


def _remarks(outline: Outline, operators: Sequence[Operator]) -> Iterator[str]:
    if outline.written_batch is not None:
        yield f"the model was written for a batch of {outline.written_batch}, and its first dimension was changed"
    shared = Counter(operator.weight for operator in operators if operator.problem is not None)
    for weight, count in _several(shared).items():
        yield f"weight {weight} is shared by {count} convolutions"


def _several(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count > 1}
