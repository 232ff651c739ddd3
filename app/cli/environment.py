"""What a command has of its environment: the settings, and NumPy; each when it is needed, for help needs neither."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings

_THREADS: Final = "OPENBLAS_NUM_THREADS"


def load_settings(**overrides: Any) -> Settings:
    """What `app.settings.load_settings` gives."""
    from conv_advisor.app import settings

    return settings.load_settings(**overrides)


def import_numpy_alone() -> None:
    """Import NumPy without threads to multiply on, for a command that multiplies nothing.

    To start them takes a quarter of the import. Whatever this process starts later has as many as it likes, and so has
    this one where the environment says how many.
    """
    is_said = _THREADS in os.environ
    os.environ.setdefault(_THREADS, "1")
    try:
        import numpy  # noqa: F401 - whoever needs it imports it again, and finds it there
    finally:
        if not is_said:
            del os.environ[_THREADS]
