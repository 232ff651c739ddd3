"""The command that makes an API token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from conv_advisor.app.cli.output import split_enum
from conv_advisor.data.errors import InvalidInput


def token(
    name: Annotated[str, typer.Argument(help="Name of its owner; the only thing that logs and metrics show of it.")],
    scopes: Annotated[
        str,
        typer.Option(help="What it may do: read, measure, administer, separated by commas; none implies another."),
    ] = "read",
    file: Annotated[
        Path | None, typer.Option(help="Add its hash to this file; without one, the line to add is printed.")
    ] = None,
) -> None:
    """Make an API token. It is printed once, on standard output; only its hash is kept."""
    from conv_advisor.app.guard.tokens import entry_of, make_token
    from conv_advisor.app.wire.caller import Scope

    new_token = make_token()
    line = entry_of(name, split_enum("scopes", scopes, Scope), new_token)
    if file is None:
        sys.stderr.write(f"{line}\n")
    else:
        _add(file, name, line)
        sys.stderr.write(f"its hash is in {file}; the token, which nobody can show again:\n")
    sys.stdout.write(f"{new_token}\n")


def _add(file: Path, name: str, line: str) -> None:
    """Add a line to a file of tokens; a new file can be read by its owner alone.

    Raises
    ------
    InvalidInput
    """
    from conv_advisor.app.guard.tokens import Keyring

    text = ""
    if file.exists():
        Keyring(path=file)  # refuses a file that cannot be read
        text = file.read_text()
        if any(other.split()[:1] == [name] for other in text.splitlines()):
            raise InvalidInput("name", name, f"one that no token in {file} has")
    else:
        file.touch(mode=0o600)
    with file.open("a") as stream:
        stream.write(f"\n{line}\n" if text and not text.endswith("\n") else f"{line}\n")
