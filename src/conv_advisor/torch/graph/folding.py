"""Weights and biases of convolutions with what follows folded into them, computed ahead, or laid out anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from conv_advisor.torch.calls.layers import MEMORY_FORMATS
from conv_advisor.torch.graph.constants import Computed, Constant, Constants, Given, erase_unread
from conv_advisor.torch.graph.refreshing import Folded, Foldings
from conv_advisor.torch.graph.scaling import Filters, take_in
from conv_advisor.torch.graph.sites import Site
from conv_advisor.torch.nodes import value_of

_LEAST_NORMAL: Final = torch.finfo(torch.float16).tiny


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
    Each use of a weight is made for itself, so that layers that share one stay apart. They are filled by `foldings`.
    """

    def __init__(self, gm: GraphModule, inputs: Sequence[Any]) -> None:
        self._gm, self._inputs = gm, inputs
        can_add = hasattr(gm, "_param_name_to_source")  # by it PyTorch knows buffers that a backend adds
        self._constants = Constants(_sources(gm, inputs) if can_add else {})
        self._made: dict[Node, dict[str, tuple[Any, Constant]]] = {}
        self._values: dict[Any, Any] = {}  # fakes, which take long to make: one for all buffers that are alike

    def fold(self, sites: Iterable[Site]) -> None:
        """Fold what scales and shifts a convolution's output, and compute weights and biases ahead that are computed.

        The call of a folded site takes the folded weight and bias, and its value stands for that of what is folded.
        """
        for site in sites:
            self._fold(site)

    def can_lay(self, site: Site) -> bool:
        """Whether the weight of a convolution can be laid out anew once, and not by each call."""
        return self._constant_weight(site) is not None

    def lay(self, site: Site) -> None:
        """Let a convolution of which `can_lay` says so take its weight in the layout of its problem."""
        constant = self._constant_weight(site)
        if isinstance(constant, Given):
            given = self._inputs[constant.place]
            if given.is_contiguous(memory_format=MEMORY_FORMATS[site.problem.layout]):
                return
        if constant is not None:
            self._take(site, weight=constant)

    def foldings(self) -> Foldings | None:
        """What keeps them as their sources are, filled now; None where all weights are as they were."""
        if not self._made:
            return None
        foldings = Foldings([Folded(tuple(made.values())) for made in self._made.values()])
        foldings.update(self._inputs)
        return foldings

    def _constant_weight(self, site: Site) -> Constant | None:
        made = self._made.get(site.node, {}).get("weight")
        return self._constants.constant_of(site.operands[1], value_of(site.node)) if made is None else made[1]

    def _fold(self, site: Site) -> None:
        like = value_of(site.node)
        weight, bias = (node and self._constants.constant_of(node, like) for node in site.operands[1:])
        if weight is not None and (bias is not None or site.operands[2] is None):
            filters = take_in(site.node, Filters(weight, bias), self._constants, self._is_exact(site))
            weight, bias = filters.weight, filters.bias
        computed = {"weight": weight, "bias": bias}
        self._take(site, **{kind: each for kind, each in computed.items() if isinstance(each, Computed)})

    def _is_exact(self, site: Site) -> Any:
        """Whether a scaled weight is neither too large nor too small for float16, which other precisions cannot be."""

        def is_exact(filters: Filters) -> bool:
            if site.dtype is not torch.float16:
                return True
            if value_of(site.node).is_cuda and torch.cuda.is_current_stream_capturing():
                return False  # nothing can be waited for
            with torch.inference_mode(False), torch.no_grad():
                most = float(filters.weight.value(self._inputs, {}).abs().max())
            return most == 0 or _LEAST_NORMAL <= most <= torch.finfo(torch.float16).max

        return is_exact

    def _take(self, site: Site, **constants: Constant) -> None:
        """Let a convolution read constants where it read its weight or bias."""
        problem = site.problem
        shapes = {"weight": (problem.k, problem.c // problem.groups, problem.r, problem.s), "bias": (problem.k,)}
        _, *given = site.operands
        taken = dict(zip(shapes, given, strict=True))
        made = self._made.setdefault(site.node, {}) if constants else {}
        for kind, constant in constants.items():
            tensor = _empty(site, shapes[kind])
            if kind in made:
                setattr(self._gm, str(taken[kind].target), tensor)
            else:
                taken[kind] = self._add_buffer(site, kind, tensor)
            made[kind] = tensor, constant
        if constants:
            site.set_weight(**taken)
            erase_unread(given)

    def _add_buffer(self, site: Site, kind: str, tensor: Any) -> Node:
        from torch._dynamo.source import ConstantSource  # whoever captured the graph has imported it

        name = f"conv_advisor_{site.node.name}_{kind}"
        self._gm.register_buffer(name, tensor)
        self._gm._param_name_to_source[name] = ConstantSource(name)
        with self._gm.graph.inserting_before(site.node):
            node = self._gm.graph.get_attr(name)
        key = tensor.shape, tensor.dtype, tensor.device
        if key not in self._values:
            self._values[key] = value_of(site.node).new_empty(tensor.shape)
        node.meta["example_value"] = self._values[key]
        return node


def _sources(gm: GraphModule, inputs: Sequence[Any]) -> Mapping[Node, int]:
    """The inputs that are parameters or buffers whose changes are counted."""
    placeholders = (node for node in gm.graph.nodes if node.op == "placeholder")
    return {
        node: place
        for place, (node, given) in enumerate(zip(placeholders, inputs, strict=False))
        if "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
        and isinstance(given, torch.Tensor)
        and not given.is_inference()
    }


def _empty(site: Site, shape: tuple[int, ...]) -> Any:
    memory_format = MEMORY_FORMATS[site.problem.layout] if len(shape) == 4 else torch.contiguous_format
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=site.dtype, device=value_of(site.node).device, memory_format=memory_format)
