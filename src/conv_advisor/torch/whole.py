"""A whole model: how it is called, and how far its outputs are from those in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from conv_advisor.data.errors import InvalidInput
from conv_advisor.torch.modules import restore


def check_model(model: Any) -> None:
    """Refuse what is no module in evaluation.

    Raises
    ------
    InvalidInput
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise InvalidInput("model", type(model).__name__, "a torch.nn.Module that torch.jit did not compile")
    if model.training:
        raise InvalidInput("model.training", True, "False: call model.eval() first")


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

    def floats_of(self, model: nn.Module) -> list[Any]:
        """Every tensor of floats that a model returns for copies, which it may write into."""
        return [tensor for tensor in _tensors(self.copied().of_model(model)) if tensor.is_floating_point()]

    def copied(self) -> Call:
        """The same with copies of its tensors."""
        return Call(*pytree.tree_map_only(torch.Tensor, torch.clone, (self.args, dict(self.kwargs))))

    def tensors(self) -> list[Any]:
        """Every tensor in it."""
        return _tensors((self.args, dict(self.kwargs)))

    def in_float64(self) -> Call:
        """The same with every floating tensor in float64."""
        return Call(*pytree.tree_map_only(torch.Tensor, _as_float64, (self.args, dict(self.kwargs))))


class Errors(NamedTuple):
    """max |y - y64| / max |y64| over a model's outputs, the largest of them; as it is, and as PyTorch's own."""

    now: float
    before: float


@dataclass(frozen=True)
class Reference:
    """What a model returns by PyTorch's own convolutions, and what it should.

    Parameters
    ----------
    call : Call
    own : list of tensor
        By PyTorch's own convolutions.
    exact : list of tensor
        In float64.
    """

    call: Call
    own: list[Any]
    exact: list[Any]

    @classmethod
    def of(cls, model: nn.Module, call: Call) -> Reference:
        """The reference of a model that was called once, and is copied.

        Raises
        ------
        InvalidInput
            It cannot be copied or run in float64, or returns nothing that could be checked.
        """
        copied = _or_refuse("can be copied", lambda: restore(copy.deepcopy(model)))
        own = call.floats_of(copied)
        exact = _or_refuse("runs in float64", lambda: call.in_float64().floats_of(copied.double()))
        if not own or len(own) != len(exact):
            raise _no_check("returns tensors of floats, alone or in tuples, lists or dicts")
        return cls(call, own, exact)

    def errors_of(self, model: nn.Module) -> Errors:
        """How far a model is from float64 as it is, and as it was."""
        return Errors(self._error(self.call.floats_of(model)), self._error(self.own))

    def _error(self, got: list[Any]) -> float:
        """The largest error of the outputs; not a number where one of them is not."""
        return max((_distance(y, exact) for y, exact in zip(got, self.exact, strict=True)), key=_by_size)


def _or_refuse(what: str, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # of many kinds, as the model has them
        raise _no_check(f"{what} ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from error


def _no_check(what: str) -> InvalidInput:
    return InvalidInput("check", True, f"True for a model that {what}")


def _by_size(error: float) -> tuple[bool, float]:
    return isnan(error), error


def _distance(y: Any, exact: Any) -> float:
    if not exact.numel():
        return 0.0
    scale = float(exact.abs().max())
    return float((y.double() - exact).abs().max()) / (scale or 1.0)


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _as_float64(tensor: Any) -> Any:
    return tensor.double() if tensor.is_floating_point() else tensor
