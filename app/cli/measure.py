"""The command that runs one convolution, and the functions that measuring commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from conv_advisor.app.cli import layers as layer_options
from conv_advisor.app.cli.cluster import SchedulerOption, resolve_devices
from conv_advisor.app.cli.complete import variants as variants_here
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import (
    AsJson,
    LayerName,
    OneDType,
    OneLayout,
    patient_bar,
    print_json,
    print_table,
    split_words,
)
from conv_advisor.app.cli.table import Mark, Marked, write, write_error
from conv_advisor.app.web import text
from conv_advisor.data.counting import counted
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import InvalidInput, NoAdvice, NotApplicable, RunError, UnknownDevice
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.advice.unsure import Measure, how_many

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings
    from conv_advisor.app.workers.any_engine import AnyEngine
    from conv_advisor.kernels.bench import BenchOptions

_RESULT: Final = ("variant", "outcome", "detail", "time_ms", "samples_ms", "workspace_bytes", "max_error", "plan")

DeviceOption = Annotated[
    str, typer.Option(help="cpu, cuda:0, cuda:1 ...; auto: cuda:0 where it can be used, else cpu.")
]
L2Option = Annotated[L2State, typer.Option(help="What the L2 cache holds when a timed launch starts.")]


def convolve(
    layer: LayerName,
    device: DeviceOption = "auto",
    scheduler: SchedulerOption = None,
    variant: Annotated[
        str,
        typer.Option(
            help="Variants to run, separated by commas; by default the advised one, or all without advice.",
            autocompletion=variants_here,
        ),
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="Run every variant of the device.")] = False,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Run the first so many of the ranking.  [default: 1, and 3 where the tree abstains]"),
    ] = None,
    measure: Annotated[
        Measure | None, typer.Option(help="Run the first three of the ranking where confidence is below 90 %.")
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
    l2: L2Option = L2State.WARM,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random operands.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run one convolution on random operands, and time it.

    The result is first verified against float64.
    """
    from conv_advisor.app.workers import tasks
    from conv_advisor.kernels import catalog

    if all_ and variant:
        raise InvalidInput("variant", variant, "not together with --all")
    if (top or 1) > 1 and (all_ or variant):
        raise InvalidInput("--top", top, "not together with --all or --variant")
    if measure and (top or all_ or variant):
        raise InvalidInput("--measure", measure, "not together with --all, --variant or --top")
    ending = layer_options.ending(bias=bias, residual=residual, activation=activation)
    problem = layer_options.written(dtype, layout, stride, padding, dilation, groups, input_, **ending).read(layer)
    variant_ids = named_variants("variant", variant)
    settings = load_settings(scheduler=scheduler, device=device)
    with patient_bar() as show, open_engines(device, settings) as (engine, *_):
        opened_device = engine.run(tasks.describe_device, deadline_s=settings.start_timeout_s)
        check_device(variant_ids, opened_device, problem)
        if all_:
            variant_ids = [candidate.id for candidate in catalog.for_device_kind(opened_device.kind)]
        if not variant_ids:
            variant_ids = _advised(problem, opened_device, settings, top, measure)
        options = options_of(settings, l2, seed)
        deadline_s = settings.convolution_deadline_s * len(variant_ids)
        measurements = engine.run(
            *(tasks.measure, problem, variant_ids, options, ""),
            deadline_s=deadline_s,
            on_progress=lambda share, doing: show(share, 1, doing),
        )
    _show_measurements(problem, measurements, as_json)
    if not any(measurement.time_ms is not None for measurement in measurements):
        raise RunError(f"no variant of {len(measurements)} ran {problem.brief} on {opened_device.id}")


def named_variants(option: str, text: str) -> list[str]:
    """The ids of the variants that an option names, without repetitions.

    Raises
    ------
    InvalidInput, UnknownVariant
    """
    from conv_advisor.kernels import catalog

    return list(dict.fromkeys(catalog.get(name).id for name in split_words(option, text))) if text else []


def check_device(variants: Sequence[str], device: Device, problem: ConvProblem | None = None) -> None:
    """Refuse a named variant that does not run on a device, or does not compute this problem.

    Raises
    ------
    NotApplicable
    """
    from conv_advisor.kernels import catalog
    from conv_advisor.kernels.variant import why_not

    for variant in map(catalog.get, variants):
        kind = variant.backend.device_kind
        reason = f"it runs on {kind} devices, and {device.id} is {device.kind}" if kind != device.kind else None
        reason = why_not(variant, problem, device) if problem else reason
        if reason:
            raise NotApplicable(variant.id, reason)


def _advised(
    problem: ConvProblem, device: Device, settings: Settings, top: int | None, measure: Measure | None
) -> list[str]:
    """The advised variant and those ranked next; every variant of the device where there is no advice.

    Who asked for a number of them is told that more are run.
    """
    from conv_advisor.app.advice.local import Local
    from conv_advisor.kernels import catalog

    try:
        advice = Local(settings).advise(problem, device.id)
        return [choice.variant for choice in advice.ranking[: how_many(advice, top, measure)]]
    except (NoAdvice, UnknownDevice) as error:
        every = [variant.id for variant in catalog.for_device_kind(device.kind)]
        if top or measure:
            why = error.summary if isinstance(error, NoAdvice) else f"nothing is known of {device.id}"
            write_error(f"there is no ranking to run the first of ({why}): all {len(every)} variants are run")
        return every


@contextmanager
def open_engines(device: str, settings: Settings) -> Iterator[Sequence[AnyEngine]]:
    """One engine for each device of this host, or that of the cluster that the settings name."""
    from conv_advisor.app.workers.cluster.engine import open_cluster
    from conv_advisor.app.workers.engine import Engine

    with ExitStack() as stack:
        if settings.scheduler:
            yield [stack.enter_context(open_cluster(load_settings(scheduler=settings.scheduler, device=device)))]
            return
        devices = resolve_devices(device, settings)
        yield [
            stack.enter_context(Engine(device_id, start_timeout_s=settings.start_timeout_s, has_spare=False))
            for device_id in devices
        ]


def options_of(settings: Settings, l2: L2State, seed: int) -> BenchOptions:
    from conv_advisor.kernels.bench import BenchOptions

    return BenchOptions(l2=l2, workspace_limit_bytes=settings.workspace_limit_bytes, seed=seed)


def _show_measurements(problem: ConvProblem, measurements: list[Measurement], as_json: bool) -> None:
    ranked = sorted(measurements, key=lambda measurement: (measurement.time_ms is None, measurement.time_ms or 0.0))
    if as_json:
        print_json(
            {"layer": problem.short, "dtype": problem.dtype, "layout": problem.layout}
            | {"device": ranked[0].device.id, "results": [_result(measurement) for measurement in ranked]}
        )
        return
    rows = [
        (
            *(
                measurement.variant,
                measurement.outcome,
                text.time(measurement.time_ms),
                text.size(measurement.workspace_bytes),
            ),
            *(text.error(measurement.max_error), measurement.detail),
        )
        for measurement in ranked
    ]
    write(Marked(_headline(ranked), Mark.HEAD))
    write(f"{problem.brief} {problem.dtype} {problem.layout} on {ranked[0].device.name}")
    sys.stdout.write("\n")
    print_table(("variant", "outcome", "time", "workspace", "error", "detail"), rows)


def _headline(ranked: Sequence[Measurement]) -> str:
    """The fastest measured variant, in one line."""
    from conv_advisor.app.cli import say  # it imports the advisor, which help does not need

    best, *others = ranked
    if best.time_ms is None:
        return f"none of {counted(len(ranked), 'variant')} ran"
    parts = [f"{best.variant}, {text.time(best.time_ms)} measured"]
    timed = [
        measurement
        for measurement in others
        if measurement.time_ms is not None and measurement.outcome is Outcome.MEASURED
    ]
    if timed:
        parts.append(f"{say.compared(float(timed[0].time_ms or 0) / best.time_ms)} {timed[0].variant}")
    parts.append(f"{say.workspace(best.workspace_bytes)} workspace")
    return ", ".join(parts) + (f", error {text.error(best.max_error)}" if best.max_error is not None else "")


def _result(measurement: Measurement) -> dict[str, Any]:
    return {name: getattr(measurement, name) for name in _RESULT}
