"""Commands that answer from what is already known, without running a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli import layers as layer_options
from conv_advisor.app.cli.complete import devices as devices_here
from conv_advisor.app.cli.complete import networks as networks_here
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.limits import named_device
from conv_advisor.app.cli.output import AsJson, OneDType, OneLayout, print_json, print_next, print_table
from conv_advisor.app.cli.table import Mark, Marked
from conv_advisor.data.counting import counted
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType, Layout

if TYPE_CHECKING:
    from conv_advisor.data.networks import Layer
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.kernels.variant import Variant


def variants(
    layer: Annotated[
        str | None, typer.Argument(help="A layer: say for each variant whether it runs it, and if not, why.")
    ] = None,
    kind: Annotated[str, typer.Option(help="Only variants for this kind of device: cpu or cuda.")] = "",
    dtype: OneDType = DType.FLOAT32,
    layout: OneLayout = Layout.NCHW,
    stride: layer_options.Stride = None,
    padding: layer_options.Padding = None,
    dilation: layer_options.Dilation = None,
    groups: layer_options.Groups = None,
    bias: layer_options.Bias = False,
    residual: layer_options.Residual = False,
    activation: layer_options.OneActivation = Activation.NONE,
    input_: layer_options.Input = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device to run the layer on.  [default: that with the most measurements]",
            autocompletion=devices_here,
            callback=named_device,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the variants; for a layer, say which of them run it.

    It also says why the others do not.
    """
    from conv_advisor.kernels import catalog

    if kind not in ("", "cpu", "cuda"):
        raise InvalidInput("kind", kind, "cpu, cuda")
    of_kind = [variant for variant in catalog.VARIANTS.values() if kind in ("", variant.backend.device_kind)]
    if layer is not None:
        ending = layer_options.ending(bias=bias, residual=residual, activation=activation)
        options = layer_options.written(dtype, layout, stride, padding, dilation, groups, input_, **ending)
        _show_applicable(options.read(layer), device, of_kind, as_json)
        return
    if device is not None:
        raise InvalidInput("--device", device, "only with a layer")
    if as_json:
        from conv_advisor.app.wire.answers.catalogue import variant_answer

        print_json({"variants": [variant_answer(variant) for variant in of_kind]})
        return
    rows = [
        (variant.id, variant.algorithm, variant.backend, "yes" if variant.is_deterministic else "no", variant.source)
        for variant in of_kind
    ]
    print_table(("variant", "algorithm", "backend", "deterministic", "source"), rows)


def _show_applicable(problem: ConvProblem, device_id: str | None, candidates: Sequence[Variant], as_json: bool) -> None:
    """Show which variants run a layer, those that do first, as ``GET /v1/variants`` answers."""
    from conv_advisor.app.advice.local import Local
    from conv_advisor.app.advice.reasons import reasons_why_not
    from conv_advisor.app.wire.answers.catalogue import applicability_answer
    from conv_advisor.app.wire.answers.problems import problem_answer

    local = Local(load_settings(), is_brief=True)
    device, reasons = reasons_why_not(local.known, local.recall, problem, local.known.asked_id(device_id))
    if as_json:
        answers = [applicability_answer(variant, problem, device, reasons.get(variant.id)) for variant in candidates]
        print_json({"variants": answers, "problem": problem_answer(problem), "device": device.id})
        return
    rows: list[tuple[str, str, str]] = [
        (variant.id, Marked("runs", Mark.AHEAD), "") for variant in candidates if variant.id not in reasons
    ]
    n_running = len(rows)
    rows += [(variant.id, "does not", reasons[variant.id]) for variant in candidates if variant.id in reasons]
    title = (
        f"{problem.brief} {problem.dtype} {problem.layout} on {device.id}: {n_running} of {len(rows)} variants run it"
    )
    print_table(("variant", "", "because"), rows, title=title)


def networks(
    name: Annotated[
        str | None, typer.Argument(help="Show every layer of this network or experiment.", autocompletion=networks_here)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the known networks and experiments, or layers of one.

    The groups that a sweep accepts are listed too. Each layer of a network comes with how often it runs.
    """
    from conv_advisor.data import networks as catalogue

    if name is not None:
        _show_network(name, as_json)
        return
    layers = {name: [layer.problem.short for layer in _layers_of(name)] for name in catalogue.names()}
    if as_json:
        print_json({"networks": [{"name": name, "layers": shorts} for name, shorts in layers.items()]})
        return
    rows = [(name, len(shorts), ", ".join(catalogue.GROUPS.get(name, ()))) for name, shorts in layers.items()]
    print_table(("network", "layers", "members"), rows)


def _show_network(name: str, as_json: bool) -> None:
    """Show the layers that advice on the whole network covers."""
    from conv_advisor.data import networks as catalogue

    layers = _layers_of(name)
    if as_json:
        entries = [{"layer": layer.problem.short, "count": layer.count, "origin": layer.source} for layer in layers]
        print_json({"name": name, "layers": entries})
        return
    title = f"{name}: {counted(len(layers), 'distinct layer')}, {sum(layer.count for layer in layers)} in one pass"
    rows = [(layer.problem.brief, layer.count, layer.source) for layer in layers]
    print_table(("layer", "times", "where"), rows, title=title)
    if catalogue.is_network(name):
        print_next(f"conv-advisor plan {name} says what each should run by, and what that gains")


def _layers_of(name: str) -> list[Layer]:
    """Every layer of a network; of an experiment or a group, those that a sweep of it measures."""
    from conv_advisor.data import networks as catalogue

    return catalogue.whole(name) if catalogue.is_network(name) else catalogue.layers(name)


def devices(as_json: AsJson = False) -> None:
    """List devices with measurements or a tree.

    GPUs that borrow a tree follow.
    """
    from conv_advisor.app.advice.local import Local
    from conv_advisor.app.wire.answers.catalogue import published_answer
    from conv_advisor.data.gpus import gpus

    local = Local(load_settings(), is_brief=True)
    measured = local.records.devices()
    with_model = local.registry.devices()
    ids = sorted({*measured, *with_model})
    if as_json:
        entries = [
            {"id": device_id, "has_model": device_id in with_model}
            | (asdict(measured[device_id]) if device_id in measured else {})
            for device_id in ids
        ]
        print_json({"devices": entries, "published": published_answer(ids)})
        return
    rows = [
        (
            device_id,
            measured[device_id].name if device_id in measured else "",
            "yes" if device_id in with_model else "no",
        )
        for device_id in ids
    ]
    rows += [(gpu.listed, gpu.name, "borrows one") for gpu in gpus().values() if gpu.id not in ids]
    print_table(("device", "name", "has a model"), rows)
