"""Commands that carry measurements in and out of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, print_json, print_table, watched
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.extras import require

data = typer.Typer(help="Import and export measurements as Parquet.", no_args_is_help=True)


@data.command("import")
def import_(
    paths: Annotated[list[Path], typer.Argument(help="Files of measurements, or of picks: *picks.parquet.")],
    as_json: AsJson = False,
) -> None:
    """Add the rows of Parquet files.

    Importing a file twice adds nothing.
    """
    require("pyarrow")
    from conv_advisor.data.store import Store
    from conv_advisor.data.transfer import import_file

    for path in paths:
        if not path.is_file():
            raise InvalidInput("paths", str(path), "a file that exists")
    with Store(load_settings().store_url) as store:
        _show({path: import_file(store, path) for path in watched(paths, "files")}, "imported", as_json)


@data.command("export")
def export(
    path: Annotated[
        Path, typer.Argument(help="File to write; heuristics' picks go to <name>-picks.parquet next to it.")
    ],
    device: Annotated[str, typer.Option(help="Device whose rows to write, e.g. nvidia-h200.")],
    run_id: Annotated[str | None, typer.Option(help="Only the rows of this run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a device's measurements and picks as Parquet."""
    require("pyarrow")
    from conv_advisor.data.store import Store
    from conv_advisor.data.transfer import export_files

    if path.suffix != ".parquet":
        raise InvalidInput("path", str(path), "a name that ends in .parquet")
    with Store(load_settings().store_url) as store:
        if not store.devices():
            raise InvalidInput("device", device, "one in the store, which is empty: sweep and data import add to it")
        device_id = store.device(device).id
        _show(export_files(store, path, device_id=device_id, run_id=run_id), "written", as_json)


@data.command("pack")
def pack(
    paths: Annotated[list[Path], typer.Argument(help="What sweeps wrote: measurements, and picks: *picks.parquet.")],
    device: Annotated[str, typer.Option(help="The device that they were measured on, e.g. nvidia-h200.")],
    output: Annotated[
        Path | None, typer.Option(help="Table to write.  [default: where the project ships the device's]")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace what is known of these variants on these problems."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add Parquet files to the compact table that ships.

    Each device has one table. Packing a file twice adds nothing.
    """
    require("pyarrow")
    from conv_advisor.data import packing
    from conv_advisor.data.shipped import SUFFIX, TIMINGS, ShippedTable

    table = output or TIMINGS / f"{device}{SUFFIX}"
    contents = packing.contents_of(ShippedTable(table)) if table.exists() else packing.empty()
    before = contents.attempts.num_rows
    for path in watched(paths, "files"):
        contents = packing.added(contents, path, device, replaces=replace)
    size_bytes = packing.write(contents, table, device)
    facts = {"path": str(table), "attempts": contents.attempts.num_rows, "bytes": size_bytes}
    facts |= {"added": contents.attempts.num_rows - before, "picks": contents.picks.num_rows}
    if as_json:
        print_json(facts)
    else:
        print_table(("", ""), [(name, str(value)) for name, value in facts.items()])


def _show(rows: dict[Path, int], verb: str, as_json: bool) -> None:
    if as_json:
        print_json({"files": [{"path": str(path), "rows": count} for path, count in rows.items()]})
    else:
        print_table(("file", f"rows {verb}"), ((str(path), count) for path, count in rows.items()))
