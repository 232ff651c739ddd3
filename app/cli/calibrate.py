"""The command that adapts a borrowed tree to a GPU by measuring some layers there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli.cluster import resolve_devices
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, patient_bar, print_json, print_next, print_table
from conv_advisor.app.cli.table import Mark, Marked, write
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, NotEnoughData

if TYPE_CHECKING:
    from conv_advisor.app.sweep.calibrate import Calibration


def calibrate(
    device: Annotated[str, typer.Option(help="cuda:0, cuda:1 ...; auto: cuda:0.")] = "auto",
    minutes: Annotated[float, typer.Option(min=0.0, help="Start no further layer after this time.")] = 5.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn layers and of the random operands.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Use the adapted tree even if it is worse.")] = False,
    as_json: AsJson = False,
) -> None:
    """Adapt a borrowed tree to this GPU by measuring for minutes.

    Interrupted, it adapts to what it has measured. Run again, it resumes.
    """
    from conv_advisor.app.sweep import calibrate as calibrating
    from conv_advisor.app.workers import tasks
    from conv_advisor.app.workers.engine import Engine
    from conv_advisor.data.store import Store
    from conv_advisor.kernels.bench import BenchOptions
    from conv_advisor.models.registry.on_disk import Registry
    from conv_advisor.models.registry.shared import SharedModels

    settings = load_settings()
    devices = resolve_devices(device, settings)
    if len(devices) != 1:
        raise InvalidInput("device", device, "one device")
    if device == "auto" and devices == ["cpu"]:
        allowed = "a GPU, and no NVIDIA GPU is found on this host: conv-advisor sweep and train are for its processor"
        raise InvalidInput("device", device, allowed)
    registry = Registry(settings.models_home)
    with (
        Store(settings.store_url) as store,
        Engine(devices[0], start_timeout_s=settings.start_timeout_s, has_spare=False) as engine,
    ):
        opened = engine.run(tasks.describe_device, deadline_s=settings.start_timeout_s)
        lender = calibrating.lender_of(opened, registry)
        with patient_bar() as show:
            calibration = calibrating.calibrate(
                store,
                engine,
                opened,
                lender,
                limit_s=60 * minutes,
                seed=seed,
                options=BenchOptions(workspace_limit_bytes=settings.workspace_limit_bytes, seed=seed),
                on_progress=lambda share, doing: show(share, 1, doing),
            )
        result = calibration.to_dict(is_forced=force)
        if calibration.found:
            models = SharedModels(registry, store.engine)
            models.join()
            models.add(calibration.found.model, in_charge=result["promoted"])
    if as_json:
        print_json(result)
        return
    _show(calibration, is_promoted=result["promoted"])


def _show(calibration: Calibration, *, is_promoted: bool) -> None:
    """Show what calibrating gained, or raise what is missing.

    Raises
    ------
    NotEnoughData
    """
    if calibration.found is None:
        raise NotEnoughData(f"{calibration.ended}: {calibration.missing}" if calibration.ended else calibration.missing)
    device, adapted = calibration.device, calibration.found
    state = "is in use" if is_promoted else "is kept, and not in use"
    write(Marked(f"Tree {adapted.model.id} of {device.name} {state}.", Mark.HEAD))
    if calibration.ended:
        write(f"It ended early, since {calibration.ended}: what was measured until then counts.")
    write(
        f"{counted(calibration.n_problems, 'problem')} measured there; "
        f"the tree was that of {calibration.lender.device.name}"
    )
    rows = [
        (
            name,
            score.n_problems,
            f"{score.slowdown:.3f}",
            f"{score.p95:.2f}",
            f"{score.worst:.2f}",
            _share(score.time_error),
        )
        for name, score in (("before", adapted.before), ("after", adapted.after))
    ]
    columns = ("", "problems", "slowdown", "p95", "worst", "times off by")
    print_table(columns, rows, title="on layers held back from adapting, against the fastest measured there")
    print_table(("outcome", "attempts"), sorted(calibration.outcomes.items()))
    for reason in adapted.objections:
        write(f"against it: {reason}")
    again = "the same command again measures more"
    print_next(
        f"conv-advisor advise LAYER --device {device.id} asks it" if is_promoted else f"--force uses it; {again}"
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
