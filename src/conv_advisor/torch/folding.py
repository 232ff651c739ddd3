"""Batch norms behind a convolution, folded into its weight and bias, and folded again when weights change."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

import torch
from torch._dynamo.source import ConstantSource
from torch.fx import GraphModule, Node

from conv_advisor.torch.graph import CONVOLUTIONS, Site
from conv_advisor.torch.layers import MEMORY_FORMATS
from conv_advisor.torch.nodes import value_of

_STATISTICS, _AFFINE, _REST = ("running_mean", "running_var"), ("weight", "bias"), ("training", "momentum", "eps")
_BATCH_NORMS: Final = {
    torch.nn.functional.batch_norm: ("input", *_STATISTICS, *_AFFINE, *_REST),
    torch.ops.aten.batch_norm.default: ("input", *_AFFINE, *_STATISTICS, *_REST, "cudnn_enabled"),
}
"""The names of their arguments, in order."""
_DEFAULTS: Final = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
_version, _address = attrgetter("_version"), torch.Tensor.data_ptr
_all_foldings: Final[weakref.WeakSet[Foldings]] = weakref.WeakSet()


def refresh() -> None:
    """Fold all batch norms again before the next call of each compiled model.

    It is needed after a change of weights that PyTorch does not count: one made in place through ``tensor.data``.
    What goes through ``load_state_dict``, an optimizer, or any other in-place operation is noticed without it.
    """
    for foldings in list(_all_foldings):
        foldings.forget()


@dataclass(frozen=True)
class Sources:
    """The places, among a graph's inputs, of what one convolution and its batch norm are made of; None where absent."""

    weight: int
    bias: int | None
    mean: int
    variance: int
    scale: int | None
    shift: int | None
    epsilon: float

    def places(self) -> list[int]:
        """Those that are there."""
        every = (self.weight, self.bias, self.mean, self.variance, self.scale, self.shift)
        return [place for place in every if place is not None]


@dataclass(frozen=True)
class Folded:
    """One convolution whose batch norm is in its weight and bias."""

    sources: Sources
    weight: Any
    bias: Any

    def fold(self, inputs: Sequence[Any]) -> None:
        """Fill weight and bias, in place: graphs that were captured go on reading there."""
        sources = self.sources
        weight, mean, variance = (
            inputs[place].detach().float() for place in (sources.weight, sources.mean, sources.variance)
        )
        factor = torch.rsqrt(variance + sources.epsilon)
        if sources.scale is not None:
            factor = factor * inputs[sources.scale].detach().float()
        shift = -mean if sources.bias is None else inputs[sources.bias].detach().float() - mean
        shift = shift * factor
        if sources.shift is not None:
            shift = shift + inputs[sources.shift].detach().float()
        self.weight.copy_(weight * factor.reshape(-1, 1, 1, 1))
        self.bias.copy_(shift)


class Foldings:
    """The folded convolutions of one graph, and what their sources were when they were folded last."""

    def __init__(self, folded: Sequence[Folded]) -> None:
        self._folded = folded
        self._sources = itemgetter(*sorted({place for each in folded for place in each.sources.places()}))
        self._seen: tuple[list[int], list[int]] | None = None
        self._times = 0
        self._lock = threading.Lock()
        _all_foldings.add(self)

    def forget(self) -> None:
        """Fold anew at the next call."""
        self._seen = None

    def update(self, inputs: Sequence[Any]) -> None:
        """Fold anew if a source is another tensor, lies elsewhere or was written to since."""
        sources = self._sources(inputs)  # all of this is C: there are hundreds, and each call looks at them
        seen = [*map(_version, sources)], [*map(_address, sources)]
        if seen == self._seen:
            return
        with self._lock, torch.inference_mode(False), torch.no_grad(), _without_autocast(inputs):
            if seen == self._seen:  # another thread was sooner
                return
            for each in self._folded:
                each.fold(inputs)
            self._times += 1  # who ran meanwhile reads this behind the other
            self._seen = seen

    def around(self, compiled: Callable[..., Any], *, watch: bool, repeats: bool) -> Callable[..., Any]:
        """A compiled graph whose weights are folded anew where their sources changed.

        Parameters
        ----------
        compiled : callable
        watch : bool
            Whether each call looks at them; else what `refresh` says alone counts.
        repeats : bool
            Whether the graph may run twice, since it writes into nothing that it is given. A call then looks while the
            GPU works, and runs again in the rare case that there was a change.
        """

        def call_watched(*inputs: Any) -> Any:
            self.update(inputs)
            return compiled(*inputs)

        def call_meanwhile(*inputs: Any) -> Any:
            times = self._times
            y = compiled(*inputs)
            self.update(inputs)
            if self._times == times:
                return y
            del y  # a graph that is replayed would not write where its outputs are still in use
            return compiled(*inputs)

        def call_unwatched(*inputs: Any) -> Any:
            if self._seen is None:
                self.update(inputs)
            return compiled(*inputs)

        if not watch:
            return call_unwatched
        return call_meanwhile if repeats else call_watched


def fold_batch_norms(gm: GraphModule, sites: Sequence[Site], inputs: Sequence[Any]) -> Foldings | None:
    """Fold each batch norm in evaluation that alone takes what a convolution returns.

    The call of a folded site takes the folded weight and bias, and its value stands for the batch norm's. Each
    use of a weight is folded for itself, so that layers that share one stay apart.

    Parameters
    ----------
    gm : GraphModule
        Changed in place.
    sites : sequence of Site
    inputs : sequence
        The graph's inputs, real.

    Returns
    -------
    foldings : Foldings or None
        None where nothing was folded.
    """
    if not hasattr(gm, "_param_name_to_source"):  # by it PyTorch knows buffers that a backend adds
        return None
    places = {node: place for place, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    folded = [each for site in sites if (each := _fold(gm, site, places, inputs)) is not None]
    if not folded:
        return None
    foldings = Foldings(folded)
    foldings.update(inputs)
    return foldings


def _fold(gm: GraphModule, site: Site, places: dict[Node, int], inputs: Sequence[Any]) -> Folded | None:
    if len(site.node.users) != 1:
        return None
    norm = next(iter(site.node.users))
    sources = _sources(site, norm, places)
    if sources is None or not all(_is_constant(node, inputs[place]) for node, place in _pairs(sources, places)):
        return None
    given = inputs[sources.weight]
    with torch.inference_mode(False):
        folded = Folded(
            sources,
            torch.empty(
                given.shape,
                dtype=site.dtype,
                device=given.device,
                memory_format=MEMORY_FORMATS[site.problem.layout],
            ),
            torch.empty(given.shape[0], dtype=site.dtype, device=given.device),
        )
    with gm.graph.inserting_before(site.node):
        weight, bias = (_add_buffer(gm, site, name, getattr(folded, name)) for name in ("weight", "bias"))
    site.set_weight(weight, bias)
    norm.replace_all_uses_with(site.node)
    gm.graph.erase_node(norm)
    return folded


def is_norm_of(node: Node, y: Node) -> bool:
    """Whether a node is a batch norm of y in evaluation."""
    if node.op != "call_function" or node.target not in _BATCH_NORMS:
        return False
    norms = _arguments(node)
    return norms["input"] is y and norms["training"] is False


def _arguments(norm: Node) -> dict[str, Any]:
    return _DEFAULTS | dict(zip(_BATCH_NORMS[norm.target], norm.args, strict=False)) | dict(norm.kwargs)


def _sources(site: Site, norm: Node, places: dict[Node, int]) -> Sources | None:
    """Where weight, bias and the batch norm's numbers come in; None where this cannot be folded."""
    if not is_norm_of(norm, site.node):
        return None
    norms = _arguments(norm)
    if value_of(norm).dtype != site.dtype:
        return None
    _, site_weight, site_bias = site.operands
    operands = (site_weight, site_bias, norms["running_mean"], norms["running_var"], norms["weight"], norms["bias"])
    if any(node is not None and node not in places for node in operands) or None in (operands[2], operands[3]):
        return None
    weight, bias, mean, variance, scale, shift = (None if node is None else places[node] for node in operands)
    if weight is None or mean is None or variance is None:
        return None
    epsilon = norms["eps"]  # an input of the graph where every number is symbolic: reading its value guards it
    epsilon = value_of(epsilon) if isinstance(epsilon, Node) else epsilon
    return Sources(weight, bias, mean, variance, scale, shift, float(epsilon))


def _pairs(sources: Sources, places: dict[Node, int]) -> list[tuple[Node, int]]:
    wanted = set(sources.places())
    return [(node, place) for node, place in places.items() if place in wanted]


def _is_constant(node: Node, given: Any) -> bool:
    """Whether an input is a parameter or buffer whose changes are counted, and that the graph itself leaves alone."""
    is_static = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    if not is_static or not isinstance(given, torch.Tensor) or given.is_inference():
        return False
    readers = (*CONVOLUTIONS, *_BATCH_NORMS)
    return all(user.op == "call_function" and user.target in readers for user in node.users)


def _add_buffer(gm: GraphModule, site: Site, kind: str, tensor: Any) -> Node:
    name = f"conv_advisor_{site.node.name}_{kind}"
    gm.register_buffer(name, tensor)
    gm._param_name_to_source[name] = ConstantSource(name)
    node = gm.graph.get_attr(name)
    node.meta["example_value"] = value_of(site.node).new_empty(tensor.shape)
    return node


def _without_autocast(inputs: Sequence[Any]) -> Any:
    device = next(tensor.device.type for tensor in inputs if isinstance(tensor, torch.Tensor))
    return torch.autocast(device, enabled=False)
