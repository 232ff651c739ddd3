"""Commands that train and judge models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import AsJson, print_json, print_table, progress_bar
from app.settings import load_settings
from data.errors import InvalidInput

if TYPE_CHECKING:
    from data.store import Store
    from models.judging import Score

TrainedDevice = Annotated[str, typer.Option(help="Device whose measurements to use.")]


def train(
    device: TrainedDevice = "nvidia-h200",
    force: Annotated[bool, typer.Option("--force", help="Use the new tree even if it is worse.")] = False,
    output: Annotated[Path | None, typer.Option(help="Only write the new tree, to this folder.")] = None,
    ship: Annotated[
        bool, typer.Option("--ship", help="Only write the new tree, to where the project ships it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a tree on the store's measurements; it is used from then on if it is no worse on layers held out."""
    from app.retrain import retrain
    from models.registry import SHIPPED

    settings = load_settings()
    folder = SHIPPED / device if ship else output
    if folder and (force or (ship and output)):
        raise InvalidInput(
            "--ship" if ship else "--output", str(folder), "neither --force nor another folder beside it"
        )
    with progress_bar() as show:
        if folder:
            result = _train_into(folder, device, lambda share: show(share, 1, "training"))
        else:
            result = retrain(
                settings.store_url,
                settings.models_home,
                device,
                is_forced=force,
                on_progress=lambda fraction, doing: show(fraction, 1, doing),
            )
    if as_json:
        print_json(result)
    else:
        print_table(("", ""), ((name, "" if value is None else str(value)) for name, value in result.items()))


def evaluate(device: TrainedDevice = "nvidia-h200", as_json: AsJson = False) -> None:
    """Judge a tree on networks it was not trained on, beside the single best variant and cuDNN's own choices."""
    from models.evaluate import evaluate as judge

    with _filled_store() as store, progress_bar() as show:
        report = judge(
            store.table(device),
            store.picks_table(device),
            device_id=device,
            on_progress=lambda share: show(share, 1, "leaving out one network at a time"),
        )
    if as_json:
        print_json(report.to_dict())
        return
    _show_scores("all networks", report.overall)
    for part in (report.by_precision, report.by_network):
        for name, scores in part.items():
            _show_scores(name, scores)


def _train_into(folder: Path, device: str, on_progress: Any) -> dict[str, Any]:
    from models.evaluate import challenge
    from models.tree_file import write

    with _filled_store() as store:
        table = store.table(device)
    found = challenge(table, None, device_id=device, on_progress=on_progress)
    write(folder, found.model)
    return {"device": device, "model": found.model.id, "slowdown": found.slowdown, "folder": str(folder)}


@contextmanager
def _filled_store() -> Iterator[Store]:
    from app.shipped import import_shipped
    from data.store import Store

    with Store(load_settings().store_url) as store:
        import_shipped(store)
        yield store


def _show_scores(title: str, scores: dict[str, Score]) -> None:
    names = ("n_problems", "geometric_mean", "p95", "worst", "share_tied", "share_refused")
    rows = [(rule, *(getattr(each, name) for name in names)) for rule, each in scores.items()]
    columns = ("rule", "problems", "geometric mean", "p95", "worst", "tied", "refused")
    print_table(columns, rows, title=f"{title}: slowdown against the oracle")
