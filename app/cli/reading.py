"""Commands that use Pydantic to read arguments only where they must: importing it takes a fifth of an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from typer import BadParameter
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


class _Argument(TyperArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return _taken(self, ctx, value, super().process_value)


class _Option(TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return _taken(self, ctx, value, super().process_value)


_OURS: Final[dict[type, type]] = {TyperArgument: _Argument, TyperOption: _Option}


def _taken(parameter: _Argument | _Option, ctx: Any, value: Any, read: Callable[[Any, Any], Any]) -> Any:
    """The value that a command gets: a default, a text, or the result of our parser as it is; else Typer's reading.

    Parameters
    ----------
    parameter : TyperArgument or TyperOption
    ctx : Context
    value : str, tuple of str, or the default
    read : callable (ctx, value) -> value
        Typer's own reading, which needs Pydantic.
    """
    described = parameter.type_descriptor
    kind, parse = described.annotation, described.parameter_info.parser
    is_missing = value is None or value == ()
    if (is_missing and not parameter.required) or (isinstance(kind, type) and isinstance(value, kind)):
        taken = value
    elif kind == list[str] and not is_missing:
        taken = list(value)
    elif parse is not None and isinstance(value, str):
        taken = parse(value)
    else:
        return _told(value, lambda: read(ctx, value))
    return taken if parameter.callback is None else parameter.callback(ctx, parameter, taken)


def _told(value: Any, read: Callable[[], Any]) -> Any:
    """The value as read, or an error that names the value: Typer's names the option alone."""
    try:
        return read()
    except BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")
        if isinstance(value, str) and repr(value) not in error.message:
            error.message = f"{value!r}: {error.message}"
        raise


class _Reading:
    """Mixin that gives the parameters our classes: Typer makes them of its own, and ours differ in one method."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class it is mixed into
        for parameter in parameters:
            parameter.__class__ = _OURS.get(type(parameter), type(parameter))
        return parameters


class Command(_Reading, TyperCommand):
    """A command."""


class Group(_Reading, TyperGroup):
    """A group of commands."""
