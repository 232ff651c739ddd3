"""Convolutions by the fastest variants without a compiler: modules of a model are swapped in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES
from conv_advisor.torch.calls.layers import is_autocast_on, is_tf32_allowed, problem_of
from conv_advisor.torch.calls.loaded import plan_name
from conv_advisor.torch.choosing.choice import Choice, Chooser
from conv_advisor.torch.choosing.chooser import choose_all, chooser_for
from conv_advisor.torch.log import remember_layer
from conv_advisor.torch.modules import AdvisedConv2d, Kind, advise_module, geometry_of_module, kind_of, watched
from conv_advisor.torch.options import MAX_ERROR_RATIO, Options
from conv_advisor.torch.report import Layer, Report
from conv_advisor.torch.whole import Call, Reference, check_model

MIN_GAIN: Final = 1.05


def optimize(
    model: nn.Module,
    example_inputs: Any,
    *,
    min_gain: float = MIN_GAIN,
    only_cudnn: bool = False,
    deterministic: bool = False,
    check: bool = False,
    measure: int = 3,
    max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES,
    max_error_ratio: float = MAX_ERROR_RATIO,
    plan_file: str | Path | None = None,
) -> Report:
    """Swap the convolutions of a model that gain, in place; `restore` swaps them back.

    Parameters
    ----------
    model : Module
        In evaluation, on one GPU.
    example_inputs : tensor, tuple or dict
        What it is called with: one tensor, arguments, or arguments by name. Layers are chosen for these shapes; on
        others they are PyTorch's own, until the model is optimized with those too.
    min_gain : float
        A layer stays PyTorch's own unless it is this many times as fast.
    only_cudnn, deterministic, measure, max_workspace_bytes, max_error_ratio, plan_file
        As in `Options`.
    check : bool
        Whether to compare the outputs of the model, as it was and as it is, with those in float64.

    Returns
    -------
    report : Report
        What became of each layer and why; printed it is a table.

    Raises
    ------
    InvalidInput
        The model is in training, or compiled by ``torch.jit``; an option is not allowed; or there is nothing that
        `check` could compare. The model is then as it was.

    Notes
    -----
    The model runs once, without gradients, by the choices that are kept of its layers; with `check` it is copied, and
    runs three times more. Unlike the backend, this folds no batch norm and fuses nothing. Times are of convolutions
    alone on either side: eager PyTorch adds a bias by an elementwise kernel of its own, and so it is behind a variant.
    """
    check_model(model)
    if type(min_gain) not in (int, float) or not min_gain >= 1:
        raise InvalidInput("min_gain", min_gain, "a number from 1 on")
    options = Options(
        measure=measure,
        max_workspace_bytes=max_workspace_bytes,
        deterministic=deterministic or torch.are_deterministic_algorithms_enabled(),
        only_cudnn=only_cudnn,
        max_error_ratio=max_error_ratio,
        plan_file=plan_file,
    )
    call = Call.of(example_inputs)
    with torch.no_grad():
        call_copy = call.copied() if check else None  # a model may write into what it is called with
        chooser = chooser_for([*model.parameters(), *model.buffers(), *call.tensors()])
        sites = _watch(model, call, partial(_kept_plan, chooser, min_gain, options))
        reference = None if call_copy is None else Reference.of(model, call_copy)
        choices = _choose(sites, chooser, options)
        layers = [layer for site in sites for layer in _settle(site, choices, min_gain, options)]
        return Report(tuple(layers), reference.errors_of(model) if reference else None)


_KeptPlan = Callable[[ConvProblem], str | None]
"""The name of the plan by which a problem runs, where that is kept and gains enough."""


@dataclass
class _Site:
    """One convolution module of a model, and what it was called with; or why it cannot be swapped."""

    layer: str
    module: nn.Module
    reason: str = "it was not called"
    calls: dict[Kind, ConvProblem] = field(default_factory=dict)
    counts: dict[ConvProblem, int] = field(default_factory=dict)

    def note(self, module: Any, x: Any) -> ConvProblem | None:
        """Remember one call; returns its problem, None where it is none of ours."""
        problem = _problem_of_call(module, x)
        if isinstance(problem, str):
            self.reason = problem
            return None
        self.calls[kind_of(module.weight, x)] = problem
        self.counts[problem] = self.counts.get(problem, 0) + 1
        return problem


def _problem_of_call(module: nn.Conv2d, x: Any) -> ConvProblem | str:
    geometry = geometry_of_module(module)
    if isinstance(geometry, str):
        return geometry
    if is_autocast_on(x):
        return "it is called under autocast, which casts its weight in each call: convert the model itself"
    return problem_of(x, module.weight, geometry, is_tf32_allowed=is_tf32_allowed())


def _watch(model: nn.Module, call: Call, kept_plan: _KeptPlan) -> list[_Site]:
    """Every convolution module, and what it is called with while the model runs once.

    Kept choices run already then: PyTorch's own convolutions would load cuDNN, which takes longer than all else.
    """
    compiled = {inner for module in model.modules() if _is_compiled(module) for inner in module.modules()}
    sites = []
    with ExitStack() as watches:
        for layer, module in model.named_modules():
            if not isinstance(module, _ConvNd):
                continue
            site = _Site(layer or type(module).__name__, module)
            sites.append(site)
            if module in compiled:
                site.reason = "torch.compile compiled what it is in, which leaves it PyTorch's own"
            elif reason := _why_not_swapped(module):
                site.reason = reason
            else:
                watches.enter_context(watched(module, partial(_plan_of_call, site, kept_plan)))
        call.of_model(model)
    return sites


def _is_compiled(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def _why_not_swapped(module: nn.Module) -> str:
    """Why a convolution module cannot be swapped, whatever it is called with; empty where it can."""
    name = type(module).__name__
    if not isinstance(module, nn.Conv2d):
        return f"{name.removeprefix('Lazy')} is no convolution in two dimensions"
    if isinstance(module, nn.LazyConv2d):
        return "its sizes were not known before it was called: optimize again"
    if type(module) not in (nn.Conv2d, AdvisedConv2d):
        return f"its class is {name}, which may convolve in a way of its own"
    return "its forward was replaced, and may convolve in a way of its own" if "forward" in module.__dict__ else ""


def _plan_of_call(site: _Site, kept_plan: _KeptPlan, module: Any, x: Any) -> str | None:
    problem = site.note(module, x)
    plan = None if problem is None else kept_plan(problem)
    if plan is not None:
        remember_layer(plan, site.layer)
    return plan


def _kept_plan(chooser: Chooser | None, min_gain: float, options: Options, problem: ConvProblem) -> str | None:
    choice = None if chooser is None else chooser.kept(problem, options)
    return None if choice is None or _why_not(choice, min_gain) else plan_name(problem.key, options.limits)


def _choose(sites: Sequence[_Site], chooser: Chooser | None, options: Options) -> Mapping[ConvProblem, Choice]:
    layer_problems = [(site.layer, problem) for site in sites for problem in site.counts]
    if chooser is None:
        own = Choice(None, reason="the model and its inputs are not on one GPU")
        return dict.fromkeys((problem for _, problem in layer_problems), own)
    return choose_all(chooser, layer_problems, options)


def _settle(site: _Site, choices: Mapping[ConvProblem, Choice], min_gain: float, options: Options) -> list[Layer]:
    """Swap one module for the problems on which it gains, and for no other; returns what became of each."""
    if not site.counts:
        return [Layer(site.layer, reason=site.reason)]
    layers = [
        Layer(site.layer, problem, count, choices[problem], _why_not(choices[problem], min_gain))
        for problem, count in site.counts.items()
    ]
    gaining = {layer.problem for layer in layers if layer.is_swapped}
    plans = {
        kind: plan_name(problem.key, options.limits) if problem in gaining else None
        for kind, problem in site.calls.items()
    }
    advise_module(site.module, plans)
    return layers


def _why_not(choice: Choice, min_gain: float) -> str:
    """Why a choice is not followed; empty where it is."""
    if choice.variant is None:
        return choice.reason
    if choice.gain is None:
        return f"how much {choice.variant} gains is unknown"
    return "" if choice.gain >= min_gain else f"{choice.variant} gains {choice.gain:.2f}, not {min_gain:g}"
