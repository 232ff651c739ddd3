"""The form of log lines: text for people, or one JSON object per line for machines."""

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
"""The last is a copy of uvicorn's message, with colours for a terminal."""


class StandardError(logging.StreamHandler[Any]):
    """Writes to the present standard error.

    A handler that kept its first stream would write to a closed one after an exchange. That would end a thread that
    logs, because the error is printed to a stream that may be closed too.
    """

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None or stream.closed:
            return
        self.stream = stream
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        with suppress(ValueError):  # closed since: the thread that logs must go on
            super().handleError(record)


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Write log lines to standard error.

    Parameters
    ----------
    level : str
        debug, info, warning or error.
    form : {'text', 'json'}
        As JSON each line has timestamp (RFC 3339, UTC), level, logger and message; those of ``app.access`` also method,
        route (its template), status, ms and request_id.
    """
    handler = StandardError()
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def formatter(form: Literal["text", "json"]) -> logging.Formatter:
    """The formatter of this form."""
    if form == "text":
        return logging.Formatter(_TEXT)
    line = "%(levelname)s %(name)s %(message)s"
    return JsonFormatter(line, rename_fields=_RENAMED, timestamp=True, reserved_attrs=_NOT_SHOWN)
