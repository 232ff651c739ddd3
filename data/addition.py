"""Additions to the timing store: rows, the problems and devices that they name, and the versions that they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Column, Connection, Engine, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from conv_advisor.data import parquet
from conv_advisor.data.database import ROWS_AT_ONCE, bulk_insert, device_row, in_lists, problem_row, to_columns
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.tables import DEVICES, IMPORTS, MEASUREMENTS, PROBLEMS, VERSIONS

Guard = Callable[[Connection], None]
"""Called first in the transaction of every addition; what it raises undoes the addition."""

_REGISTER_ATTEMPTS: Final = 5


def add(
    engine: Engine, tables: Mapping[Table, pa.Table], *, guard: Guard | None = None, digest: str | None = None
) -> bool:
    """Add Arrow tables of `data.parquet`'s schemas to the database's, all or none.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    tables : dict of sqlalchemy.Table to pyarrow.Table
        `MEASUREMENTS` and `PICKS`, or one of them.
    guard : Guard
    digest : str
        SHA-256 of the file that the rows came from, which is noted as imported.

    Returns
    -------
    bool
        Whether there were measurements among them.

    Raises
    ------
    sqlalchemy.exc.IntegrityError
        Also where the file is imported already.
    """
    additions = [_Addition.of(target, table) for target, table in tables.items() if table.num_rows or digest]
    for each in additions:
        _register(engine, PROBLEMS.c.key, {problem.key: problem_row(problem) for problem in each.problems})
        _register(engine, DEVICES.c.fingerprint, {d.fingerprint: device_row(d) for d in each.devices.values()})
    changed = sorted({device.id for each in additions if each.is_measured for device in each.devices.values()})
    _register(engine, VERSIONS.c.device_id, {each: {"device_id": each, "version": 0} for each in changed})
    with engine.begin() as connection:
        if guard:
            guard(connection)
        if digest is not None:
            rows = sum(table.num_rows for table in tables.values())
            connection.execute(insert(IMPORTS), {"sha256": digest, "rows": rows})
        for each in additions:
            each.write(connection)
        # Last, since the row is locked until the end: so versions grow in the order in which additions are seen.
        for device_id in changed:
            version = VERSIONS.c.version
            wanted = VERSIONS.c.device_id == device_id
            connection.execute(update(VERSIONS).where(wanted).values(version=version + 1))
    return bool(changed)


def _register(engine: Engine, key: Column[str], rows: Mapping[str, dict[str, Any]]) -> None:
    """Add the rows whose key is not there yet, in a transaction of their own.

    Two processes may add the same row at once. The loser asks again which are missing: that works on every
    database, and needs no lock.
    """
    for attempt in range(_REGISTER_ATTEMPTS):
        with engine.connect() as connection:
            known = {
                row[0] for keys in in_lists(list(rows)) for row in connection.execute(select(key).where(key.in_(keys)))
            }
        missing = [row for name, row in rows.items() if name not in known]
        if not missing:
            return
        try:
            with engine.begin() as connection:
                connection.execute(insert(key.table), missing)
                return
        except IntegrityError:
            if attempt == _REGISTER_ATTEMPTS - 1:
                raise


@dataclass(frozen=True, slots=True)
class _Addition:
    """Rows to be added to one table, and the problems (a code a row) and devices that they name."""

    target: Table
    table: pa.Table
    problems: Sequence[ConvProblem]
    codes: np.ndarray
    devices: Mapping[str, Device]

    @classmethod
    def of(cls, target: Table, table: pa.Table) -> _Addition:
        devices = {text: Device.from_json(text) for text in pc.unique(table["device"]).to_pylist()}
        return cls(target, table, *parquet.distinct_problems(table), devices)

    @property
    def is_measured(self) -> bool:
        return self.target is MEASUREMENTS

    def write(self, connection: Connection) -> None:
        for start in range(0, self.table.num_rows, ROWS_AT_ONCE):
            keys = [self.problems[code].key for code in self.codes[start : start + ROWS_AT_ONCE]]
            columns = to_columns(self.table.slice(start, ROWS_AT_ONCE), keys, self.devices)
            connection.exec_driver_sql(*bulk_insert(self.target, columns, connection.dialect))
