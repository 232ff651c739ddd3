"""The command line, ``conv-advisor``: each command imports what it needs when it runs, so that all start fast."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer

from conv_advisor.app.cli import access, advise, ask, cluster, database, jobs, learn, measure, serve, transfer, upgrade
from conv_advisor.app.cli.settings import settings
from conv_advisor.data.errors import ConvAdvisorError, InvalidInput, NotApplicable, NotInstalled, Unknown


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from conv_advisor import __version__

        sys.stdout.write(f"conv-advisor {__version__}\n")
        raise typer.Exit


cli = typer.Typer(
    name="conv-advisor",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich's takes half as long again as the rest of it
)
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(advise.advise, measure.convolve, measure.sweep, learn.train, learn.evaluate, upgrade.compare),
    *(serve.serve, settings, access.token, ask.variants, ask.devices, ask.networks),
    *(cluster.scheduler, cluster.worker),
)


@cli.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version, and nothing else.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Which convolution algorithm is fastest for this layer on this GPU: measured, learned, served."""


for _command in _COMMANDS:
    cli.command()(_command)
cli.add_typer(transfer.data, name="data")
cli.add_typer(jobs.jobs, name="jobs")
cli.add_typer(database.database, name="database")


_OBJECTS_AT_ONCE: Final = 50_000
"""New objects before Python looks for circles among them: by default it does every 700, a tenth of a command's time,
while what is imported is there to stay."""


def main() -> None:
    """Run the command line; a known error is one line on standard error, and exit status 2 for what cannot be asked."""
    gc.set_threshold(_OBJECTS_AT_ONCE)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show × or µ shows the rest
    try:
        cli()
    except ConvAdvisorError as error:
        sys.stderr.write(f"conv-advisor: {error}\n")
        sys.exit(2 if isinstance(error, InvalidInput | Unknown | NotApplicable | NotInstalled) else 1)
