"""Commands that answer from what is known already; none runs a convolution."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, LayerName, OneDType, OneLayout, print_json, print_table
from conv_advisor.app.snippets.language import Language
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout

if TYPE_CHECKING:
    from conv_advisor.models.advisor import Advice


def advise(
    layer: LayerName,
    dtype: OneDType = DType.FLOAT32,
    layout: OneLayout = Layout.NCHW,
    device: Annotated[
        str, typer.Option(help="Device that has a model or measurements.  [default: that with the most measurements]")
    ] = "",
    max_workspace_bytes: Annotated[
        int | None, typer.Option(min=0, help="Scratch memory a variant may use.  [default: 1 GiB]")
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only variants whose equal inputs give equal bits.")
    ] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Weigh time, workspace, error and determinism; and the other layout.")
    ] = False,
    max_error: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="With --pareto: largest error allowed.")
    ] = None,
    max_slowdown: Annotated[
        float | None, typer.Option(min=1.0, help="With --pareto: times the fastest's time, at most.")
    ] = None,
    neighbours: Annotated[int, typer.Option(min=0, max=50, help="Show so many of the nearest measured layers.")] = 0,
    snippet: Annotated[
        bool, typer.Option("--snippet", help="Print a program that runs the advised variant, and nothing else.")
    ] = False,
    variant: Annotated[str | None, typer.Option(help="With --snippet: run this variant instead.")] = None,
    language: Annotated[
        Language | None, typer.Option(help="With --snippet: what it is written in.  [default: what fits the variant]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which variant is fastest for a layer, how fast, how sure, and why the others are out."""
    from conv_advisor.app.advice.limits import Limits
    from conv_advisor.app.advice.local import Local
    from conv_advisor.app.cli import details
    from conv_advisor.models.pareto import Bounds

    _check_options(pareto=pareto, neighbours=neighbours, snippet=snippet, max_error=max_error, variant=variant)
    if max_slowdown is not None and not (pareto and isfinite(max_slowdown)):
        raise InvalidInput("--max-slowdown", max_slowdown, "a finite number, with --pareto")
    if language and not snippet:
        raise InvalidInput("--language", str(language), "nothing without --snippet")
    problem = ConvProblem.parse(layer, dtype=dtype, layout=layout)
    local = Local(load_settings())
    device = device or local.default_device_id
    limit = local.settings.workspace_limit_bytes if max_workspace_bytes is None else max_workspace_bytes
    limits = Limits(device, limit, deterministic)
    advice = local.advise(problem, device, max_workspace_bytes=limit, is_deterministic=deterministic)
    if pareto:
        bounds = Bounds(max_error, max_slowdown)
        details.show_pareto(local.advisor(device), local.recall, advice, limits, bounds, as_json)
    elif neighbours:
        details.show_neighbours(local.records, advice, neighbours, as_json)
    elif snippet:
        details.show_snippet(advice, variant, limits, language, as_json)
    else:
        _show(advice, as_json)


def _check_options(
    *, pareto: bool, neighbours: int, snippet: bool, max_error: float | None, variant: str | None
) -> None:
    """One thing is shown at a time, and its options go with it."""
    asked = {"--pareto": pareto, "--neighbours": bool(neighbours), "--snippet": snippet}
    if sum(asked.values()) > 1:
        raise InvalidInput("options", " ".join(name for name in asked if asked[name]), f"one of {', '.join(asked)}")
    if max_error is not None and not (pareto and max_error > 0):
        raise InvalidInput("--max-error", max_error, "a number above 0, with --pareto")
    if variant and not snippet:
        raise InvalidInput("--variant", variant, "nothing without --snippet")


def _show(advice: Advice, as_json: bool) -> None:
    if as_json:
        from conv_advisor.app.wire.answers.advice import advice_answer

        print_json(advice_answer(advice))
        return
    from conv_advisor.app.cli.details import show_trust

    problem, model = advice.problem, advice.model_id or "none"
    rows = [
        (each.variant, each.time_ms, each.slowdown, "tied" if each.is_tied else "", each.source, each.workspace_bytes)
        for each in advice.ranking
    ]
    columns = ("variant", "ms", "slowdown", "", "time is", "workspace")
    title = f"{problem.short} {problem.dtype} {problem.layout} on {advice.device_id}, model {model}"
    print_table(columns, rows, title=title)
    show_trust(advice)
    if advice.excluded:
        print_table(("out", "because"), ((each.variant, each.reason) for each in advice.excluded))


def variants(
    kind: Annotated[str, typer.Option(help="Only those of devices of this kind: cpu or cuda.")] = "",
    as_json: AsJson = False,
) -> None:
    """List every variant: who made it, what it does, and whether equal inputs give equal bits."""
    from conv_advisor.kernels import catalog

    if kind not in ("", "cpu", "cuda"):
        raise InvalidInput("kind", kind, "cpu, cuda")
    found = [each for each in catalog.VARIANTS.values() if kind in ("", each.backend.device_kind)]
    if as_json:
        print_json(
            {
                "variants": [
                    {
                        "id": each.id,
                        "algorithm": each.algorithm,
                        "backend": each.backend,
                        "is_deterministic": each.is_deterministic,
                        "source": each.source,
                    }
                    for each in found
                ]
            }
        )
        return
    rows = [
        (each.id, each.algorithm, each.backend, "yes" if each.is_deterministic else "no", each.source) for each in found
    ]
    print_table(("variant", "algorithm", "backend", "deterministic", "source"), rows)


def networks(as_json: AsJson = False) -> None:
    """List the networks and experiments whose layers are known, and the groups that a sweep takes."""
    from conv_advisor.data import networks as catalogue

    layers = {name: [layer.problem.short for layer in catalogue.layers(name)] for name in catalogue.names()}
    if as_json:
        print_json({"networks": [{"name": name, "layers": shorts} for name, shorts in layers.items()]})
        return
    rows = [(name, len(shorts), ", ".join(catalogue.GROUPS.get(name, ()))) for name, shorts in layers.items()]
    print_table(("network", "layers", "members"), rows)


def devices(as_json: AsJson = False) -> None:
    """List the devices that were measured here or that have a model."""
    from conv_advisor.app.advice.local import Local

    local = Local(load_settings())
    measured = local.records.devices()
    with_model = local.registry.devices()
    ids = sorted({*measured, *with_model})
    if as_json:
        found = [
            {"id": each, "has_model": each in with_model} | (asdict(measured[each]) if each in measured else {})
            for each in ids
        ]
        print_json({"devices": found})
        return
    rows = [
        (each, measured[each].name if each in measured else "", "yes" if each in with_model else "no") for each in ids
    ]
    print_table(("device", "name", "has a model"), rows)
