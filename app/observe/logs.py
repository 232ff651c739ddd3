"""How log lines look: for people, or one JSON object each for machines."""

from __future__ import annotations

import logging
from typing import Final, Literal

from pythonjsonlogger.json import JsonFormatter

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_RENAMED: Final = {"levelname": "level", "name": "logger"}


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Write log lines to standard error.

    Parameters
    ----------
    level : str
        debug, info, warning or error.
    form : {'text', 'json'}
        As JSON each line has timestamp (RFC 3339, UTC), level, logger and message; those of ``app.access`` also method,
        method, route (its template), status, ms and request_id.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def formatter(form: Literal["text", "json"]) -> logging.Formatter:
    """What makes a line of a record."""
    if form == "text":
        return logging.Formatter(_TEXT)
    return JsonFormatter("%(levelname)s %(name)s %(message)s", rename_fields=_RENAMED, timestamp=True)
