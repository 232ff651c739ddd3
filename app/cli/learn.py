"""Commands that train and judge models."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conv_advisor.app.cli.complete import devices as devices_here
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, print_json, print_next, print_table, progress_bar, split_words
from conv_advisor.app.service.known import records_of
from conv_advisor.data.errors import InvalidInput, ModelRejected, NotEnoughData
from conv_advisor.data.extras import require
from conv_advisor.data.networks import GROUPS, HELD_OUT

if TYPE_CHECKING:
    from conv_advisor.data.records import Records
    from conv_advisor.models.evaluation.judging import Score
    from conv_advisor.models.evaluation.report import Part, Report
    from conv_advisor.models.tree.file import TreeModel

log = logging.getLogger(__name__)

TrainedDevice = Annotated[str, typer.Option(help="Device whose measurements to use.", autocompletion=devices_here)]


def train(
    device: TrainedDevice = "nvidia-h200",
    force: Annotated[bool, typer.Option("--force", help="Use, or ship, the new tree even if it is worse.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the new tree to this folder and do not use it.")] = None,
    ship: Annotated[
        bool, typer.Option("--ship", help="Write the new tree to where the project ships it, if it is no worse.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="With --ship: write the evaluation to this JSON file too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a tree on what was measured.

    It is used from then on if it is no worse on held-out layers.
    """
    from conv_advisor.data.shipped import problem_of
    from conv_advisor.models.registry.on_disk import SHIPPED
    from conv_advisor.models.retraining.retrain import retrain
    from conv_advisor.models.training.enough import check_enough

    require("sklearn")
    settings = load_settings()
    if output and (force or ship):
        raise InvalidInput("--output", str(output), "not together with --force or --ship")
    if report and not ship:
        raise InvalidInput("--report", str(report), "only with --ship")
    records = records_of(settings)
    device = _measured(records, device)
    folder = SHIPPED / device if ship else output
    check_enough(map(problem_of, records.measured_keys(device)), device)
    with progress_bar() as show:
        if folder:
            result = _train_into(
                folder,
                device,
                lambda share: show(share, 1, "training"),
                ship=ship,
                is_forced=force,
                report_file=report,
            )
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
        _show_result(result)


def evaluate(
    device: TrainedDevice = "nvidia-h200",
    networks: Annotated[
        str, typer.Option(help="Networks or groups to judge, together, a tree that has none of their layers.")
    ] = HELD_OUT,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of processes; without it, one per processor.")] = None,
    is_training: Annotated[
        bool,
        typer.Option("--train/--no-train", help="Train trees to judge, or judge the one in use, which takes seconds."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Score trees on networks they were not trained on.

    The single best variant, cuDNN and PyTorch are scored beside them.
    """
    require("sklearn")
    if not is_training and networks != HELD_OUT:
        raise InvalidInput(
            "--networks", networks, f"{HELD_OUT}, with --no-train: the tree in use was trained on the others"
        )
    records = records_of(load_settings())
    device = _measured(records, device)
    model = None if is_training else _tree_in_use(device)
    with progress_bar() as show:
        report = _judge(records, device, jobs, lambda share: show(share, 1, "leaving out networks"), networks, model)
    if not report.trees and not (report.never_trained and report.never_trained.trees):
        raise NotEnoughData(
            f"device {device}: no layer of the networks that judge trees was measured there; "
            f"conv-advisor sweep --networks {networks} on it does, which measures {', '.join(_members(networks))}"
        )
    if as_json:
        print_json(report.to_dict())
        return
    _show_part("networks left out one at a time", report)
    if report.never_trained:
        _show_part("networks never trained on", report.never_trained)
    _show_tuning(report)
    print_next(
        f"conv-advisor train --device {device} learns from all of it",
        f"conv-advisor advise LAYER --device {device} asks the tree in use",
    )


def _measured(records: Records, device: str) -> str:
    """The id of a measured device, from any of its names; for a CPU that was not measured, the error says how to.

    Raises
    ------
    NotEnoughData, UnknownDevice
    """
    if device == "cpu" and device not in records.devices():
        raise NotEnoughData(f"device {device}: nothing was measured on it; conv-advisor sweep --device {device} does")
    return records.device(device).id


def _members(names: str) -> list[str]:
    """The networks that names of networks and groups stand for."""
    return [member for name in split_words("networks", names) for member in GROUPS.get(name, (name,))]


def _tree_in_use(device: str) -> TreeModel:
    from conv_advisor.models.registry.on_disk import Registry

    return Registry(load_settings().models_home).active(device)


def _judge(
    records: Records,
    device: str,
    jobs: int | None,
    on_progress: Callable[[float], None],
    names: str = HELD_OUT,
    model: TreeModel | None = None,
    *,
    trains: bool | None = None,
) -> Report:
    from conv_advisor.data import networks
    from conv_advisor.models.evaluation.evaluate import evaluate as judge
    from conv_advisor.models.evaluation.peers import PEERS, read_peers

    never_trained = {name: [layer.problem for layer in networks.layers(name)] for name in _members(names)}
    peers = PEERS / f"{device}.parquet"
    return judge(
        records.table(device),
        records.picks_table(device),
        device_id=device,
        never_trained=None if names == HELD_OUT else never_trained,
        peers=read_peers(peers) if peers.exists() else None,
        model=model,
        trains=trains,
        jobs=jobs,
        on_progress=on_progress,
    )


def _show_part(title: str, part: Part) -> None:
    _show_scores(f"{title}, all", part.overall)
    for scores in (part.by_precision, part.by_network):
        for name, by_rule in scores.items():
            _show_scores(f"{title}: {name}", by_rule)
    rules = dict.fromkeys([*part.n_left_out, *part.n_silent])
    gone = [(rule, part.n_left_out.get(rule, 0), part.n_silent.get(rule, 0)) for rule in rules]
    if gone:
        columns = ("rule", "chooses what was given up on", "says nothing")
        print_table(columns, gone, title=f"{title}: problems that these leave out for everybody")
    for name, by_rule in part.trees.items():
        _show_scores(f"{title}, trees alone: {name}", by_rule)
    for name, by_rule in part.in_common.items():
        _show_scores(f"{title}, only what every rule was judged on, against one oracle: {name}", by_rule)
    rows = [(name, error.n_problems, error.median, error.p90) for name, error in part.time_error.items()]
    error_columns = ("", "problems", "median", "90th percentile")
    if rows:
        print_table(error_columns, rows, title=f"{title}: error of the predicted time of what is chosen")


def _show_tuning(report: Report) -> None:
    """Print whether PyTorch's tuning pays; nothing where it was not timed."""
    columns = (
        "",
        "problems",
        "never pays",
        "else after calls",
        "tuning of one, s",
        "of all, s",
        "first call untuned, s",
    )
    rows = [
        (name, *(getattr(tuning, field.name) for field in fields(tuning))) for name, tuning in report.tuning.items()
    ]
    if rows:
        trees = ", ".join(report.tuning_trees)
        print_table(columns, rows, title=f"is tuning worth it, against the advice of tree {trees} in the same run")


def _train_into(
    folder: Path,
    device: str,
    on_progress: Callable[[float], None],
    *,
    ship: bool,
    is_forced: bool,
    report_file: Path | None = None,
) -> dict[str, Any]:
    """Train, and write the tree to a folder; the card of a tree that ships has its scores on networks left out.

    A tree that is worse than the one it would replace is written only if that is forced.
    """
    from conv_advisor.kernels.cpu.threads import available_cores
    from conv_advisor.models.evaluation.report import scores_of
    from conv_advisor.models.retraining.challenge import challenge
    from conv_advisor.models.training.train import MOST_THREADS
    from conv_advisor.models.tree.file import with_scores, write

    records = records_of(load_settings())
    champion = _shipped_tree(folder) if ship else None
    outcome = challenge(
        records.table(device),
        champion,
        device_id=device,
        on_progress=lambda share: on_progress(share / 2),
        n_threads=min(MOST_THREADS, available_cores()),
    )
    model, is_written = outcome.model, is_forced or outcome.is_no_worse
    if ship and is_written:
        report = _judge(records, device, None, lambda share: on_progress(0.5 + share / 2), model=model, trains=True)
        model = with_scores(model, scores_of(report))
        if report_file:
            report_file.write_text(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if is_written:
        write(folder, model)
    changes = outcome.changes.to_dict() if outcome.changes else None
    return {
        "device": device,
        "model": model.id,
        "slowdown": outcome.slowdown,
        "champion_slowdown": None if math.isnan(outcome.champion_slowdown) else outcome.champion_slowdown,
        "folder": str(folder),
        "written": is_written,
        "forced": is_forced,
        "reasons": list(outcome.objections),
        "changes": changes,
    }


def _shipped_tree(folder: Path) -> TreeModel | None:
    """The tree that ships now; None where there is none, or none that can be read, so that a new one can replace it."""
    from conv_advisor.models.tree.file import read

    try:
        return read(folder)
    except ModelRejected as error:
        log.warning("there is nothing to compare with: %s", error)
        return None


def _show_result(result: dict[str, Any]) -> None:
    """Print the result of training, and the layers that got better and worse."""
    changes = result.pop("changes") or {}
    reasons = result.pop("reasons")
    facts = [(name, "" if value is None else str(value)) for name, value in result.items()]
    facts += [("against it", reason) for reason in reasons]
    facts += [(name.removeprefix("n_"), str(count)) for name, count in changes.items() if name.startswith("n_")]
    print_table(("", ""), facts)
    columns = ("problem", "before", "slowdown", "now", "slowdown")
    names = ("problem", "before", "slowdown_before", "after", "slowdown_after")
    for title in ("better", "worse"):
        rows = [[change[name] for name in names] for change in changes.get(title, ())]
        if rows:
            print_table(columns, rows, title=f"{title} than with the tree before, on layers neither was trained on")
    _show_next(result)


def _show_next(result: dict[str, Any]) -> None:
    """Print what to do with a new tree, or with one that was refused."""
    device = result["device"]
    judge = f"conv-advisor evaluate --device {device} says how good such trees are on networks that they have not seen"
    if result.get("promoted"):
        print_next(f"conv-advisor advise LAYER --device {device} asks the new tree", judge)
    elif result.get("written"):
        print_next(judge)
    else:
        print_next(f"conv-advisor sweep measures more for it to learn from; --force takes it as it is; {judge}")


def _show_scores(title: str, scores: dict[str, Score]) -> None:
    names = ("n_problems", "geometric_mean", "p95", "worst", "share_tied", "share_refused")
    rows = [(rule, *(getattr(score, name) for name in names)) for rule, score in scores.items()]
    columns = ("rule", "problems", "geometric mean", "p95", "worst", "tied", "refused")
    print_table(columns, rows, title=f"{title}: slowdown against the oracle")
