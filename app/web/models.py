"""The view of models: every tree of every device, and its scores on layers held out from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from conv_advisor.app.service.service import Service
from conv_advisor.data.errors import ModelRejected
from conv_advisor.models.registry.on_disk import Entry
from conv_advisor.models.retraining.changes import Changes
from conv_advisor.models.tree.first_levels import Kind, first_levels

JUDGED_ON: Final = {
    "never_trained": "On networks never trained on",
    "leave_one_network_out": "On networks trained on, each left out in turn; others like it stay",
}
"""Parts of a card's scores, the strictest first: leaving one network out hides little, since networks share layers."""


@dataclass(frozen=True)
class Score:
    """How one tree did on layers held out from it, for one precision and layout, or for all of them."""

    name: str
    geometric_mean: float
    p95: float | None
    worst: float | None
    share_tied: float | None


@dataclass(frozen=True)
class Judged:
    """How one tree did on one kind of layers it was not trained on.

    Parameters
    ----------
    title : str
        Which layers those are.
    overall : Score
    by_precision : sequence of Score
    """

    title: str
    overall: Score
    by_precision: Sequence[Score] = ()


@dataclass(frozen=True)
class ModelRow:
    """One tree; ``judged`` begins with the strictest scores, those on the least known layers."""

    entry: Entry
    judged: Sequence[Judged]
    n_problems: int | None
    n_layers: int | None
    n_times: int | None
    created: str
    changes: Changes | None = None
    """Against the tree before it."""
    decisions: Sequence[Kind] = ()
    """The first decisions of a tree in use; else empty."""


def model_rows(service: Service) -> dict[str, list[ModelRow]]:
    """Every tree, by device; the one in use first, then the newest."""
    by_device: dict[str, list[ModelRow]] = {}
    for entry in service.registry.list():
        row = _model_row(entry)
        if entry.is_active and not entry.problem:
            with suppress(ModelRejected):  # it changed since it was listed; the next view says so
                row = replace(row, decisions=first_levels(service.registry.active(entry.device_id)))
        by_device.setdefault(entry.device_id, []).append(row)
    for rows in by_device.values():
        rows.sort(key=lambda row: row.created, reverse=True)
        rows.sort(key=lambda row: not row.entry.is_active)
    return by_device


def _model_row(entry: Entry) -> ModelRow:
    card = entry.card
    return ModelRow(
        entry,
        _judged(card.get("scores") or {}),
        card.get("n_problems"),
        card.get("n_layers"),
        card.get("n_times"),
        str(card.get("created", "")),
        _changes(card.get("changes")),
    )


def _changes(changes: object) -> Changes | None:
    """The changes against the tree before, from a card; None where it has none that can be read."""
    try:
        return msgspec.convert(changes, Changes) if changes else None
    except msgspec.ValidationError:
        return None


def _judged(scores: Mapping[str, Any]) -> list[Judged]:
    """The scores on a card: those on whole networks, else the one on held-out layers."""
    judged = []
    for part, title in JUDGED_ON.items():
        by_name = scores.get(part)
        if isinstance(by_name, Mapping) and "overall" in by_name:
            precisions = [_score(name, by_name[name]) for name in sorted(by_name) if name != "overall"]
            judged.append(Judged(title, _score("overall", by_name["overall"]), precisions))
    held_out = scores.get("held_out_slowdown", scores.get("geometric_mean"))
    if not judged and held_out is not None:
        judged.append(Judged("On layers held out", Score("overall", float(held_out), None, None, None)))
    return judged


def _score(name: str, figures: Mapping[str, float]) -> Score:
    return Score(name, figures["geometric_mean"], figures.get("p95"), figures.get("worst"), figures.get("share_tied"))
