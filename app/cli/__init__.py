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
    """Click's commands by name, each imported on demand: importing all of them takes as long as an answer."""

    def __getitem__(self, name: str) -> Any:
        return _command(name, _MODULES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@cache
def _command(name: str, module: str) -> Any:
    entry = getattr(import_module(f"{__name__}.{module}"), name)
    wrapper = typer.Typer(rich_markup_mode=_MARKUP)
    if isinstance(entry, typer.Typer):
        for info in entry.registered_commands:
            info.cls = Command
        wrapper.add_typer(entry, name=name)
    else:
        wrapper.command(name, cls=Command)(entry)
    return typer.main.get_group(wrapper).commands[name]


class _Root(Group):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"commands": _Commands()})


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from conv_advisor import __version__

        sys.stdout.write(f"conv-advisor {__version__}\n")
        raise typer.Exit


_MARKUP: Final = None
"""Plain help: with Rich it would take half as long again."""
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
"""New objects between two searches for reference cycles. Python's default of 700 costs a tenth of a command's time,
though most objects come from imports, which stay."""


def main() -> None:
    """Run the command line; a known error prints one line on standard error, with exit status 2 for invalid requests.

    So does a refusal of the operating system, with status 1: a full disk, no permission to write, a missing folder.
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
    """Point a closed standard stream (``>&-``) at the null device: else the next opened file would take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - it stays open
