"""Additions to the timing store: rows, the problems and devices that they name, and the versions that they change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Engine, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from conv_advisor.data.database.opening import bulk_insert, device_row, in_lists, problem_row
from conv_advisor.data.database.tables import DEVICES, IMPORTS, PROBLEMS, VERSIONS
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem

Guard = Callable[[Connection], None]
"""Called first in the transaction of every addition; an error that it raises undoes the addition."""

Columns = Mapping[str, Sequence[Any]]
"""Values of rows, by the column of the database's table."""

_REGISTER_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Addition:
    """Rows to be added to one table.

    Parameters
    ----------
    target : sqlalchemy.Table
        `MEASUREMENTS` or `PICKS`.
    n_rows : int
    problems : collection of ConvProblem
        All problems that the rows name.
    devices : collection of Device
        All devices that the rows name.
    parts : iterable of Columns
        The rows in chunks, made while they are written.
    """

    target: Table
    n_rows: int
    problems: Collection[ConvProblem]
    devices: Collection[Device]
    parts: Iterable[Columns]


def add(
    engine: Engine, additions: Sequence[Addition], *, guard: Guard | None = None, digest: str | None = None
) -> bool:
    """Add rows to the database's tables, all or none.

    Parameters
    ----------
    engine : sqlalchemy.Engine
    additions : sequence of Addition
    guard : Guard
    digest : str
        SHA-256 of the file that the rows came from; it is recorded as imported.

    Returns
    -------
    bool
        Whether there were any.

    Raises
    ------
    sqlalchemy.exc.IntegrityError
        Also where the file was imported before.
    """
    for addition in additions:
        _register(engine, PROBLEMS.c.key, {problem.key: problem_row(problem) for problem in addition.problems})
        _register(
            engine, DEVICES.c.fingerprint, {device.fingerprint: device_row(device) for device in addition.devices}
        )
    changed = sorted({device.id for addition in additions for device in addition.devices})
    _register(
        engine, VERSIONS.c.device_id, {device_id: {"device_id": device_id, "version": 0} for device_id in changed}
    )
    with engine.begin() as connection:
        if guard:
            guard(connection)
        if digest is not None:
            connection.execute(
                insert(IMPORTS), {"sha256": digest, "rows": sum(addition.n_rows for addition in additions)}
            )
        for addition in additions:
            for columns in addition.parts:
                connection.exec_driver_sql(*bulk_insert(addition.target, columns, connection.dialect))
        # Last, since the row is locked until the end: so versions grow in the order in which additions become visible.
        for device_id in changed:
            version = VERSIONS.c.version
            is_device = VERSIONS.c.device_id == device_id
            connection.execute(update(VERSIONS).where(is_device).values(version=version + 1))
    return bool(changed)


def _register(engine: Engine, key: Column[str], rows: Mapping[str, dict[str, Any]]) -> None:
    """Add the rows whose key is not there yet, in a transaction of their own.

    Two processes may add the same row at once. The loser looks again which rows are missing: that works on every
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
