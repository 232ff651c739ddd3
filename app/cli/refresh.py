"""The command that measures a little after an upgrade, and reports what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli.cluster import resolve_devices
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, patient_bar, print_json, print_next, print_table
from conv_advisor.app.cli.table import Mark, Marked, write
from conv_advisor.app.web import text
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, NotEnoughData
from conv_advisor.data.extras import require

if TYPE_CHECKING:
    from conv_advisor.app.sweep.refresh import Refreshed
    from conv_advisor.models.upgrades.refresh import Findings


def refresh(
    device: Annotated[str, typer.Option(help="cuda:0, cuda:1 ...; cpu; auto: cuda:0, else cpu.")] = "auto",
    minutes: Annotated[float, typer.Option(min=0.0, help="Start no further layer after this time.")] = 5.0,
    share: Annotated[
        float | None, typer.Option(help="Share of the known times to measure again; at most 0.02.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Number of regressed layers to show.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn and of the random operands.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Use the repaired tree even if it is no better.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find what an upgrade changed, and repair the tree.

    A few measurements are enough, after an upgrade of driver, cuDNN or kernels. The command names the layers that
    became slower. Interrupted, it reports what it knows. Run again, it resumes.
    """
    from conv_advisor.app.sweep import refresh as refreshing
    from conv_advisor.app.workers import tasks
    from conv_advisor.app.workers.engine import Engine
    from conv_advisor.data.store import Store
    from conv_advisor.kernels.bench import BenchOptions
    from conv_advisor.models.registry.on_disk import Registry
    from conv_advisor.models.registry.shared import SharedModels
    from conv_advisor.models.upgrades.refresh import MOST_SHARE

    require("sklearn")
    settings = load_settings()
    devices = resolve_devices(device, settings)
    if len(devices) != 1:
        raise InvalidInput("device", device, "one device")
    registry = Registry(settings.models_home)
    with (
        Store(settings.store_url) as store,
        Engine(devices[0], start_timeout_s=settings.start_timeout_s, has_spare=False) as engine,
    ):
        opened = engine.run(tasks.describe_device, deadline_s=settings.start_timeout_s)
        with patient_bar() as show:
            refreshed = refreshing.refresh(
                store,
                engine,
                opened,
                registry,
                limit_s=60 * minutes,
                share=MOST_SHARE if share is None else share,
                seed=seed,
                options=BenchOptions(workspace_limit_bytes=settings.workspace_limit_bytes, seed=seed),
                on_progress=lambda share, doing: show(share, 1, doing),
            )
        result = refreshed.to_dict(is_forced=force)
        if refreshed.model:
            models = SharedModels(registry, store.engine)
            models.join()
            models.add(refreshed.model, in_charge=result["promoted"])
    if as_json:
        print_json(result)
        return
    if refreshed.found is None:
        raise NotEnoughData(f"{refreshed.ended}: {refreshed.missing}" if refreshed.ended else refreshed.missing)
    _show(refreshed, refreshed.found, is_promoted=result["promoted"], most=most)


def _show(refreshed: Refreshed, findings: Findings, *, is_promoted: bool, most: int) -> None:
    moved = (
        f"{counted(len(findings.moved), 'variant has', 'variants have')} moved"
        if findings.moved
        else "nothing has moved"
    )
    write(Marked(f"{refreshed.device.name}: {moved}.", Mark.HEAD))
    for name, (before, now) in refreshed.changed.items():
        write(f"{name}: {before or 'none'}, now {now or 'none'}")
    if refreshed.ended:
        write(f"It ended early, since {refreshed.ended}: what was measured until then counts.")
    write(f"{counted(findings.n_measured, 'known time')} of {findings.n_known} measured again ({findings.share:.2%})")
    columns = ("variant", "measured", "now / before", "slower", "faster", "lost")
    lines = [line for line in findings.variants if line.name in findings.moved]
    cells = [
        (line.name, line.n_problems, line.geometric_mean, line.n_regressed, line.n_improved, line.n_lost)
        for line in lines
    ]
    if cells:
        print_table(columns, cells, title="what moved, on the layers where it was measured again")
    slower = [
        (
            regression.problem,
            regression.variant,
            text.time(regression.before_ms),
            text.time(regression.now_ms),
            f"{regression.chance:.0%}",
        )
        for regression in findings.regressed[:most]
    ]
    if slower:
        title = f"{counted(len(findings.regressed), 'layer')} likely slower by more than 5 %: those slower by most"
        print_table(("layer", "was the fastest", "before", "now about", "likely"), slower, title=title)
    if refreshed.model is None:
        print_next("the tree stays as it is")
        return
    write(
        f"times were off by {findings.off_before:.1%} in the mean, "
        f"and are by {findings.off_after:.1%} with what was found"
    )
    state = "is in use" if is_promoted else "is kept, and not in use: --force uses it"
    print_next(f"Tree {refreshed.model.id} {state}; conv-advisor sweep and train learn all anew")
