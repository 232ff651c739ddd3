"""The command that advises: on one layer with the reasons, or on many in a table."""

from __future__ import annotations

import atexit
import gc
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli import layers as layer_options
from conv_advisor.app.cli.complete import variants
from conv_advisor.app.cli.environment import import_numpy_alone, load_settings
from conv_advisor.app.cli.limits import AdvisedDevice, Deterministic, Only, limits_of
from conv_advisor.app.cli.output import AsJson, OneDType, OneLayout, print_json
from conv_advisor.app.snippets.language import Language
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType, Layout

if TYPE_CHECKING:
    from conv_advisor.models.advice.advice import Advice


def advise(
    layer: Annotated[
        list[str] | None,
        typer.Argument(help="size-batch-filter-filters-depth, such as 14-1-3-256-128; or Conv2d(...) with --input."),
    ] = None,
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
    from_: Annotated[
        str | None, typer.Option("--from", help="File of layers, or - for standard input: names, CSV, or JSON lines.")
    ] = None,
    device: AdvisedDevice = None,
    max_workspace_bytes: Annotated[
        int | None, typer.Option(min=0, help="Scratch memory a variant may use.  [default: 1 GiB]")
    ] = None,
    deterministic: Deterministic = False,
    only: Only = None,
    all_: Annotated[bool, typer.Option("--all", help="Show the whole ranking.")] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Compare time, workspace, error and determinism, and the other layout.")
    ] = False,
    max_error: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="With --pareto: largest error allowed.")
    ] = None,
    max_slowdown: Annotated[
        float | None, typer.Option(min=1.0, help="With --pareto: largest slowdown against the fastest.")
    ] = None,
    neighbours: Annotated[
        int | None, typer.Option(min=1, max=50, help="Number of nearest measured layers to show.")
    ] = None,
    snippet: Annotated[
        bool, typer.Option("--snippet", help="Print a program that runs the advised variant, and nothing else.")
    ] = False,
    variant: Annotated[
        str | None, typer.Option(help="With --snippet: run this variant instead.", autocompletion=variants)
    ] = None,
    language: Annotated[
        Language | None, typer.Option(help="With --snippet: its language.  [default: what fits the variant]")
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="For several layers: print comma-separated values.")] = False,
) -> None:
    """Say which variant is fastest for a layer, and how fast.

    The answer has a confidence, and the times of cuDNN and PyTorch for comparison.
    """
    import_numpy_alone()
    atexit.register(gc.freeze)  # the process frees all objects at its end: no search for reference cycles is needed
    from conv_advisor.app.advice.advise import advise_one
    from conv_advisor.app.advice.local import Local
    from conv_advisor.app.cli import details, say

    _check_options(pareto=pareto, neighbours=neighbours, snippet=snippet, max_error=max_error, variant=variant)
    if max_slowdown is not None and not (pareto and isfinite(max_slowdown)):
        raise InvalidInput("--max-slowdown", max_slowdown, "a finite number, with --pareto")
    if language and not snippet:
        raise InvalidInput("--language", str(language), "only with --snippet")
    if as_json and as_csv:
        raise InvalidInput("--csv", "given", "not together with --json")
    ending = layer_options.ending(bias=bias, residual=residual, activation=activation)
    options = layer_options.written(dtype, layout, stride, padding, dilation, groups, input_, **ending)
    layers = layer or []
    if layers and from_ is not None:
        raise InvalidInput("--from", from_, "not together with layers on the command line")
    if not layers and from_ is None:
        raise InvalidInput("layer", " ".join(layers), "a layer, several, or --from with a file of them")
    problems = (
        layer_options.read_layers(from_, options) if from_ is not None else [options.read(name) for name in layers]
    )
    local = Local(load_settings(), is_brief=True)
    limits = limits_of(local, device, max_workspace_bytes, deterministic, only)
    if from_ is not None or len(problems) > 1 or as_csv:
        if pareto or neighbours or snippet:
            raise InvalidInput(
                "layer", f"{len(problems)} layers", "one layer, with --pareto, --neighbours or --snippet"
            )
        from conv_advisor.app.cli import many

        many.show(local, problems, limits, as_json=as_json, as_csv=as_csv)
        return
    advice = advise_one(local, problems[0], limits)
    if pareto:
        from conv_advisor.models.advice.pareto import Bounds

        bounds = Bounds(max_error, max_slowdown)
        details.show_pareto(local.advisor(limits.device_id).only(only), local.recall, advice, limits, bounds, as_json)
    elif neighbours:
        details.show_neighbours(local.records, advice, neighbours, as_json)
    elif snippet:
        details.show_snippet(advice, variant, limits, language, as_json)
    elif as_json:
        _print_json(advice)
    else:
        say.show_advice(advice, is_all=all_)


def _check_options(
    *, pareto: bool, neighbours: int | None, snippet: bool, max_error: float | None, variant: str | None
) -> None:
    """Refuse two views at once, and options of a view that was not chosen."""
    chosen = {"--pareto": pareto, "--neighbours": bool(neighbours), "--snippet": snippet}
    if sum(chosen.values()) > 1:
        raise InvalidInput("options", " ".join(name for name in chosen if chosen[name]), f"one of {', '.join(chosen)}")
    if max_error is not None and not (pareto and max_error > 0):
        raise InvalidInput("--max-error", max_error, "a number above 0, with --pareto")
    if variant and not snippet:
        raise InvalidInput("--variant", variant, "only with --snippet")


def _print_json(advice: Advice) -> None:
    from conv_advisor.app.wire.answers.advice import advice_answer

    print_json(advice_answer(advice))
