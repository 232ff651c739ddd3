"""The backend that ``torch.compile`` calls with a graph: advised convolutions, and Inductor for all else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from conv_advisor.data.problem import ConvProblem
from conv_advisor.torch.calls.loaded import plan_name
from conv_advisor.torch.choosing.choice import Choice, Chooser
from conv_advisor.torch.choosing.chooser import choose_all, chooser_for
from conv_advisor.torch.graph.concatenations import share_beginnings, write_into_concatenations
from conv_advisor.torch.graph.folding import Weights
from conv_advisor.torch.graph.layouts import lay_out
from conv_advisor.torch.graph.normal_form import normalize
from conv_advisor.torch.graph.pads import put_back_pads, take_in_pads
from conv_advisor.torch.graph.prologues import load_through_norms
from conv_advisor.torch.graph.sites import Site, end, find_sites, replace
from conv_advisor.torch.log import log, tell
from conv_advisor.torch.nodes import is_transformed, kind_of, writes_into_inputs
from conv_advisor.torch.operators.conv2d import below_autograd, conv2d
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending
from conv_advisor.torch.options import Options, read_options


def backend(
    gm: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph whose convolutions run by the fastest variants for their shapes.

    Parameters
    ----------
    gm : GraphModule
        As Dynamo captured it.
    inputs : sequence
        Its inputs: parameters and buffers too, and a number for each symbolic size.
    mode : str, optional
        One of ``torch.compile``'s modes, for Inductor.
    options : mapping, optional
        Those of `conv_advisor.torch.options.Options`, and Inductor's.

    Returns
    -------
    compiled : callable

    Raises
    ------
    InvalidInput
        An option or a mode that neither we nor Inductor know.

    Notes
    -----
    A graph that needs gradients, has no convolution, is not on a GPU or is transformed by ``torch.func`` goes to
    Inductor as it is.
    """
    ours, inductors = read_options(mode, options)
    left, chooser = _why_left(gm, inputs), None
    if left is None:
        chooser = chooser_for(inputs)
    if chooser is None:
        tell([("the whole graph", f"PyTorch's own: {left or 'it is not on one GPU that can be used'}")])
        return _compile(gm, inputs, ours, inductors)
    if ours.inductor:
        _start_compilers()
    normalize(gm)
    if ours.fold:
        take_in_pads(gm.graph)
    sites, others = find_sites(gm)
    weights = Weights(gm, inputs)
    if ours.fold:
        weights.fold(sites)
    if ours.fuse:
        sites = end(sites)
    if ours.layouts:
        sites = lay_out(gm, sites, weights, chooser, ours)
    choices, outcomes = _replace_all(gm, sites, chooser, ours)
    put_back_pads(gm.graph)
    tell([*others, *outcomes])
    is_replaced = any(node.target in (conv2d, conv2d_ending) for node in gm.graph.nodes)
    if is_replaced:
        # Variants were chosen for the layouts that the model has; Inductor is not to choose others for what is left.
        inductors = {"layout_optimization": False} | inductors
    is_below_autograd = is_replaced and not _turns_gradients_on(gm)
    if is_below_autograd and ours.inductor:
        if ours.fold:
            _load_through_norms(gm, weights, choices, chooser, ours)
        write_into_concatenations(gm.graph)
        share_beginnings(gm.graph)
    foldings = weights.foldings()
    gm.recompile()
    compiled = _compile(gm, inputs, ours, inductors)
    if is_below_autograd:
        compiled = below_autograd(compiled)
    if foldings is None:
        return compiled
    return foldings.around(compiled, watch=ours.watch, repeats=not writes_into_inputs(gm.graph))


def _replace_all(
    gm: GraphModule, sites: Sequence[Site], chooser: Chooser, options: Options
) -> tuple[dict[ConvProblem, Choice], list[tuple[str, str]]]:
    """Put our operators in; returns what was chosen, and what became of each layer."""
    choices = _choose(sites, chooser, options)
    # What follows a convolution is Inductor's where no variant takes it; a variant may still run the convolution.
    sites = [site if choices[site.problem].is_settled else site.alone() for site in sites]
    choices |= _choose([site for site in sites if site.problem not in choices], chooser, options)
    outcomes = []
    for site in sites:
        choice = choices[site.problem]
        outcomes.append((site.layer, f"{site.problem.key} by {choice}"))
        if choice.variant is not None:
            replace(gm, site, plan_name(site.problem.key, options.limits))
    return choices, outcomes


def _load_through_norms(
    gm: GraphModule, weights: Weights, choices: Mapping[ConvProblem, Choice], chooser: Chooser, options: Options
) -> None:
    times_ms = {problem: choice.time_ms for problem, choice in choices.items() if choice.time_ms is not None}
    # On the device alone: a launch more costs the host less than a slower variant may cost the GPU.
    elementwise_ms = partial(chooser.conversion_ms, options=dataclasses.replace(options, graphs=True))
    load_through_norms(gm, weights, times_ms, elementwise_ms, partial(chooser.choose_behind_prologues, options=options))


def _choose(sites: Iterable[Site], chooser: Chooser, options: Options) -> dict[ConvProblem, Choice]:
    return dict(choose_all(chooser, ((site.layer, site.problem) for site in sites), options))


def _why_left(gm: GraphModule, inputs: Sequence[Any]) -> str | None:
    if _needs_gradients(gm, inputs):
        return "it records gradients"
    return "torch.func transforms it" if is_transformed(gm.graph) else None


def _needs_gradients(gm: GraphModule, inputs: Sequence[Any]) -> bool:
    return (torch.is_grad_enabled() or _turns_gradients_on(gm)) and any(
        isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in inputs
    )


def _turns_gradients_on(gm: GraphModule) -> bool:
    return any(
        (node.target is torch._C._set_grad_enabled or kind_of(node) == "wrap_with_set_grad_enabled")
        and node.args[0] is not False
        for node in gm.graph.nodes
    )


def _compile(gm: GraphModule, inputs: Sequence[Any], options: Options, config: Mapping[str, Any]) -> Callable[..., Any]:
    if not options.inductor:
        call: Callable[..., Any] = gm.forward
        return call
    from torch._inductor.compile_fx import compile_fx

    _lower()
    compiled: Callable[..., Any] = compile_fx(gm, inputs, config_patches=dict(config))
    return compiled


def _start_compilers() -> None:
    """Let Inductor's processes start, which takes them seconds, while variants are chosen."""
    with suppress(ImportError):  # it is not PyTorch's public interface; without it they start later
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


def _lower() -> None:
    """Let Inductor call our operators at little cost to the host, where its internals are as we know them."""
    try:
        from conv_advisor.torch.operators.lowering import register
    except ImportError as error:
        log.info("convolutions are called through PyTorch's dispatcher: %s", error)
    else:
        register()
