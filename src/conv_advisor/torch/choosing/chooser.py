"""Finds the chooser of variants for a graph or a model, and asks it for all convolutions at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from conv_advisor.data.problem import ConvProblem
from conv_advisor.torch.calls.loaded import plan_name
from conv_advisor.torch.choosing.choice import Choice, Chooser
from conv_advisor.torch.log import remember_layer
from conv_advisor.torch.options import Options


def choose_all(
    chooser: Chooser, sites: Iterable[tuple[str, ConvProblem]], options: Options
) -> Mapping[ConvProblem, Choice]:
    """A choice for every problem of a model; a warning of a failure names the first layer that has the problem.

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
    """The chooser for a graph or a model, of the one GPU that has tensors of it; None where none has, or several have.

    Other tensors may lie in the host's memory: numbers, or what the model itself brings to the GPU. Where a convolution
    runs there our operators are PyTorch's own.
    """
    devices = {tensor.device for tensor in inputs if isinstance(tensor, torch.Tensor)}
    gpus = [device for device in devices if device.type == "cuda"]
    if len(gpus) != 1 or torch.version.cuda is None:
        return None
    from conv_advisor.torch.choosing.gpu import open_gpu

    return open_gpu(gpus[0].index)
