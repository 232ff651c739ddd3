"""What a command takes from its environment: the settings and NumPy, loaded on demand, since help needs neither."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from conv_advisor.app.settings import Settings

_THREADS: Final = "OPENBLAS_NUM_THREADS"


def load_settings(**overrides: Any) -> Settings:
    """The same as `app.settings.load_settings`, imported on demand."""
    from conv_advisor.app import settings

    return settings.load_settings(**overrides)


def import_numpy_alone() -> None:
    """Import NumPy without its BLAS threads, for a command that multiplies no matrices.

    Starting the threads takes a quarter of the import. Child processes choose their own number of threads, and a number
    that the environment sets stays in force here.
    """
    is_said = _THREADS in os.environ
    os.environ.setdefault(_THREADS, "1")
    try:
        import numpy  # noqa: F401 - later imports find it loaded
    finally:
        if not is_said:
            del os.environ[_THREADS]
