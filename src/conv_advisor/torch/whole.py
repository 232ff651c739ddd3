"""A whole model: how it is called, and how far its outputs are from those in float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from conv_advisor.data.errors import InvalidInput
from conv_advisor.torch.modules import restore


@dataclass(frozen=True)
class Call:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, example_inputs: Any) -> Call:
        """The call with one tensor, a tuple or list of arguments, or a mapping of arguments by name.

        Raises
        ------
        InvalidInput
        """
        if isinstance(example_inputs, torch.Tensor):
            return cls((example_inputs,), {})
        if isinstance(example_inputs, Mapping):
            return cls((), dict(example_inputs))
        if isinstance(example_inputs, tuple | list):
            return cls(tuple(example_inputs), {})
        raise InvalidInput("example_inputs", type(example_inputs).__name__, "a tensor, a tuple, a list or a mapping")

    def of_model(self, model: nn.Module) -> Any:
        """What a model returns."""
        return model(*self.args, **self.kwargs)

    def tensors(self) -> list[Any]:
        """Every tensor in it."""
        return _tensors((self.args, dict(self.kwargs)))

    def in_float64(self) -> Call:
        """The same with every floating tensor in float64."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, _as_float64, (self.args, dict(self.kwargs)))
        return Call(args, kwargs)


class Errors(NamedTuple):
    """max |y - y64| / max |y64| over a model's outputs, the largest of them; as it is, and as PyTorch's own."""

    now: float
    before: float


def errors_of(model: nn.Module, call: Call) -> Errors:
    """How far a model is from float64, with the modules that `optimize` swapped and without.

    Parameters
    ----------
    model : Module
        Is copied, and called in float64 too.
    call : Call
    """
    now = call.of_model(model)
    own = restore(copy.deepcopy(model))
    before = call.of_model(own)
    exact = call.in_float64().of_model(own.double())
    return Errors(_error(now, exact), _error(before, exact))


def _error(got: Any, exact: Any) -> float:
    pairs = zip(_tensors(got), _tensors(exact), strict=True)
    return max(
        (_distance(y, wanted) for y, wanted in pairs if wanted.is_floating_point() and wanted.numel()), default=0
    )


def _distance(y: Any, exact: Any) -> float:
    scale = float(exact.abs().max())
    return float((y.double() - exact).abs().max()) / (scale or 1.0)


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _as_float64(tensor: Any) -> Any:
    return tensor.double() if tensor.is_floating_point() else tensor
