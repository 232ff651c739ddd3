"""Weights and biases of convolutions with what follows folded into them, computed ahead, or laid out anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from conv_advisor.torch.calls.layers import MEMORY_FORMATS
from conv_advisor.torch.graph.batch_norms import batch_norm_of
from conv_advisor.torch.graph.constants import Computed, Constant, Constants, Given, erase_unread
from conv_advisor.torch.graph.refreshing import Folded, Foldings
from conv_advisor.torch.graph.scaling import Filters, IsExact, scale_and_shift, take_in
from conv_advisor.torch.graph.sites import Site
from conv_advisor.torch.nodes import value_of

_FLOAT16: Final = torch.finfo(torch.float16)


class Weights:
    """What convolutions of a graph take for its inputs: weights and biases that are computed outside it.

    Parameters
    ----------
    gm : GraphModule
        Changed in place.
    inputs : sequence
        The graph's inputs, real.

    Notes
    -----
    Each convolution has tensors of its own, so that layers that share a weight stay apart. `foldings` fills them.
    """

    def __init__(self, gm: GraphModule, inputs: Sequence[Any]) -> None:
        self._gm, self._inputs = gm, inputs
        can_add = hasattr(gm, "_param_name_to_source")  # by it PyTorch knows buffers that a backend adds
        sources = _sources(gm, inputs) if can_add else {}
        self._constants = Constants(sources, _neighbours(gm, inputs) if sources else {})
        norms = [norm for node in gm.graph.nodes if (norm := batch_norm_of(node)) is not None]
        self._means = {sources[norm.mean] for norm in norms if norm.mean in sources}
        self._made: dict[Node, dict[str, tuple[Any, Constant]]] = {}
        self._values: dict[Any, Any] = {}  # fakes, which take long to make: one for all buffers that are alike

    def fold(self, sites: Iterable[Site]) -> None:
        """Fold what scales and shifts a convolution's output, and compute ahead the weights that a graph computes.

        The call of a folded site takes the folded weight and bias, and its value replaces that of the folded nodes.
        """
        for site in sites:
            self._fold(site)

    def can_lay(self, site: Site) -> bool:
        """Whether the weight of a convolution can be laid out anew once, and not by each call."""
        return self._constant_weight(site) is not None

    def lay(self, site: Site) -> None:
        """Let a convolution take its weight in the layout of its problem; `can_lay` must be true of it."""
        constant = self._constant_weight(site)
        if isinstance(constant, Given):
            weight = self._inputs[constant.place]
            if weight.is_contiguous(memory_format=MEMORY_FORMATS[site.problem.layout]):
                return
        if constant is not None:
            self._take(site, weight=constant)

    def prologue(self, norm: Node) -> Node | None:
        """Scale and shift of a batch norm in evaluation, float32 of shape (2,C), as a node; None where they change."""
        constant = scale_and_shift(norm, self._constants)
        if constant is None:
            return None
        like = value_of(norm)
        with torch.inference_mode(False):
            tensor = torch.empty(2, like.shape[1], dtype=torch.float32, device=like.device)
        self._made[norm] = {"prologue": (tensor, constant)}
        return self._add_buffer(norm, "prologue", tensor)

    def foldings(self) -> Foldings | None:
        """What keeps the new weights as their sources are, filled now; None where no weight was replaced."""
        if not self._made:
            return None
        foldings = Foldings([Folded(tuple(by_kind.values())) for by_kind in self._made.values()], self._means)
        foldings.update(self._inputs)
        return foldings

    def _constant_weight(self, site: Site) -> Constant | None:
        folded = self._made.get(site.node, {}).get("weight")
        return self._constants.constant_of(site.operands[1], value_of(site.node)) if folded is None else folded[1]

    def _fold(self, site: Site) -> None:
        like = value_of(site.node)
        weight, bias = (node and self._constants.constant_of(node, like) for node in site.operands[1:])
        if weight is not None and (bias is not None or site.operands[2] is None):
            filters = take_in(site.node, Filters(weight, bias), self._constants, self._is_exact(site))
            weight, bias = filters.weight, filters.bias
        constants = {"weight": weight, "bias": bias}
        self._take(site, **{kind: constant for kind, constant in constants.items() if isinstance(constant, Computed)})

    def _is_exact(self, site: Site) -> IsExact:
        """A test whether filters are as precise in float16 as others; other precisions have room for all."""

        def is_exact(filters: Filters, spread: Constant | None) -> bool:
            if site.dtype is not torch.float16:
                return True
            if value_of(site.node).is_cuda and torch.cuda.is_current_stream_capturing():
                return False  # nothing can be waited for
            with torch.inference_mode(False), torch.no_grad():
                known: dict[Any, Any] = {}
                weight = filters.weight.value(self._inputs, known)
                return _fits_float16(weight, spread and spread.value(self._inputs, known))

        return is_exact

    def _take(self, site: Site, **constants: Constant) -> None:
        """Let a convolution read constants where it read its weight or bias."""
        problem = site.problem
        shapes = {"weight": (problem.k, problem.c // problem.groups, problem.r, problem.s), "bias": (problem.k,)}
        _, *old_nodes = site.operands
        nodes = dict(zip(shapes, old_nodes, strict=True))
        by_kind = self._made.setdefault(site.node, {}) if constants else {}
        for kind, constant in constants.items():
            tensor = _empty(site, shapes[kind])
            if kind in by_kind:
                setattr(self._gm, str(nodes[kind].target), tensor)
            else:
                nodes[kind] = self._add_buffer(site.node, kind, tensor)
            by_kind[kind] = tensor, constant
        if constants:
            site.set_weight(**nodes)
            erase_unread(old_nodes)

    def _add_buffer(self, reader: Node, kind: str, tensor: Any) -> Node:
        from torch._dynamo.source import ConstantSource  # Dynamo, which captured the graph, has imported it

        name = f"conv_advisor_{reader.name}_{kind}"
        self._gm.register_buffer(name, tensor)
        self._gm._param_name_to_source[name] = ConstantSource(name)
        with self._gm.graph.inserting_before(reader):
            node = self._gm.graph.get_attr(name)
        key = tensor.shape, tensor.dtype, tensor.device
        if key not in self._values:
            self._values[key] = value_of(reader).new_empty(tensor.shape, dtype=tensor.dtype)
        node.meta["example_value"] = self._values[key]
        return node


def _sources(gm: GraphModule, inputs: Sequence[Any]) -> Mapping[Node, int]:
    """The inputs that are parameters or buffers whose changes are counted."""
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    return {
        node: place
        for place, (node, value) in enumerate(zip(placeholders, inputs, strict=False))
        if "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        and isinstance(value, torch.Tensor)
        and not value.is_inference()
    }


def _neighbours(gm: GraphModule, inputs: Sequence[Any]) -> dict[Node, list[Node]]:
    """The other inputs of the graph that lie in the same memory, of each that has some."""
    by_memory: dict[int, list[Node]] = {}
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    for node, value in zip(placeholders, inputs, strict=False):
        if isinstance(value, torch.Tensor) and torch._C._has_storage(value):
            by_memory.setdefault(value.untyped_storage()._cdata, []).append(node)
    return {
        node: [other for other in together if other is not node]
        for together in by_memory.values()
        if len(together) > 1
        for node in together
    }


def _empty(site: Site, shape: tuple[int, ...]) -> Any:
    memory_format = MEMORY_FORMATS[site.problem.layout] if len(shape) == 4 else torch.contiguous_format
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=site.dtype, device=value_of(site.node).device, memory_format=memory_format)


def _fits_float16(weight: Any, spread: Any) -> bool:
    """Whether rounding adds no more to the output of any filter than rounding that output does.

    Parameters
    ----------
    weight : tensor of shape (K,C/groups,R,S)
    spread : tensor of shape (2,K) or None
        Mean and deviation of each output, if known. Trained networks have filters whose outputs hardly deviate: their
        weights may vanish.
    """
    largest = weight.abs().amax((1, 2, 3)).double()
    mean, deviation = torch.ones_like(largest).repeat(2, 1) if spread is None else spread
    error = deviation * (_FLOAT16.tiny * _FLOAT16.eps / largest).clamp(max=1)
    allowed = _FLOAT16.eps * torch.maximum(mean.abs(), deviation).clamp(min=_FLOAT16.tiny)
    return bool(((largest == 0) | ((error <= allowed) & (largest <= _FLOAT16.max))).all())
