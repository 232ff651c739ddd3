"""Weights and biases that are computed outside a graph, which reads them; made again when their sources change."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

import torch

from conv_advisor.torch.graph.constants import Constant, Given

_version, _address = attrgetter("_version"), torch.Tensor.data_ptr
_all_foldings: Final[weakref.WeakSet[Foldings]] = weakref.WeakSet()
_norms: Final[weakref.WeakValueDictionary[int, torch.nn.Module]] = weakref.WeakValueDictionary()
"""Modules that count their batches, by id."""


def refresh() -> None:
    """Let each compiled model compute anew, before its next call, all that was folded.

    It is needed after a change of weights that PyTorch does not count: one made in place through ``tensor.data``, NumPy
    or a kernel of somebody's own, by a fused optimizer, or by a batch norm in training that has no
    ``num_batches_tracked``. What goes through ``load_state_dict``, any other optimizer, in-place operation or batch
    norm in training is noticed without it.
    """
    for foldings in list(_all_foldings):
        foldings.forget()


@dataclass(frozen=True)
class Folded:
    """What one convolution takes in the place of its weight and bias.

    Parameters
    ----------
    made : tuple of (tensor, Constant)
        Each tensor, and the constant that it is to hold.
    """

    made: tuple[tuple[Any, Constant], ...]

    def fold(self, inputs: Sequence[Any]) -> None:
        """Fill them, in place: graphs that were captured go on reading there."""
        known: dict[Any, Any] = {}
        for tensor, constant in self.made:
            tensor.copy_(inputs[constant.place] if isinstance(constant, Given) else constant.value(inputs, known))


@dataclass
class _Instance:
    """The folded tensors of one of several modules that share a graph, kept while others have their turn."""

    sources: Sequence[weakref.ref[Any]]
    counters: tuple[Any, ...]
    versions: list[int] | None
    tensors: list[Any]


class Foldings:
    """The folded convolutions of one graph, and what their sources were when they were folded last.

    Modules of one class, such as the blocks of a model that are compiled one by one, share a graph and the tensors that
    it reads its weights from. So what each module folded is kept, and copied into those tensors when it is its turn.

    Parameters
    ----------
    folded : sequence of Folded
    means : iterable of int
        Places of the running means of batch norms. PyTorch does not count what these write into their statistics in
        training, but they themselves count the batches, beside them.
    """

    def __init__(self, folded: Sequence[Folded], means: Iterable[int] = ()) -> None:
        self._folded = folded
        self._tensors = [tensor for conv in folded for tensor, _ in conv.made]
        self._sources = _taker({place for conv in folded for _, constant in conv.made for place in constant.places})
        self._means, self._counters = sorted(means), tuple[Any, ...]()
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
        seen = self._look(sources)
        if seen == self._seen:
            return
        with self._lock, torch.inference_mode(False), torch.no_grad(), _without_autocast(sources):
            if self._has_moved(inputs):
                self._begin_turn(inputs, seen[1])
            seen = self._look(sources)
            if seen == self._seen:  # another thread was sooner
                return
            self._owner = [weakref.ref(source) for source in sources]
            self._fold(inputs, *seen)
            self._times += 1  # ahead of `_seen`, which a call that ran meanwhile reads first
            self._seen = seen

    def _look(self, sources: Sequence[Any]) -> tuple[list[int], list[int]]:
        return [*map(_version, sources), *map(_version, self._counters)], [*map(_address, sources)]

    def _begin_turn(self, inputs: Sequence[Any], addresses: list[int]) -> None:
        if self._seen is not None:
            self._keep_if_alive(*self._seen)
        instance = self._instances.get(tuple(addresses))
        means = [inputs[place] for place in self._means]
        self._counters = _counters_of(means) if instance is None else instance.counters

    def _fold(self, inputs: Sequence[Any], versions: list[int], addresses: list[int]) -> None:
        instance = self._instances.get(tuple(addresses))
        if instance is not None and instance.versions == versions:
            torch._foreach_copy_(self._tensors, instance.tensors)
            return
        for conv in self._folded:
            conv.fold(inputs)
        if instance is not None:  # a captured graph may go on reading there
            torch._foreach_copy_(instance.tensors, self._tensors)
            instance.versions = versions
        elif self._instances:  # now: when its turn ends a capture may be under way, in which nothing is copied yet
            self._keep(versions, addresses)

    def _keep_if_alive(self, versions: list[int], addresses: list[int]) -> None:
        """Keep what is folded if its sources still lie there: they are another module's, and were not replaced."""
        self._instances = {key: instance for key, instance in self._instances.items() if _lie_at(instance.sources, key)}
        if tuple(addresses) not in self._instances and _lie_at(self._owner, addresses):
            self._keep(versions, addresses)

    def _keep(self, versions: list[int], addresses: list[int]) -> None:
        copies = [tensor.clone() for tensor in self._tensors]
        self._instances[tuple(addresses)] = _Instance(self._owner, self._counters, versions, copies)

    def _has_moved(self, inputs: Sequence[Any]) -> bool:
        return self._seen is None or [*map(_address, self._sources(inputs))] != self._seen[1]

    def around(self, compiled: Callable[..., Any], *, watch: bool, repeats: bool) -> Callable[..., Any]:
        """A compiled graph whose weights are folded anew where their sources changed.

        Parameters
        ----------
        compiled : callable
        watch : bool
            Whether each call looks for changes of the sources; else only `refresh` counts, and a move to other sources.
        repeats : bool
            Whether the graph may run twice, since it writes into nothing that it is given. A call then looks while the
            GPU works, and runs again in the rare case that there was a change.
        """

        def call_in_turn(*inputs: Any) -> Any:
            with self._lock:  # until the whole graph is enqueued: only then may another module's weights replace these
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


def _counters_of(means: Sequence[Any]) -> tuple[Any, ...]:
    """The number of batches beside each of these running means that has one.

    A graph in evaluation is not given that number, and may be called with the statistics of another module than it was
    made for. So modules are looked for among all that Python knows, once; what ``gc.freeze`` hid is not found.
    """
    counters = _known_counters()
    if any(id(mean) not in counters for mean in means):
        _norms.update((id(thing), thing) for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module))
        counters = _known_counters()
    return tuple(counters[id(mean)] for mean in means if id(mean) in counters)


def _known_counters() -> dict[int, Any]:
    """The number of batches by the id of the running mean beside it."""
    counters = {}
    for key, norm in list(_norms.items()):
        buffers = vars(norm).get("_buffers") or {}  # as it is: modules may answer for attributes that they do not have
        counter = buffers.get("num_batches_tracked")
        if isinstance(counter, torch.Tensor) and not counter.is_inference():
            counters[id(buffers.get("running_mean"))] = counter
        else:
            _norms.pop(key, None)
    return counters


def _lie_at(sources: Sequence[weakref.ref[Any]], addresses: Sequence[int]) -> bool:
    tensors = [source() for source in sources]
    return all(
        tensor is not None and _address(tensor) == address for tensor, address in zip(tensors, addresses, strict=True)
    )


def _taker(places: set[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the inputs at these places."""
    first, *others = sorted(places)
    if others:
        return itemgetter(first, *others)
    return lambda inputs: (inputs[first],)  # an itemgetter of one returns it alone


def _without_autocast(tensors: Sequence[Any]) -> Any:
    return torch.autocast(tensors[0].device.type, enabled=False)
