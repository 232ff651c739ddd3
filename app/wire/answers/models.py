"""What /v1/models answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from conv_advisor.models.registry.on_disk import Entry


class ModelAnswer(TypedDict):
    """One tree; problem says why its file cannot be used."""

    id: str
    device: str
    is_shipped: bool
    is_active: bool
    problem: str | None
    card: dict[str, Any]


class ModelsAnswer(TypedDict):
    """Every tree of every device."""

    models: list[ModelAnswer]


def model_answer(entry: Entry) -> ModelAnswer:
    """A tree, without its arrays."""
    return {
        "id": entry.id,
        "device": entry.device_id,
        "is_shipped": entry.is_shipped,
        "is_active": entry.is_active,
        "problem": entry.problem,
        "card": entry.card,
    }
