"""The command that measures many convolutions."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli.cluster import SchedulerOption
from conv_advisor.app.cli.complete import networks as networks_here
from conv_advisor.app.cli.complete import variants as variants_here
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.measure import L2Option, check_device, named_variants, open_engines, options_of
from conv_advisor.app.cli.output import (
    AsJson,
    print_json,
    print_next,
    print_table,
    progress_bar,
    split_counts,
    split_enum,
    split_words,
)
from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.extras import require
from conv_advisor.data.measurement import L2State
from conv_advisor.data.problem import ConvProblem, DType, Layout

if TYPE_CHECKING:
    from conv_advisor.app.sweep.sweep import SweepReport


def sweep(
    device: Annotated[
        str, typer.Option(help="cpu, cuda:0 ...; several GPUs, separated by commas; auto: cuda:0, else cpu.")
    ] = "auto",
    scheduler: SchedulerOption = None,
    networks: Annotated[
        str,
        typer.Option(
            help="Networks, experiments or groups of them, separated by commas.", autocompletion=networks_here
        ),
    ] = "seeds",
    dtypes: Annotated[str, typer.Option(help="Precisions, separated by commas.")] = "float32",
    layouts: Annotated[str, typer.Option(help="Memory orders, separated by commas.")] = "nchw",
    variants: Annotated[
        str,
        typer.Option(
            help="Variants, separated by commas; without it, all of the device.", autocompletion=variants_here
        ),
    ] = "",
    batches: Annotated[
        str, typer.Option(help="Batch sizes, separated by commas; without it, those of the source.")
    ] = "",
    epilogues: Annotated[
        str, typer.Option(help="Epilogues, separated by commas: none,bias-relu,bias-residual-relu ...")
    ] = "none",
    without: Annotated[str, typer.Option(help="Networks whose layers to leave out, separated by commas.")] = "",
    at_most: Annotated[
        int | None, typer.Option(min=1, help="Measure a random sample of at most so many of the networks' problems.")
    ] = None,
    problems: Annotated[
        Path | None, typer.Option(help="Text file of layers to add, one per line: layer, precision, memory order.")
    ] = None,
    sampled: Annotated[int, typer.Option(min=0, help="Number of synthetic layers to add.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled layers and of the random operands.")] = 0,
    l2: L2Option = L2State.WARM,
    run_id: Annotated[
        str, typer.Option(help="Run to continue; by default the one of this device and these options.")
    ] = "",
    shard: Annotated[str, typer.Option(help="INDEX/COUNT: only every COUNT-th problem, from INDEX on.")] = "0/1",
    deadline_s: Annotated[float, typer.Option(min=0.1, help="Time limit for all variants of one problem.")] = 120.0,
    time_limit_s: Annotated[
        float | None, typer.Option(min=0.0, help="Start no further problem after this time.")
    ] = None,
    picks: Annotated[
        bool, typer.Option(help="Also record what cuDNN's heuristics choose; may take longer than timing.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option(help="Write the run to this Parquet file, and heuristics' picks next to it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every variant on every layer. Run again, it resumes."""
    from conv_advisor.app.sweep import sweep as sweeping
    from conv_advisor.app.workers import tasks
    from conv_advisor.data.shipped import Shipped
    from conv_advisor.data.store import Store
    from conv_advisor.kernels import catalog

    if output:
        require("pyarrow")  # both checks come before hours of measuring
        if output.is_dir() or not os.access(output.parent, os.W_OK):
            raise InvalidInput("--output", str(output), "a file in a folder that exists and may be written")
    settings = load_settings(scheduler=scheduler)
    network_names = networks if networks or not (sampled or problems) else ""
    todo = sweeping.drawn(_network_problems(network_names, dtypes, layouts, batches, without), at_most, seed)
    todo += _listed_problems(problems, dtypes, layouts) + _sampled_problems(sampled, seed, dtypes, layouts)
    if not todo:
        raise InvalidInput(
            "--networks", networks, "networks with layers left after --without; or --problems, or --sampled"
        )
    todo = sweeping.with_epilogues(todo, _epilogues(epilogues))
    todo = sweeping.shard_of(list(dict.fromkeys(todo)), *_read_shard(shard))
    variant_ids = named_variants("variants", variants)
    with Store(settings.store_url, shipped=Shipped()) as store:
        with open_engines(device, settings) as engines, progress_bar() as on_progress:
            opened_device = engines[0].run(tasks.describe_device, deadline_s=settings.start_timeout_s)
            check_device(variant_ids, opened_device)
            report = sweeping.sweep(
                store,
                engines,
                todo,
                variant_ids or [variant.id for variant in catalog.for_device_kind(opened_device.kind)],
                options=options_of(settings, l2, seed),
                run_id=run_id,
                deadline_s=deadline_s,
                time_limit_s=time_limit_s,
                has_picks=picks,
                on_progress=on_progress,
            )
        if output:
            from conv_advisor.data.transfer import export_files

            export_files(store, output, device_id=report.device.id, run_id=report.run_id)
    _show_report(report, as_json)


def _network_problems(networks: str, dtypes: str, layouts: str, batches: str, without: str) -> list[ConvProblem]:
    from conv_advisor.data import networks as catalogue

    dtype_list, layout_list = split_enum("dtypes", dtypes, DType), split_enum("layouts", layouts, Layout)
    counts = split_counts("batches", batches) if batches else None
    left_out = {layer.problem for name in _names("without", without) for layer in catalogue.layers(name)}
    return [
        problem
        for name in _names("networks", networks)
        for problem in catalogue.problems(name, batches=counts, dtypes=dtype_list, layouts=layout_list)
        if problem.layer not in left_out
    ]


def _epilogues(text: str) -> list[Epilogue]:
    return [PLAIN if word == Activation.NONE else Epilogue.parse(word) for word in split_words("epilogues", text)]


def _names(option: str, text: str) -> list[str]:
    return split_words(option, text) if text else []


def _listed_problems(path: Path | None, dtypes: str, layouts: str) -> list[ConvProblem]:
    from conv_advisor.data.problem_file import read_problems

    if path is None:
        return []
    return read_problems(path, split_enum("dtypes", dtypes, DType), split_enum("layouts", layouts, Layout))


def _sampled_problems(count: int, seed: int, dtypes: str, layouts: str) -> list[ConvProblem]:
    from conv_advisor.data.sampling import sample_problems

    return sample_problems(
        count, seed, dtypes=split_enum("dtypes", dtypes, DType), layouts=split_enum("layouts", layouts, Layout)
    )


def _read_shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise InvalidInput("shard", text, "INDEX/COUNT with INDEX below COUNT, such as 0/4")


def _show_report(report: SweepReport, as_json: bool) -> None:
    summary = asdict(report) | {"device": report.device.id, "outcomes": dict(report.outcomes)}
    if as_json:
        print_json(summary)
        return
    rows = [*((name, count) for name, count in sorted(report.outcomes.items())), ("already there", report.n_skipped)]
    state = "complete" if report.is_complete else "stopped at the time limit; run it again to go on"
    print_table(("outcome", "attempts"), rows, title=f"run {report.run_id} on {report.device.name}: {state}")
    if report.is_complete:
        device = report.device.id
        print_next(
            f"conv-advisor advise LAYER --device {device} answers by what was measured",
            f"conv-advisor train --device {device} learns from it, for layers that were not",
        )
    else:
        print_next("the same command again, which goes on where this run ended")
