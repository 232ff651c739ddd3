"""Weights of convolutions with batch norms folded into them, or laid out anew; made again when their sources change."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any, Final

import torch
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
    """The places, among a graph's inputs, of what one convolution and its batch norm are made of; None where absent.

    Without a mean and variance there is no batch norm, and the weight alone is laid out anew.
    """

    weight: int
    bias: int | None = None
    mean: int | None = None
    variance: int | None = None
    scale: int | None = None
    shift: int | None = None
    epsilon: float = 0.0

    def places(self) -> list[int]:
        """Those that are there."""
        every = (self.weight, self.bias, self.mean, self.variance, self.scale, self.shift)
        return [place for place in every if place is not None]


@dataclass(frozen=True)
class Folded:
    """One convolution whose batch norm is in its weight and bias; or, without a bias, whose weight is laid out anew."""

    sources: Sources
    weight: Any
    bias: Any

    def fold(self, inputs: Sequence[Any]) -> None:
        """Fill weight and bias, in place: graphs that were captured go on reading there."""
        sources = self.sources
        if sources.mean is None or sources.variance is None:
            self.weight.copy_(inputs[sources.weight])
            return
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


@dataclass
class _Instance:
    """What one of several modules that share a graph has folded, kept while others have their turn."""

    sources: Sequence[weakref.ref[Any]]
    versions: list[int] | None
    tensors: list[Any]


class Foldings:
    """The folded convolutions of one graph, and what their sources were when they were folded last.

    Modules of one class, such as the blocks of a model that are compiled one by one, share a graph, and what it reads
    its weights from. So what each has folded is kept, and copied there when it is its turn.
    """

    def __init__(self, folded: Sequence[Folded]) -> None:
        self._folded = folded
        self._tensors = [tensor for each in folded for tensor in (each.weight, each.bias) if tensor is not None]
        self._sources = itemgetter(*sorted({place for each in folded for place in each.sources.places()}))
        self._seen: tuple[list[int], list[int]] | None = None
        self._owner: Sequence[weakref.ref[Any]] = ()
        self._instances: dict[tuple[int, ...], _Instance] = {}
        self._stream: Any = None
        self._times = 0
        self._lock = threading.RLock()
        _all_foldings.add(self)

    def forget(self) -> None:
        """Fold anew at the next call."""
        with self._lock:
            self._seen = None
            for instance in self._instances.values():
                instance.versions = None

    def update(self, inputs: Sequence[Any]) -> None:
        """Fold anew if a source is another tensor, lies elsewhere or was written to since."""
        sources = self._sources(inputs)  # all of this is C: there are hundreds, and each call looks at them
        seen = [*map(_version, sources)], [*map(_address, sources)]
        if seen == self._seen:
            return
        with self._lock, torch.inference_mode(False), torch.no_grad(), _without_autocast(sources):
            if seen == self._seen:  # another thread was sooner
                return
            self._fold(inputs, sources, *seen)
            self._times += 1  # who ran meanwhile reads this behind the other
            self._seen = seen

    def _fold(self, inputs: Sequence[Any], sources: Sequence[Any], versions: list[int], addresses: list[int]) -> None:
        if self._seen is not None and self._seen[1] != addresses:
            self._keep_if_alive(*self._seen)
        self._owner = [weakref.ref(source) for source in sources]
        instance = self._instances.get(tuple(addresses))
        if instance is not None and instance.versions == versions:
            torch._foreach_copy_(self._tensors, instance.tensors)
            return
        for each in self._folded:
            each.fold(inputs)
        if instance is not None:  # a captured graph may go on reading there
            torch._foreach_copy_(instance.tensors, self._tensors)
            instance.versions = versions
        elif self._instances:  # at once: when its turn is over a graph may be captured, in which nothing is copied yet
            self._keep(versions, addresses)

    def _keep_if_alive(self, versions: list[int], addresses: list[int]) -> None:
        """Keep what is folded if its sources still lie there: they were not replaced, but are another module's."""
        self._instances = {key: each for key, each in self._instances.items() if _lie_at(each.sources, key)}
        if tuple(addresses) not in self._instances and _lie_at(self._owner, addresses):
            self._keep(versions, addresses)

    def _keep(self, versions: list[int], addresses: list[int]) -> None:
        kept = [tensor.clone() for tensor in self._tensors]
        self._instances[tuple(addresses)] = _Instance(self._owner, versions, kept)

    def _has_moved(self, inputs: Sequence[Any]) -> bool:
        return self._seen is None or [*map(_address, self._sources(inputs))] != self._seen[1]

    def around(self, compiled: Callable[..., Any], *, watch: bool, repeats: bool) -> Callable[..., Any]:
        """A compiled graph whose weights are folded anew where their sources changed.

        Parameters
        ----------
        compiled : callable
        watch : bool
            Whether each call looks at them; else what `refresh` says alone counts, and whose they are.
        repeats : bool
            Whether the graph may run twice, since it writes into nothing that it is given. A call then looks while the
            GPU works, and runs again in the rare case that there was a change.
        """

        def call_in_turn(*inputs: Any) -> Any:
            with self._lock:  # until all of it is enqueued: then another module's weights may take the place
                self._wait_for_others(self._sources(inputs)[0].device)
                if watch or self._has_moved(inputs):
                    self.update(inputs)
                return compiled(*inputs)

        def call_watched(*inputs: Any) -> Any:
            if self._instances:
                return call_in_turn(*inputs)
            self.update(inputs)
            return compiled(*inputs)

        def call_meanwhile(*inputs: Any) -> Any:
            if self._instances:
                return call_in_turn(*inputs)
            times = self._times
            y = compiled(*inputs)
            self.update(inputs)
            if self._times == times:
                return y
            del y  # a graph that is replayed would not write where its outputs are still in use
            return compiled(*inputs)

        def call_unwatched(*inputs: Any) -> Any:
            if self._instances:
                return call_in_turn(*inputs)
            if self._has_moved(inputs):
                self.update(inputs)
            return compiled(*inputs)

        if not watch:
            return call_unwatched
        return call_meanwhile if repeats else call_watched

    def _wait_for_others(self, device: Any) -> None:
        """Let this stream wait for what was enqueued on another one by modules that had their turn before."""
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return
        stream = torch.cuda.current_stream(device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream


def _lie_at(sources: Sequence[weakref.ref[Any]], addresses: Sequence[int]) -> bool:
    tensors = [source() for source in sources]
    return all(
        tensor is not None and _address(tensor) == address for tensor, address in zip(tensors, addresses, strict=True)
    )


class Weights:
    """What convolutions of a graph take for its inputs: weights with a batch norm in them, or laid out anew.

    Parameters
    ----------
    gm : GraphModule
        Changed in place.
    inputs : sequence
        The graph's inputs, real.

    Notes
    -----
    Each use of a weight is made for itself, so that layers that share one stay apart. Nothing is computed before
    `foldings`.
    """

    def __init__(self, gm: GraphModule, inputs: Sequence[Any]) -> None:
        self._gm, self._inputs = gm, inputs
        self._places = {node: place for place, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
        self._folded: dict[Node, Folded] = {}
        self._can_add = hasattr(gm, "_param_name_to_source")  # by it PyTorch knows buffers that a backend adds

    def fold_batch_norms(self, sites: Iterable[Site]) -> None:
        """Fold each batch norm in evaluation that alone takes what a convolution returns.

        The call of a folded site takes the folded weight and bias, and its value stands for the batch norm's.
        """
        for site in sites:
            if self._can_add and len(site.node.users) == 1:
                self._fold(site, next(iter(site.node.users)))

    def can_lay(self, site: Site) -> bool:
        """Whether the weight of a convolution can be laid out anew once, and not by each call."""
        if site.node in self._folded:
            return True
        _, weight, _ = site.operands
        return self._can_add and weight in self._places and self._are_constant([self._places[weight]])

    def lay(self, site: Site) -> None:
        """Let a convolution of which `can_lay` says so take its weight in the layout of its problem."""
        _, weight, bias = site.operands
        layout = site.problem.layout
        folded = self._folded.get(site.node)
        if folded is None:
            place = self._places[weight]
            if self._inputs[place].is_contiguous(memory_format=MEMORY_FORMATS[layout]):
                return
            folded = Folded(Sources(place), self._empty_weight(site, place), None)
            with self._gm.graph.inserting_before(site.node):
                site.set_weight(_add_buffer(self._gm, site, "weight", folded.weight), bias)
        else:
            folded = replace(folded, weight=self._empty_weight(site, folded.sources.weight))
            setattr(self._gm, weight.target, folded.weight)
        self._folded[site.node] = folded

    def foldings(self) -> Foldings | None:
        """What keeps them as their sources are, filled now; None where all weights are as they were."""
        if not self._folded:
            return None
        foldings = Foldings(tuple(self._folded.values()))
        foldings.update(self._inputs)
        return foldings

    def _fold(self, site: Site, norm: Node) -> None:
        sources = _sources(site, norm, self._places)
        if sources is None or not self._are_constant(sources.places()):
            return
        weight = self._empty_weight(site, sources.weight)
        with torch.inference_mode(False):
            folded = Folded(sources, weight, weight.new_empty(weight.shape[0]))
        with self._gm.graph.inserting_before(site.node):
            nodes = (_add_buffer(self._gm, site, name, getattr(folded, name)) for name in ("weight", "bias"))
            site.set_weight(*nodes)
        norm.replace_all_uses_with(site.node)
        self._gm.graph.erase_node(norm)
        self._folded[site.node] = folded

    def _empty_weight(self, site: Site, place: int) -> Any:
        given = self._inputs[place]
        options = {"dtype": site.dtype, "device": given.device, "memory_format": MEMORY_FORMATS[site.problem.layout]}
        with torch.inference_mode(False):
            return torch.empty(given.shape, **options)

    def _are_constant(self, places: Iterable[int]) -> bool:
        wanted = set(places)
        return all(_is_constant(node, self._inputs[place]) for node, place in self._places.items() if place in wanted)


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


def _is_constant(node: Node, given: Any) -> bool:
    """Whether an input is a parameter or buffer whose changes are counted, and that the graph itself leaves alone."""
    is_static = "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})
    if not is_static or not isinstance(given, torch.Tensor) or given.is_inference():
        return False
    readers = (*CONVOLUTIONS, *_BATCH_NORMS)
    return all(user.op == "call_function" and user.target in readers for user in node.users)


def _add_buffer(gm: GraphModule, site: Site, kind: str, tensor: Any) -> Node:
    from torch._dynamo.source import ConstantSource  # whoever captured the graph has imported it

    name = f"conv_advisor_{site.node.name}_{kind}"
    gm.register_buffer(name, tensor)
    gm._param_name_to_source[name] = ConstantSource(name)
    node = gm.graph.get_attr(name)
    node.meta["example_value"] = value_of(site.node).new_empty(tensor.shape)
    return node


def _without_autocast(tensors: Sequence[Any]) -> Any:
    return torch.autocast(tensors[0].device.type, enabled=False)
