"""Measurements and picks on their way between a store and Parquet files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Table, select
from sqlalchemy.exc import IntegrityError

from conv_advisor.data import parquet
from conv_advisor.data.database import columns
from conv_advisor.data.database.opening import ROWS_AT_ONCE, AnyRow, in_lists
from conv_advisor.data.database.tables import DEVICES, IMPORTS, MEASUREMENTS, PICKS, PROBLEMS
from conv_advisor.data.measurement import Device
from conv_advisor.data.steadiness import refuse_unsteady_rows
from conv_advisor.data.store import Store, border


def import_file(store: Store, path: Path) -> int:
    """Import one file of measurements, or of picks if its name ends in ``picks.parquet``, all rows or none.

    Times of an unsteady device get that outcome, as in `Store.append`.

    Returns
    -------
    int
        How many rows were added: none for a file that was imported before.

    Raises
    ------
    StoreError
        Also where a column is not as `parquet.SCHEMA` or `parquet.PICKS_SCHEMA` says.
    """
    is_picks = path.name.endswith("picks.parquet")
    target, schema = (PICKS, parquet.PICKS_SCHEMA) if is_picks else (MEASUREMENTS, parquet.SCHEMA)
    verb = f"import {path} into"
    with border(verb), parquet.border(verb):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if _is_imported(store, digest):
            return 0
        rows = parquet.read(path, schema)
        if target is MEASUREMENTS:
            ids = {Device.from_json(text).id for text in pc.unique(rows["device"]).to_pylist()}
            rows = refuse_unsteady_rows(rows, {device_id: store.usual_clock_mhz(device_id) for device_id in ids})
        try:
            store.add([columns.addition_of(target, rows)], digest)
        except IntegrityError:
            # Another process may have imported the same file in the meantime.
            if _is_imported(store, digest):
                return 0
            raise
        return int(rows.num_rows)


def export_files(store: Store, path: Path, *, device_id: str, run_id: str | None = None) -> dict[Path, int]:
    """Write a device's measurements to path and its picks beside them, each file whole or not at all.

    Returns
    -------
    dict of Path to int
        The rows in each file.

    Raises
    ------
    StoreError
    """
    written = {
        path: measurements_table(store, device_id, run_id=run_id),
        path.with_name(f"{path.stem}-picks.parquet"): picks_table(store, device_id, run_id=run_id),
    }
    for file, rows in written.items():
        verb = f"export {file} from"
        with border(verb), parquet.border(verb):
            parquet.write(rows, file)
    return {file: int(rows.num_rows) for file, rows in written.items()}


def measurements_table(store: Store, device_id: str, *, run_id: str | None = None) -> pa.Table:
    """The measurements of a device, or of one run on it, in `parquet.SCHEMA` and in order of arrival."""
    return _table(store, MEASUREMENTS, parquet.SCHEMA, device_id, run_id)


def picks_table(store: Store, device_id: str, *, run_id: str | None = None) -> pa.Table:
    """The picks of a device in `parquet.PICKS_SCHEMA`; of several by one source on a problem the last counts."""
    return _table(store, PICKS, parquet.PICKS_SCHEMA, device_id, run_id)


def _is_imported(store: Store, digest: str) -> bool:
    return bool(store.fetch(select(IMPORTS.c.rows).where(IMPORTS.c.sha256 == digest)))


def _table(store: Store, source: Table, schema: pa.Schema, device_id: str, run_id: str | None) -> pa.Table:
    query = select(source).where(source.c.device_id == device_id).order_by(source.c.id)
    if run_id is not None:
        query = query.where(source.c.run_id == run_id)
    devices = {row[0]: row[1] for row in store.fetch(select(DEVICES.c.fingerprint, DEVICES.c.json))}
    problems: dict[str, AnyRow] = {}
    batches = []
    with border("read"), parquet.border("read"), store.engine.connect() as connection:
        result = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
        for part in result.partitions():
            values = dict(zip(result.keys(), zip(*part, strict=True), strict=True))
            new = [key for key in dict.fromkeys(values["problem_key"]) if key not in problems]
            for keys in in_lists(new):
                problems |= {row.key: row for row in store.fetch(select(PROBLEMS).where(PROBLEMS.c.key.in_(keys)))}
            batches.append(columns.to_batch(values, schema, problems, devices))
    return pa.Table.from_batches(batches, schema)
