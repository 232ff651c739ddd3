"""The command line, ``conv-advisor``. A command is imported only when it is named, its needs only when it runs."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from conv_advisor.app.cli.reading import Command, Group
from conv_advisor.data.errors import ConvAdvisorError, InvalidInput, NotApplicable, NotInstalled, Unknown

_MODULES: Final = {
    "advise": "advise",
    "plan": "plan",
    "convolve": "measure",
    "sweep": "sweep",
    "calibrate": "calibrate",
    "refresh": "refresh",
    "train": "learn",
    "evaluate": "learn",
    "compare": "upgrade",
    "serve": "serve",
    "settings": "settings",
    "token": "access",
    "variants": "ask",
    "devices": "ask",
    "networks": "ask",
    "scheduler": "cluster",
    "worker": "cluster",
    "data": "transfer",
    "jobs": "jobs",
    "database": "database",
}
"""Each command, and the module here that has it under the same name: a function, or a `typer.Typer` of several."""


class _Commands(Mapping[str, Any]):
    """Click's commands by name, each imported when it is asked for: to read all of them takes as long as an answer."""

    def __getitem__(self, name: str) -> Any:
        return _command(name, _MODULES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@cache
def _command(name: str, module: str) -> Any:
    found = getattr(import_module(f"{__name__}.{module}"), name)
    around = typer.Typer(rich_markup_mode=_MARKUP)
    if isinstance(found, typer.Typer):
        for each in found.registered_commands:
            each.cls = Command
        around.add_typer(found, name=name)
    else:
        around.command(name, cls=Command)(found)
    return typer.main.get_group(around).commands[name]


class _Root(Group):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": _Commands()})


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from conv_advisor import __version__

        sys.stdout.write(f"conv-advisor {__version__}\n")
        raise typer.Exit


_MARKUP: Final = None
"""Plain help: Rich's takes half as long again as the rest of it."""
cli = typer.Typer(
    name="conv-advisor", cls=_Root, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=_MARKUP
)


@cli.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Say which convolution algorithm is fastest for a layer on a GPU: measured, learned, served."""


_OBJECTS_AT_ONCE: Final = 50_000
"""New objects before Python looks for circles among them: by default it does every 700, a tenth of a command's time,
while what is imported is there to stay."""


def main() -> None:
    """Run the command line; a known error is one line on standard error, and exit status 2 for what cannot be asked.

    So is what the operating system refuses: a full disk, a file that may not be written, a folder that is not there.
    """
    gc.set_threshold(_OBJECTS_AT_ONCE)
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show × or µ shows the rest
    try:
        cli()
    except ConvAdvisorError as error:
        from conv_advisor.app.cli.table import write_error

        write_error(f"conv-advisor: {error}")
        sys.exit(2 if isinstance(error, InvalidInput | Unknown | NotApplicable | NotInstalled) else 1)
    except OSError as error:
        from conv_advisor.app.cli.table import write_error

        write_error(f"conv-advisor: {error}")
        sys.exit(1)


def _open_what_is_closed() -> None:
    """Give a standard stream that was closed (``>&-``) to nobody: the next file to be opened would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - it stays open
