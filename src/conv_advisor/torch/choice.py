"""What is chosen for a convolution, and who chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from conv_advisor.data.problem import ConvProblem
from conv_advisor.torch.log import remember_layer
from conv_advisor.torch.operator import plan_name
from conv_advisor.torch.options import Options


@dataclass(frozen=True)
class Choice:
    """What runs one problem on one device.

    Parameters
    ----------
    variant : str or None
        Its id; None for PyTorch's own convolution.
    plan : dict
        What rebuilds it beside the id, as in `Measurement.plan`.
    time_ms : float or None
        None where it is unknown, as where no variant could be compared with PyTorch's own.
    torch_ms : float or None
        Of PyTorch's own convolution and one elementwise kernel for the epilogue, if the problem has one.
    max_error, torch_error : float or None
        max |y - y64| / max |y64| of both, on random operands.
    reason : str
        Why it is PyTorch's own, where it is.
    is_measured : bool
        Whether the times were measured on this device; else they are predicted.
    """

    variant: str | None
    plan: dict[str, Any] = field(default_factory=dict)
    time_ms: float | None = None
    torch_ms: float | None = None
    max_error: float | None = None
    torch_error: float | None = None
    reason: str = ""
    is_measured: bool = True

    @property
    def is_settled(self) -> bool:
        """Whether a variant was chosen, or PyTorch's own was as fast as those that were timed beside it."""
        return self.variant is not None or self.time_ms is not None

    @property
    def gain(self) -> float | None:
        """How many times as fast as PyTorch's own convolution it is; None where that is unknown."""
        return self.torch_ms / self.time_ms if self.time_ms and self.torch_ms else None

    def __str__(self) -> str:
        name = self.variant or f"PyTorch's own ({self.reason})"
        if self.time_ms is None or self.torch_ms is None:
            return name
        basis = "" if self.is_measured else ", as predicted"
        return f"{name}, {self.time_ms * 1000:.2f} µs against {self.torch_ms * 1000:.2f} of PyTorch's own{basis}"


class Chooser(Protocol):
    """Chooses variants for problems, and has them ready to run."""

    def choose(self, layers: Mapping[ConvProblem, str], options: Options) -> Mapping[ConvProblem, Choice]:
        """A choice for every problem; what runs it is then in `conv_advisor.torch.operator.LOADED`.

        Parameters
        ----------
        layers : mapping of ConvProblem to str
            The problems, with their epilogues, and the layer that each comes from.
        options : Options
        """
        ...


def choose_all(
    chooser: Chooser, sites: Iterable[tuple[str, ConvProblem]], options: Options
) -> Mapping[ConvProblem, Choice]:
    """A choice for every problem of a model; a failure is told by the first of its layers.

    Parameters
    ----------
    chooser : Chooser
    sites : iterable of (str, ConvProblem)
        Layers and their problems.
    options : Options
    """
    layers: dict[ConvProblem, str] = {}
    for layer, problem in sites:
        layers.setdefault(problem, layer)
    for problem, layer in layers.items():
        remember_layer(plan_name(problem.key, options.limits), layer)
    return chooser.choose(layers, options) if layers else {}


def chooser_for(inputs: Sequence[Any]) -> Chooser | None:
    """Who chooses variants for a graph or a model: the one GPU with all these tensors; None where there is none."""
    devices = {tensor.device for tensor in inputs if isinstance(tensor, torch.Tensor)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda" or torch.version.cuda is None:
        return None
    from conv_advisor.torch.gpu import open_gpu

    return open_gpu(next(iter(devices)).index)
