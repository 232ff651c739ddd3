"""The layout of each convolution of a graph: those that take the least time together, conversions counted."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.models.planning.layouts import Times, choose_layouts
from conv_advisor.models.planning.network import Network, Operator
from conv_advisor.torch.calls.layers import MEMORY_FORMATS
from conv_advisor.torch.choosing.choice import Chooser
from conv_advisor.torch.choosing.chooser import choose_all
from conv_advisor.torch.graph.folding import Weights
from conv_advisor.torch.graph.sites import Site
from conv_advisor.torch.log import log
from conv_advisor.torch.nodes import (
    bytes_of,
    changes_something,
    has_layout,
    memory_of,
    takes_either,
    value_of,
    written_by,
)
from conv_advisor.torch.options import Options

FAVOURED: Final = 0.9
"""By how much predictions of a network may favour the wrong layout: what is chosen once all times in one layout are
multiplied by this factor is timed, and nothing else."""

LAID_OUT: Final = "%d of %d convolutions run in another layout than they were given in, by %d copies"
"""What is logged of a graph."""

_NO_TENSORS: Final = ("size", "dim", "numel")
"""Methods that ask a tensor for nothing that differs between layouts."""


def lay_out(gm: GraphModule, sites: Sequence[Site], weights: Weights, chooser: Chooser, options: Options) -> list[Site]:
    """The same convolutions, each in the layout of the least total time; the conversions go into the graph.

    Parameters
    ----------
    gm : GraphModule
        Changed in place.
    sites : sequence of Site
        With what ends in them.
    weights : Weights
        Lays out the weights too.
    chooser : Chooser
        Whose times count: it predicts which layouts may be worth it, and times those.
    options : Options

    Notes
    -----
    Whatever is given to the graph, and whatever leaves it or is read by an operator that may see how a tensor lies in
    memory, stays in the layout that the model has there.
    """
    flow = _Flow(gm, sites, weights)
    chosen = _choose(flow, chooser, options)
    n_copies = flow.convert(chosen)
    laid = [dataclasses.replace(site, problem=_in(site.problem, flow.layout_of(site, chosen))) for site in sites]
    moved = [site for site, old in zip(laid, sites, strict=True) if site.problem.layout is not old.problem.layout]
    for site in moved:
        weights.lay(site)
    log.info(LAID_OUT, len(moved), len(laid), n_copies)
    return laid


def _choose(flow: _Flow, chooser: Chooser, options: Options) -> tuple[Layout, ...]:
    """A layout for each operator of the flow: kept, or else by times that are predicted first and then measured."""
    layouts = chooser.kept_layouts(flow.name, options)
    if layouts is not None and len(layouts) == len(flow.network.operators):
        return layouts
    convert_ms = partial(chooser.conversion_ms, options=options)
    choose = partial(choose_layouts, flow.network, convert_ms=convert_ms)
    predicted = flow.times({problem: chooser.predicted_ms(problem, options) for problem in flow.problems()})
    likely = {choose(_favouring(predicted, layout)).chosen for layout in (None, *Layout)}
    if len(likely) > 1 and options.measure:
        choices = choose_all(chooser, flow.layers(likely), options)
        measured = {problem: choice.time_ms for problem, choice in choices.items()}
        likely = {choose(flow.times(measured)).chosen}
    chosen = likely.pop() if len(likely) == 1 else choose(predicted).chosen
    chooser.keep_layouts(flow.name, chosen, options)
    return chosen


def _favouring(times: Iterable[Times | None], layout: Layout | None) -> list[Times | None]:
    """The same times, but those in one layout a little less."""
    return [
        by_layout and {timed: ms * (FAVOURED if timed is layout else 1.0) for timed, ms in by_layout.items()}
        for by_layout in times
    ]


class _Flow:
    """Which convolutions of a graph hand tensors to each other, by way of operators that work in either layout.

    Attributes
    ----------
    network : Network
        All operators whose layout may change. All other nodes are outside: they give and take tensors as they are.
    """

    def __init__(self, gm: GraphModule, sites: Sequence[Site], weights: Weights) -> None:
        self._gm = gm
        nodes = [node for node in gm.graph.nodes if node.op == "output" or not _asks_for_sizes(node)]
        by_node = {site.node: site for site in sites}
        groups, self._written = _groups(nodes, sites)
        self._members: list[list[Node]] = []
        self._sites: list[Site | None] = []
        for group in groups:
            in_group = [by_node[node] for node in group if node in by_node]
            ended = {node for site in in_group for node in (site.node, *(site.ending.nodes if site.ending else ()))}
            if len(in_group) > 1 or not all(node in ended or takes_either(node) for node in group):
                continue
            if in_group and not weights.can_lay(in_group[0]):
                continue
            self._members.append(group)
            self._sites.append(in_group[0] if in_group else None)
        self._places = {node: place for place, group in enumerate(self._members) for node in group}
        self._reads = {node: list(_tensors_read(node, by_node.get(node))) for node in nodes}
        self.network = self._network()

    def _network(self) -> Network:
        operators = [self._operator(group, site) for group, site in zip(self._members, self._sites, strict=True)]
        outside = [read for node, reads in self._reads.items() if node not in self._places for read in reads]
        seen = dict.fromkeys((*(read for reads in self._reads.values() for read in reads), *self._places))
        tensors = [node for node in seen if has_layout(value_of(node))]
        return Network(
            "graph",
            tuple(operators),
            {node.name: bytes_of(value_of(node)) for node in tensors},
            frozenset(node.name for node in outside),
            in_nhwc=frozenset(node.name for node in tensors if _given(node) is Layout.NHWC),
        )

    def _operator(self, group: Sequence[Node], site: Site | None) -> Operator:
        reads = dict.fromkeys(read.name for node in group for read in self._reads[node] if read not in group)
        names = tuple(node.name for node in group)
        return Operator(
            names[0], "", tuple(reads), names, None if site is None else site.problem, takes_either=site is None
        )

    @property
    def name(self) -> str:
        """A hash that tells this flow from others: of its problems, and of which hands which tensors to which."""
        places = {name: place for place, name in enumerate(self.network.n_bytes)}
        operators = [
            (
                operator.problem.key if operator.problem else "",
                [places[name] for name in operator.reads if name in places],
                [places[name] for name in operator.writes if name in places],
            )
            for operator in self.network.operators
        ]
        edges = [
            sorted(places[name] for name in names if name in places)
            for names in (self.network.outputs, self.network.in_nhwc)
        ]
        text = repr((operators, list(self.network.n_bytes.values()), edges))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def problems(self) -> list[ConvProblem]:
        """Every problem of the flow, in either layout."""
        sites = (site for site in self._sites if site is not None)
        return list(dict.fromkeys(_in(site.problem, layout) for site in sites for layout in Layout))

    def layers(self, chosen: Collection[Sequence[Layout]]) -> Iterator[tuple[str, ConvProblem]]:
        """The layers and their problems, in each of the layouts that any of these choices has for them."""
        for place, site in enumerate(self._sites):
            if site is not None:
                for layout in dict.fromkeys(layouts[place] for layouts in chosen):
                    yield site.layer, _in(site.problem, layout)

    def times(self, known_ms: Mapping[ConvProblem, float | None]) -> list[Times | None]:
        """The times of each operator that is a convolution, by layout; None for other operators.

        A layout whose time is unknown cannot run. A problem that has no known time in any layout stays in its own, run
        by PyTorch's own convolution.
        """
        times: list[Times | None] = []
        for site in self._sites:
            if site is None:
                times.append(None)
                continue
            by_layout = {layout: known_ms.get(_in(site.problem, layout)) for layout in Layout}
            if all(ms is None for ms in by_layout.values()):
                by_layout[site.problem.layout] = 0.0
            times.append({layout: inf if ms is None else ms for layout, ms in by_layout.items()})
        return times

    def layout_of(self, site: Site, chosen: Sequence[Layout]) -> Layout:
        """The layout that is chosen for a convolution; its own where it is outside."""
        place = self._places.get(site.node)
        return site.problem.layout if place is None else chosen[place]

    def convert(self, chosen: Sequence[Layout]) -> int:
        """Let every node read tensors in its layout, from copies where they are in the other; the number of copies."""
        n_copies = 0
        sides = {node: chosen[place] for node, place in self._places.items()}
        copies: dict[tuple[Node, Layout], Node] = {}
        for node, reads in self._reads.items():
            for read in reads:
                layout = sides.get(node, _given(read))
                if not has_layout(value_of(read)) or layout is sides.get(read, _given(read)):
                    continue
                copy = copies.get((read, layout))
                if copy is None:
                    copy = _insert_copy(self._gm, read, layout, before=node)
                    n_copies += 1
                    if memory_of(read) not in self._written:  # else the next reader may have to read another value
                        copies[read, layout] = copy
                node.replace_input_with(read, copy)
        return n_copies


def _groups(nodes: Sequence[Node], sites: Iterable[Site]) -> tuple[list[list[Node]], Collection[int]]:
    """Groups of nodes that must have one layout, in the order of their first nodes; and the memory that is written.

    A group is a convolution and what ends in it, or all nodes that share memory that is written.
    """
    heads: dict[Node, Node] = {}

    def head(node: Node) -> Node:
        while node in heads:
            node = heads[node]
        return node

    def join(first: Node, second: Node) -> None:
        if head(first) is not head(second):
            heads[head(second)] = head(first)

    for site in sites:
        for node in site.ending.nodes if site.ending else ():
            join(site.node, node)
    written = dict[int, Node]()
    for node in nodes:
        if isinstance(value_of(node), tuple | list):
            for user in node.users:
                join(node, user)
        if node.op.startswith("call") and changes_something(node):
            for read in written_by(node):
                join(read, node)
                written |= {memory: node for sharer in (read, node) if (memory := memory_of(sharer)) is not None}
    for node in nodes:
        if (memory := memory_of(node)) in written:
            join(written[memory], node)
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        groups.setdefault(head(node), []).append(node)
    return list(groups.values()), written.keys()


def _tensors_read(node: Node, site: Site | None) -> Iterator[Node]:
    """What a node reads, without the weight and bias of a convolution."""
    weights = () if site is None else site.operands[1:]
    yield from (read for read in node.all_input_nodes if read not in weights)


def _asks_for_sizes(node: Node) -> bool:
    return node.op == "call_method" and node.target in _NO_TENSORS


def _given(node: Node) -> Layout:
    """The layout in which a tensor was when the graph was made."""
    value = value_of(node)
    is_tensor = isinstance(value, torch.Tensor) and value.dim() == 4
    is_last = is_tensor and torch._prims_common.suggest_memory_format(value) is torch.channels_last
    return Layout.NHWC if is_last else Layout.NCHW


def _in(problem: ConvProblem, layout: Layout) -> ConvProblem:
    return dataclasses.replace(problem, layout=layout)


def _insert_copy(gm: GraphModule, read: Node, layout: Layout, *, before: Node) -> Node:
    """A node that lays a tensor out anew: it calls a function of PyTorch's, as graphs that call others are not kept."""
    with gm.graph.inserting_before(before):
        options: dict[str, Any] = {"memory_format": MEMORY_FORMATS[layout]}
        copy = gm.graph.call_function(torch.ops.aten.contiguous.default, (read,), options)
    copy.meta["example_value"] = value_of(read)
    return copy
