"""Batch norms and ReLUs ahead of convolutions: those that a convolution computes as it loads x."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from torch.fx import GraphModule, Node

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.torch.calls.loaded import plan_behind, problem_of_plan
from conv_advisor.torch.graph.batch_norms import batch_norm_of
from conv_advisor.torch.graph.concatenations import nodes_in_nhwc, parts_of, takes_places
from conv_advisor.torch.graph.folding import Weights
from conv_advisor.torch.log import layer_of_plan, log, remember_layer
from conv_advisor.torch.nodes import bytes_of, changes_something, is_pytorchs, kind_of, value_of
from conv_advisor.torch.operators.conv2d import conv2d
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending
from conv_advisor.torch.operators.conv2d_prologue import conv2d_prologue

LOADED_THROUGH: Final = "%d convolutions load x through the batch norm and ReLU ahead of them"
"""What is logged of a graph."""

ChooseBehind = Callable[[Mapping[ConvProblem, float]], set[ConvProblem]]


@dataclass(frozen=True)
class _Ahead:
    """A batch norm and a ReLU that only convolutions read.

    Parameters
    ----------
    x, norm, relu : Node
        What the batch norm reads, and both.
    convs : tuple of Node
        Our operators.
    whole : Node or None
        The concatenation that x is, or begins; None where x is another tensor.
    """

    x: Node
    norm: Node
    relu: Node
    convs: tuple[Node, ...]
    whole: Node | None


def load_through_norms(
    gm: GraphModule,
    weights: Weights,
    times_ms: Mapping[ConvProblem, float],
    elementwise_ms: Callable[[int], float],
    choose: ChooseBehind,
) -> None:
    """Let convolutions compute batch norms and ReLUs ahead of them as they load x, where that takes less time.

    Parameters
    ----------
    gm : GraphModule
        With our operators in it; changed in place.
    weights : Weights
        Keeps scales and shifts as their sources are.
    times_ms : mapping of ConvProblem to float
        Of what was chosen for each problem.
    elementwise_ms : callable (bytes) -> float
        Time of a kernel that reads and writes so many bytes: it is spared.
    choose : callable (problem -> ms) -> set of problem
        Those that take less than that behind a prologue.

    Notes
    -----
    Where x is a concatenation it must not cost a copy: parts are placed in the longest that begins with them, and each
    convolution reads what it wants of that. So in a DenseNet no channel is ever copied.
    """
    in_nhwc = set(nodes_in_nhwc(gm.graph))
    found = [ahead for node in gm.graph.nodes if (ahead := _ahead_of(node, in_nhwc)) is not None]
    most_ms: dict[ConvProblem, float] = {}
    for ahead in found:
        spared_ms = elementwise_ms(bytes_of(value_of(ahead.x)) // (1 if _is_kept_apart(ahead.x) else 2))
        for conv in ahead.convs:
            problem = _problem_of(conv)
            if problem in times_ms:
                most_ms[problem] = times_ms[problem] + spared_ms / len(ahead.convs)
    taken = choose(most_ms) if most_ms else set()
    found = [ahead for ahead in found if all(_problem_of(conv) in taken for conv in ahead.convs)]
    count = sum(_load_through(weights, ahead) for ahead in _without_copies(found))
    if count:
        log.info(LOADED_THROUGH, count)


def _ahead_of(relu: Node, in_nhwc: set[Node]) -> _Ahead | None:
    """What ends in a ReLU, if it can be loaded through."""
    if kind_of(relu) != "relu" or not is_pytorchs(relu) or not relu.args or not isinstance(relu.args[0], Node):
        return None
    norm = relu.args[0]
    given = batch_norm_of(norm)
    if given is None or given.training is not False or list(norm.users) != [relu] or given.x not in in_nhwc:
        return None
    convs = tuple(relu.users)
    if not convs or not all(_takes_prologue(conv, relu) for conv in convs) or _is_changed(given.x, convs, relu):
        return None
    if value_of(given.x).dtype != value_of(relu).dtype:
        return None
    parts = parts_of(given.x)
    whole = None if parts is None else _longest(given.x, [part for part, _ in parts], in_nhwc)
    return _Ahead(given.x, norm, relu, convs, whole)


def _takes_prologue(conv: Node, relu: Node) -> bool:
    """Whether a node is a convolution of ours that might load a ReLU, as nothing but its x."""
    if conv.target not in (conv2d, conv2d_ending) or conv.args[0] is not relu or relu in conv.args[1:]:
        return False
    problem = _problem_of(conv)
    sides = (problem.pad_h, problem.pad_w, problem.pad_h_end, problem.pad_w_end)
    has_one_tap = problem.r == problem.s == 1 and not any(sides)
    shape = (problem.n, problem.c, problem.h, problem.w)
    return has_one_tap and problem.layout is Layout.NHWC and tuple(value_of(relu).shape) == shape


def _problem_of(conv: Node) -> ConvProblem:
    return problem_of_plan(str(conv.args[-1]))


def _is_changed(x: Node, convs: Iterable[Node], relu: Node) -> bool:
    """Whether anything may write into a tensor between x and what reads it then."""
    last, node = max(convs), x.next
    while node is not last:
        if node is not relu and changes_something(node):
            return True
        node = node.next
    return False


def _longest(x: Node, parts: list[Node], in_nhwc: set[Node]) -> Node:
    """The longest concatenation that begins with these parts; x itself where there is no other."""
    wholes = [
        node
        for node in parts[-1].users
        if node in in_nhwc and [part for part, _ in parts_of(node) or []][: len(parts)] == parts
    ]
    return max(wholes, key=lambda node: len(parts_of(node) or ()), default=x)


def _is_kept_apart(x: Node) -> bool:
    """Whether x is written by a kernel of its own, which a batch norm does not spare."""
    return x.target in (conv2d, conv2d_ending) or parts_of(x) is not None


def _without_copies(found: list[_Ahead]) -> list[_Ahead]:
    """Those whose x is no concatenation, or one whose parts are written in their places once all of these are gone."""
    gone: dict[Node, set[Node]] = {}
    norms = {ahead.norm for ahead in found}
    for ahead in found:
        if ahead.whole is not None and ahead.x is not ahead.whole and norms.issuperset(ahead.x.users):
            gone.setdefault(ahead.whole, set()).add(ahead.x)
    return [
        ahead for ahead in found if ahead.whole is None or takes_places(ahead.whole, gone.get(ahead.whole, frozenset()))
    ]


def _load_through(weights: Weights, ahead: _Ahead) -> int:
    """Put the operators in; returns how many convolutions it was."""
    prologue = weights.prologue(ahead.norm)
    if prologue is None:
        return 0
    x = ahead.x
    parts = [x] if ahead.whole in (None, x) else [part for part, _ in parts_of(x) or []]
    for conv in ahead.convs:
        _, weight, *rest = conv.args
        if conv.target is conv2d:
            *geometry, plan = rest
            rest = [None, None, *geometry, "none", plan]
        graph = conv.graph
        with graph.inserting_before(conv):
            y = graph.call_function(conv2d_prologue, (parts, prologue, weight, *rest))
        y.meta = dict(conv.meta)
        plan = str(rest[-1])
        remember_layer(plan_behind(plan), layer_of_plan(plan))
        conv.replace_all_uses_with(y)
        graph.erase_node(conv)
    for node in (ahead.relu, ahead.norm, x):
        if not node.users and node.op != "placeholder" and (node is not x or ahead.whole is not None):
            node.graph.erase_node(node)
    return len(ahead.convs)
