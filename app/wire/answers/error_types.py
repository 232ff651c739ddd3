"""What /problems answers."""

from __future__ import annotations

from typing_extensions import TypedDict

from conv_advisor.app.wire.error_types import ErrorType


class ErrorTypeAnswer(TypedDict):
    """One type of error; type, title and status are those of every problem document of this type."""

    type: str
    title: str
    status: int
    meaning: str


class ErrorTypesAnswer(TypedDict):
    """Every type of error."""

    problems: list[ErrorTypeAnswer]


def error_type_answer(kind: ErrorType) -> ErrorTypeAnswer:
    """A type of error, as every answer says it."""
    return {"type": kind.address, "title": kind.title, "status": kind.status, "meaning": kind.meaning}
