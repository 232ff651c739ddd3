"""How log lines look: for people, or one JSON object each for machines."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any, Final, Literal

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_RENAMED: Final = {"levelname": "level", "name": "logger"}
_NOT_SHOWN: Final = (*RESERVED_ATTRS, "color_message")
"""The last is uvicorn's message once more, with colours for a terminal."""


class StandardError(logging.StreamHandler[Any]):
    """Writes to what standard error is now.

    One that kept the stream of its beginning would write to a closed one where that is exchanged, and a thread that
    logs would end by it: the error is printed to a stream that may be closed too.
    """

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None or stream.closed:
            return
        self.stream = stream
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        with suppress(ValueError):  # closed since: whoever logs has other things to do
            super().handleError(record)


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
    handler = StandardError()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def formatter(form: Literal["text", "json"]) -> logging.Formatter:
    """What makes a line of a record."""
    if form == "text":
        return logging.Formatter(_TEXT)
    shown = "%(levelname)s %(name)s %(message)s"
    return JsonFormatter(shown, rename_fields=_RENAMED, timestamp=True, reserved_attrs=_NOT_SHOWN)
