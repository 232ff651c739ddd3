"""The settings, read when a command needs them: what reads them takes longer to import than a command's help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings


def load_settings(**overrides: Any) -> Settings:
    """What `app.settings.load_settings` gives."""
    from conv_advisor.app import settings

    return settings.load_settings(**overrides)
