"""A ``Conv2d`` that runs by the plans that were chosen for it, and is PyTorch's own wherever it has none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from conv_advisor.data.errors import InvalidInput
from conv_advisor.torch.calls.layers import Geometry, geometry_of, is_autocast_on, is_tf32_allowed
from conv_advisor.torch.operators.conv2d import conv2d, run_advised

Kind = tuple[Any, ...]
"""All that the choice for a call depends on: shape and strides of x and weight, precision."""

LEAST_DEVICE: Final = 0
"""Devices with this index or a larger one call a variant as it is; a CPU, whose index is -1, calls the operator."""
_way_of: Final = itemgetter("stride", "padding", "dilation", "groups", "padding_mode")
_TENSORS: Final = frozenset((nn.Parameter, torch.Tensor))
_PLANS: Final = "conv_advisor_plans"
_TOLD: Final = "conv_advisor_told"


class _Plan(NamedTuple):
    """What runs the calls of one kind, as long as the module is what it was when that was chosen.

    Parameters
    ----------
    name : str
    geometry : tuple
        Stride, padding, dilation and groups.
    way : tuple
        What the module itself has of these, and its padding mode.
    bias_shape : tuple of int
        That of a bias, if it has one.
    """

    name: str
    geometry: tuple[Any, ...]
    way: tuple[Any, ...]
    bias_shape: tuple[int, ...]


class AdvisedConv2d(nn.Conv2d):  # type: ignore[misc]  # PyTorch is not followed
    """A ``Conv2d`` to which `advise_module` gave plans.

    It keeps parameters, buffers, hooks and names of the module that it was. Where gradients are recorded, under
    autocast, while ``torch.compile``, ``torch.export``, ``torch.fx`` or ``torch.jit.trace`` look, and on any input that
    it has no plan for, it is PyTorch's own.
    """

    def forward(self, input: Any) -> Any:  # noqa: A002 - callers may name it, and so PyTorch does
        """As ``Conv2d`` has it."""
        own = self.__dict__
        try:
            parameters = own["_parameters"]  # asking a module for them costs the host several times as much
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # it was pruned or parametrized
            weight, bias = self.weight, self.bias
        plan = None if _is_pytorchs(input, weight) else own[_PLANS].get(kind_of(weight, input))
        if plan is None:
            return super().forward(input)
        name, geometry, way, bias_shape = plan
        if _way_of(own) != way or (bias is not None and (bias.shape != bias_shape or bias.dtype is not input.dtype)):
            return super().forward(input)
        if _is_seen_by_nobody(input):  # the operator costs the host more than a short kernel runs
            y = run_advised(name, input, weight, (), geometry)
            if y is None:
                return super().forward(input)
        else:
            with torch._C._AutoDispatchBelowAutograd():  # no gradients are recorded here; asking for them costs too
                y = conv2d(input, weight, *geometry, name)
        return y if bias is None else y.add_(bias.reshape(1, -1, 1, 1))

    def __prepare_scriptable__(self) -> Any:
        """Tell ``torch.jit.script``, which asks each module so, that it cannot read this one."""
        raise InvalidInput("model", "swapped by optimize", "what restore makes of it, which torch.jit.script can read")


class _Watched(AdvisedConv2d):
    """A ``Conv2d`` whose calls `watched` reports."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - as above
        """As ``Conv2d`` has it."""
        plan = self.__dict__[_TOLD](self, input)
        if plan is not None:
            _add_plans(self, {kind_of(self.weight, input): plan})
        return super().forward(input)


@contextmanager
def watched(module: nn.Conv2d, tell: Callable[[nn.Conv2d, Any], str | None]) -> Iterator[None]:
    """Report each call of a module meanwhile; the call then runs by the plan that `tell` names, if it names one.

    Parameters
    ----------
    module : Conv2d or AdvisedConv2d
        Afterwards it is as it was.
    tell : callable (module, input) -> str or None
    """
    before, plans = module.__class__, module.__dict__.get(_PLANS)
    module.__dict__[_TOLD], module.__dict__[_PLANS] = tell, plans or {}
    module.__class__ = _Watched
    try:
        yield
    finally:
        module.__class__ = before
        del module.__dict__[_TOLD], module.__dict__[_PLANS]
        if plans is not None:
            module.__dict__[_PLANS] = plans


def _is_pytorchs(x: Any, weight: Any) -> bool:
    if not isinstance(x, torch.Tensor) or torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if type(weight) not in _TENSORS or weight.dtype is not x.dtype or weight.device != x.device:
        return True  # it was converted or moved since; PyTorch says what comes of that
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return True
    return is_autocast_on(x)


def _is_seen_by_nobody(x: Any) -> bool:
    """Whether x is a plain tensor on a GPU, and no mode or transform of PyTorch is told of operators now."""
    return (
        type(x) is torch.Tensor
        and x.get_device() >= LEAST_DEVICE
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def kind_of(weight: Any, x: Any) -> Kind:
    """What tells a call of a module from others that may need another plan."""
    is_tf32 = x.dtype is torch.float32 and is_tf32_allowed()
    return weight.shape, weight.stride(), x.shape, x.stride(), x.dtype, is_tf32


def geometry_of_module(module: nn.Conv2d) -> Geometry | str:
    """How a module's filter goes over the image, or why that is none of ours."""
    if module.padding_mode != "zeros":
        return f"padding_mode is {module.padding_mode!r}, not 'zeros'"
    return geometry_of(module.weight, module.stride, module.padding, module.dilation, module.groups)


def advise_module(module: nn.Conv2d, plans: Mapping[Kind, str | None]) -> None:
    """Let a module run by these plans, in place; calls of other kinds run by those that it had for them.

    Parameters
    ----------
    module : Conv2d or AdvisedConv2d
    plans : mapping of kind of call to name of plan
        None where it is to be PyTorch's own.

    Notes
    -----
    Its class changes, not its ``forward``: an instance's own ``forward`` would be pickled, and copied unbound.
    """
    if _add_plans(module, plans):
        module.__class__ = AdvisedConv2d
    else:
        restore(module)


def _add_plans(module: nn.Conv2d, plans: Mapping[Kind, str | None]) -> bool:
    """Add plans to those that a module has; whether it has any then."""
    geometry = geometry_of_module(module)
    assert isinstance(geometry, Geometry)  # noqa: S101 - or there is no plan
    way = copy.deepcopy(_way_of(module.__dict__))  # a list among them may be written to later
    added = {kind: name and _Plan(name, geometry.arguments, way, kind[0][:1]) for kind, name in plans.items()}
    all_plans = {kind: plan for kind, plan in (module.__dict__.get(_PLANS, {}) | added).items() if plan}
    module.__dict__[_PLANS] = all_plans
    return bool(all_plans)


def restore(model: nn.Module) -> nn.Module:
    """Make every module that `optimize` swapped PyTorch's own again, in place.

    Parameters
    ----------
    model : Module

    Returns
    -------
    model : Module
        The same.

    Raises
    ------
    InvalidInput
        It is no module.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module")
    for module in model.modules():
        if type(module) is AdvisedConv2d:
            module.__class__ = nn.Conv2d
        module.__dict__.pop(_PLANS, None)
    return model
