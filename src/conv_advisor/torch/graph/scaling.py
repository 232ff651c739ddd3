"""What scales and shifts each channel of a convolution's output by constants: it can go into weight and bias.

All of it is computed in float64, and rounded where weight and bias are stored: errors of one sign add up over layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Node

from conv_advisor.torch.graph.batch_norms import batch_norm_of
from conv_advisor.torch.graph.constants import Computed, Constant, Constants, erase_unread, number_of
from conv_advisor.torch.graph.endings import is_in_place_of
from conv_advisor.torch.nodes import changes_something, is_pytorchs, kind_of, value_of

_Operand = Constant | float


@dataclass(frozen=True)
class Filters:
    """Weight and bias of one convolution, as constants.

    Parameters
    ----------
    weight : Constant
        Of shape (K,C/groups,R,S).
    bias : Constant or None
        Of shape (K,).
    """

    weight: Constant
    bias: Constant | None

    def scaled(self, factor: _Operand) -> Filters:
        """The filters whose output is that of these times a factor: a number, or one number per filter."""
        bias = None if self.bias is None else Computed(_times, (self.bias, factor))
        return Filters(Computed(_weight_times, (self.weight, factor)), bias)

    def shifted(self, shift: _Operand, sign: int = 1) -> Filters:
        """The filters whose output is that of these plus a shift; minus the shift, where the sign is -1."""
        bias = self.bias or Computed(_no_bias, (self.weight,))
        return Filters(self.weight, Computed(_plus, (bias, shift, sign)))


Step = Callable[[Filters], Filters]
"""Takes the filters of a convolution, and returns those whose output is what a node makes of its output."""
IsExact = Callable[[Filters, Constant | None], bool]
"""Whether filters are precise enough once they are rounded, given the mean and deviation of their outputs if known."""


def take_in(conv: Node, filters: Filters, constants: Constants, is_exact: IsExact = lambda *_: True) -> Filters:
    """The filters, with the nodes that scale and shift the output of a convolution folded in and gone from the graph.

    Parameters
    ----------
    conv : Node
        Its value then replaces that of the last folded node.
    filters : Filters
        Those that it has.
    constants : Constants
    is_exact : callable
        Asked of scaled filters before they are taken, with what a batch norm tells of their outputs, of shape (2,K).
    """
    while (node := _next(conv)) is not None:
        step = _step_of(node, conv, constants)
        if step is None or not is_in_place_of(node, conv):
            break
        folded = step(filters)
        if folded.weight is not filters.weight and not is_exact(folded, _spread(node, conv, constants)):
            break
        filters, operands = folded, node.all_input_nodes
        node.replace_all_uses_with(conv)
        conv.graph.erase_node(node)
        erase_unread(operand for operand in operands if operand is not conv)
    return filters


def _next(y: Node) -> Node | None:
    """The only reader of y, or one that writes into y before all others, which then read what it wrote; else None."""
    if not y.users:
        return None
    first = min(y.users)
    is_first_to_write = changes_something(first) and first.args[:1] == (y,)
    return first if len(y.users) == 1 or is_first_to_write else None


def _step_of(node: Node, y: Node, constants: Constants) -> Step | None:
    """What a node does to y; None where it is no scale or shift by constants."""
    if batch_norm_of(node) is not None:
        return _batch_norm(node, y, constants)
    if not is_pytorchs(node) or any(
        name not in ("alpha", "value") or value != 1 for name, value in node.kwargs.items()
    ):
        return None
    if kind_of(node) == "addcmul":
        return _addcmul(node, y, constants)
    if len(node.args) != 2 or y not in node.args:
        return None
    place = node.args.index(y)
    make = _ARITHMETIC.get((kind_of(node), place))
    if make is None or (place and changes_something(node)):
        return None
    operand = _by_filter(node.args[1 - place], y, constants)
    return None if operand is None else make(operand)


class _Norm(NamedTuple):
    """What a batch norm in evaluation computes with."""

    mean: Constant
    variance: Constant
    epsilon: float
    scale: Constant | None
    shift: Constant | None


def _norm_of(node: Node, y: Node, constants: Constants) -> _Norm | None:
    """The batch norm of y in evaluation that a node is, all of it constant; else None."""
    norm = batch_norm_of(node)
    if norm is None or norm.x is not y or norm.training is not False:
        return None
    operands = (norm.mean, norm.variance, norm.scale, norm.shift)
    values = [operand and constants.constant_of(operand, value_of(y)) for operand in operands]
    mean, variance, scale, shift = values
    epsilon = number_of(norm.epsilon)
    if mean is None or variance is None or epsilon is None or [*map(bool, values)] != [*map(bool, operands)]:
        return None
    return _Norm(mean, variance, epsilon, scale, shift)


def _batch_norm(node: Node, y: Node, constants: Constants) -> Step | None:
    """The step that a batch norm in evaluation is."""
    norm = _norm_of(node, y, constants)
    if norm is None:
        return None
    mean, variance, epsilon, scale, shift = norm
    factor = Computed(_factor, (variance, epsilon, scale))

    def step(filters: Filters) -> Filters:
        scaled = filters.shifted(mean, -1).scaled(factor)
        return scaled if shift is None else scaled.shifted(shift)

    return step


def _spread(node: Node, y: Node, constants: Constants) -> Constant | None:
    """Mean and deviation of each channel behind a batch norm, of shape (2,K), as it counted them; else None."""
    norm = _norm_of(node, y, constants)
    return norm and Computed(_mean_and_deviation, (norm.variance, norm.epsilon, norm.scale, norm.shift))


def scale_and_shift(norm: Node, constants: Constants) -> Constant | None:
    """Both of a batch norm in evaluation by channel, of shape (2,C): y = x * scale + shift; None where they change."""
    given = batch_norm_of(norm)
    if given is None or (step := _batch_norm(norm, given.x, constants)) is None:
        return None
    one = Computed(_ones, (constants.constant_of(given.mean, value_of(norm)),))
    filters = step(Filters(one, None))
    return Computed(_stacked, (filters.weight, filters.bias))


def _addcmul(node: Node, y: Node, constants: Constants) -> Step | None:
    """The step that ``addcmul(shift, y, factor)`` is, or ``addcmul(y, one, other)``; it writes into y at most."""
    if len(node.args) != 3 or node.args.count(y) != 1 or (changes_something(node) and node.args[0] is not y):
        return None
    first, second = (_by_filter(operand, y, constants) for operand in node.args if operand is not y)
    if first is None or second is None:
        return None
    if node.args[0] is not y:
        return lambda filters: filters.scaled(second).shifted(first)
    product = Computed(_times, (first, second))
    return lambda filters: filters.shifted(product)


def _by_filter(operand: Any, y: Node, constants: Constants) -> _Operand | None:
    """A constant number, or a constant with one number per filter of y or with a single one; None for all else."""
    number = number_of(operand)
    if number is not None or not isinstance(operand, Node):
        return number
    value, y_value = value_of(operand), value_of(y)
    if not isinstance(value, torch.Tensor) or value.dim() > y_value.dim():
        return None
    shape = (1,) * (y_value.dim() - value.dim()) + tuple(value.shape)
    if shape not in ((1, y_value.shape[1], 1, 1), (1, 1, 1, 1)):
        return None
    return constants.constant_of(operand, y_value)


def _divided(divisor: _Operand) -> Step | None:
    if isinstance(divisor, float):
        return None if divisor == 0 else lambda filters: filters.scaled(1 / divisor)
    factor = Computed(_reciprocal, (divisor,))
    return lambda filters: filters.scaled(factor)


_ARITHMETIC: Final[dict[tuple[str, int], Callable[[_Operand], Step | None]]] = {
    **dict.fromkeys((("mul", 0), ("mul", 1)), lambda factor: lambda filters: filters.scaled(factor)),
    **dict.fromkeys((("add", 0), ("add", 1)), lambda shift: lambda filters: filters.shifted(shift)),
    ("sub", 0): lambda shift: lambda filters: filters.shifted(shift, -1),
    ("sub", 1): lambda shift: lambda filters: filters.scaled(-1.0).shifted(shift),
    **dict.fromkeys((("div", 0), ("truediv", 0)), _divided),
}
"""The steps of operators with two operands, by kind and the place of y."""


def _flat(operand: Any) -> Any:
    return operand.double().reshape(-1) if isinstance(operand, torch.Tensor) else operand


def _times(one: Any, other: Any) -> Any:
    return _flat(one) * _flat(other)


def _plus(bias: Any, shift: Any, sign: int) -> Any:
    return torch.add(bias.double(), _flat(shift), alpha=sign)


def _reciprocal(divisor: Any) -> Any:
    return divisor.double().reciprocal()


def _ones(by_channel: Any) -> Any:
    return torch.ones_like(by_channel).reshape(-1, 1, 1, 1)


def _stacked(weight: Any, bias: Any) -> Any:
    return torch.stack([weight.reshape(-1), bias])


def _weight_times(weight: Any, factor: Any) -> Any:
    return weight.double() * (_flat(factor).reshape(-1, 1, 1, 1) if isinstance(factor, torch.Tensor) else factor)


def _no_bias(weight: Any) -> Any:
    return weight.new_zeros(weight.shape[0])


def _factor(variance: Any, epsilon: float, scale: Any) -> Any:
    factor = torch.rsqrt(variance.double() + epsilon)
    return factor if scale is None else factor * scale


def _mean_and_deviation(variance: Any, epsilon: float, scale: Any, shift: Any) -> Any:
    deviation = (_factor(variance, epsilon, scale) * variance.double().sqrt()).abs()
    return torch.stack([torch.zeros_like(deviation) if shift is None else shift.double(), deviation])
