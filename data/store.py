"""The timing store: append-only measurements and picks in a SQL database."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Final, Self

from sqlalchemy import Select, func, make_url, select
from sqlalchemy.exc import SQLAlchemyError

from conv_advisor.data.database import rows
from conv_advisor.data.database.addition import Addition, Guard, add
from conv_advisor.data.database.connections import Connections, close
from conv_advisor.data.database.opening import AnyRow, in_lists, open_engine
from conv_advisor.data.database.presence import Presence, check_writable
from conv_advisor.data.database.schema import upgrade
from conv_advisor.data.database.tables import DEVICES, MEASUREMENTS, PICKS, PROBLEMS, VERSIONS
from conv_advisor.data.database.waiting import waiting_at_most
from conv_advisor.data.errors import InvalidProblem, StoreError
from conv_advisor.data.gpus import named
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick
from conv_advisor.data.shipped import Shipped
from conv_advisor.data.steadiness import LEAST_ROWS, refuse_unsteady
from conv_advisor.data.summary import Attempt

_OF_AN_ATTEMPT: Final = [
    MEASUREMENTS.c[name]
    for name in (
        *("samples_ms", "variant", "outcome", "time_ms", "noise"),
        *("workspace_bytes", "max_error", "plan", "detail", "measured_at_us"),
    )
]


class Store:
    """Measurements and picks, kept for good.

    Parameters
    ----------
    url : str
        SQLAlchemy URL, e.g. ``sqlite:////srv/conv-advisor.db`` or ``postgresql://host/database``. A SQLite file and its
        folder are created; its journal is a write-ahead log, so that readers never wait for a writer. An older schema
        is brought up to date.
    shipped : Shipped, optional
        Tells at which clock a device usually runs, where too few times are known here.

    Attributes
    ----------
    engine : sqlalchemy.Engine
        For tables of `data.database.tables` that do not belong to the store.
    presence : Presence
        Watches over the store's files.

    Raises
    ------
    StoreError
        From every method, where the database cannot be opened, read or written.
    """

    def __init__(self, url: str, *, shipped: Shipped | None = None) -> None:
        with border("open"):
            place = make_url(url)
        with border("open", f" in {place.database}" if place.get_backend_name() == "sqlite" else ""):
            self.engine = open_engine(url)
            try:
                upgrade(self.engine)
            except BaseException:
                close(self.engine)
                raise
        self._connections = Connections(self.engine)
        self.presence = Presence(self.engine.url.database if self.is_local else None)
        if self.is_local:
            self.presence.refuse_others(self.engine)
        self._writes = _Counter()
        self._usual_mhz: dict[str, float] = {}
        self._shipped = shipped
        self._guard: Guard | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up every connection."""
        close(self.engine)

    @property
    def is_local(self) -> bool:
        """Whether the database is a file of this host, which answers at once; a server may keep its clients waiting."""
        return self.engine.dialect.name == "sqlite"

    def check_writable(self) -> None:
        """Check that writes are kept.

        Raises
        ------
        StoreError
            The reason: a file that is gone, replaced or read-only, a full disk, a lock of another process.
        """
        check_writable(self.engine, self.presence)

    @property
    def writes(self) -> int:
        """How often this object, or a guarded copy of it, has added measurements."""
        return self._writes.count

    def guarded(self, guard: Guard) -> Store:
        """The same store, whose additions count only if the guard lets them pass in the same transaction."""
        guarded = copy(self)
        guarded._guard = guard
        return guarded

    def waiting_at_most(self, seconds: float) -> Store:
        """The same store, which waits no longer than this for a lock of another process, and then raises."""
        hurried = copy(self)
        hurried.engine = waiting_at_most(self.engine, seconds)
        return hurried

    def append(self, measurements: Iterable[Measurement], picks: Iterable[Pick] = ()) -> int:
        """Add measurements, and picks beside them, all or none; times of an unsteady device get that outcome.

        Returns
        -------
        int
            Number of measurements added.

        Raises
        ------
        StoreError
            Also where they would be lost when this process ends.
        """
        measured = list(measurements)
        gpus = {measurement.device.id for measurement in measured if measurement.device.kind != "cpu"}
        usual_mhz = {device_id: self.usual_clock_mhz(device_id) for device_id in gpus}
        steady = (
            steady_row
            for measurement in measured
            for steady_row in refuse_unsteady([measurement], usual_mhz.get(measurement.device.id))
        )
        with border("write"):
            self.add([rows.of_measurements(steady), rows.of_picks(picks)])
        self.presence.check()  # else they are in a file that was deleted, and are lost when this process ends
        return len(measured)

    def attempted(self, run_id: str) -> set[tuple[str, str]]:
        """The problem keys and variants that a run has attempted, which a resumed run leaves out."""
        query = select(MEASUREMENTS.c.problem_key, MEASUREMENTS.c.variant).where(MEASUREMENTS.c.run_id == run_id)
        return {(row[0], row[1]) for row in self.fetch(query)}

    def began_us(self, run_id: str) -> int | None:
        """When the first attempt of a run was made, microseconds since 1970, UTC; None where there is none."""
        first = self.fetch(select(func.min(MEASUREMENTS.c.measured_at_us)).where(MEASUREMENTS.c.run_id == run_id))[0][0]
        return None if first is None else int(first)

    def outcomes(self, run_id: str) -> dict[str, int]:
        """How many attempts of a run had each outcome."""
        outcome = MEASUREMENTS.c.outcome
        query = select(outcome, func.count()).where(MEASUREMENTS.c.run_id == run_id).group_by(outcome)
        return {row[0]: int(row[1]) for row in self.fetch(query.order_by(outcome))}

    def fastest(self, run_id: str) -> dict[str, tuple[str, float]]:
        """The fastest variant of each problem of a run, and its time in ms; without problems that none computed."""
        query = (
            select(MEASUREMENTS.c.problem_key, MEASUREMENTS.c.variant, MEASUREMENTS.c.time_ms)
            .where(MEASUREMENTS.c.run_id == run_id, MEASUREMENTS.c.outcome == Outcome.MEASURED)
            .order_by(MEASUREMENTS.c.time_ms.desc(), MEASUREMENTS.c.id.desc())
        )
        return {row[0]: (row[1], row[2]) for row in self.fetch(query)}

    def attempts(self, keys: Iterable[str], device_id: str) -> dict[str, list[Attempt]]:
        """The warm attempts at the problems of these keys, in order of arrival; without problems that have none."""
        attempts: dict[str, list[Attempt]] = {}
        for chunk in in_lists(list(dict.fromkeys(keys))):
            query = (
                select(MEASUREMENTS.c.problem_key, *_OF_AN_ATTEMPT)
                .where(
                    MEASUREMENTS.c.device_id == device_id,
                    MEASUREMENTS.c.problem_key.in_(chunk),
                    MEASUREMENTS.c.l2 == str(L2State.WARM),
                )
                .order_by(MEASUREMENTS.c.id)
            )
            for key, samples_ms, variant, outcome, time_ms, noise, *others in self.fetch(query):
                values = (variant, outcome, time_ms, noise, len(samples_ms) // 4, *others)
                attempts.setdefault(key, []).append(Attempt._make(values))
        return attempts

    def picked(self, key: str, device_id: str) -> dict[str, str]:
        """What other rules chose for the problem of this key: the variant by the rule's name; the last counts."""
        query = (
            select(PICKS.c.source, PICKS.c.variant)
            .where(PICKS.c.device_id == device_id, PICKS.c.problem_key == key)
            .order_by(PICKS.c.id)
        )
        return {row[0]: row[1] for row in self.fetch(query)}

    def version(self, device_id: str) -> int:
        """A number that grows with every addition of rows of this device, whichever process adds them."""
        rows = self.fetch(select(VERSIONS.c.version).where(VERSIONS.c.device_id == device_id))
        return int(rows[0][0]) if rows else 0

    def usual_clock_mhz(self, device_id: str) -> float | None:
        """The SM clock that most times of a device were taken at; None where too few times are known.

        The database is asked until it has an answer, which is then kept: a sweep does not change what is usual.
        """
        if device_id not in self._usual_mhz:
            clock, count = MEASUREMENTS.c.clock_end_mhz, func.count()
            query = (
                select(clock, count)
                .where(MEASUREMENTS.c.device_id == device_id, clock.is_not(None))
                .where(MEASUREMENTS.c.outcome == str(Outcome.MEASURED))
                .group_by(clock)
            )
            counts = {int(row[0]): int(row[1]) for row in self.fetch(query)}
            if sum(counts.values()) < LEAST_ROWS:
                table = self._shipped.table(device_id) if self._shipped else None
                return table.usual_clock_mhz if table else None
            self._usual_mhz[device_id] = float(max(counts, key=counts.__getitem__))
        return self._usual_mhz[device_id]

    def n_attempts(self, device_id: str) -> int:
        """Number of attempts on a device in this store."""
        query = select(func.count()).where(MEASUREMENTS.c.device_id == device_id)
        return int(self.fetch(query)[0][0])

    def problem_keys(self) -> set[str]:
        """The keys of all problems that were ever measured, on any device."""
        return {row[0] for row in self.fetch(select(PROBLEMS.c.key))}

    def measured_keys(self, device_id: str) -> list[str]:
        """The keys of the problems on which some variant was timed in full on a device, warm, in rising order."""
        key = MEASUREMENTS.c.problem_key
        query = select(key).where(
            MEASUREMENTS.c.device_id == device_id,
            MEASUREMENTS.c.outcome == str(Outcome.MEASURED),
            MEASUREMENTS.c.l2 == str(L2State.WARM),
        )
        return [row[0] for row in self.fetch(query.distinct().order_by(key))]

    def devices(self) -> list[Device]:
        """Every device that was measured, by id; where an id has several fingerprints, the one measured last."""
        last = (
            select(func.max(MEASUREMENTS.c.measured_at_us))
            .where(MEASUREMENTS.c.device == DEVICES.c.fingerprint)
            .scalar_subquery()
        )
        query = select(DEVICES.c.fingerprint, DEVICES.c.json).order_by(DEVICES.c.id, func.coalesce(last, 0))
        fingerprinted = (_device(fingerprint, text) for fingerprint, text in self.fetch(query))
        return list({device.id: device for device in fingerprinted}.values())

    def device(self, name: str) -> Device:
        """The device with this name, whichever of its names it is, as it was measured last.

        Raises
        ------
        UnknownDevice
        """
        return named(name, {device.id: device for device in self.devices()})

    def add(self, additions: Sequence[Addition], digest: str | None = None) -> None:
        """Add rows, all or none; with a digest, as the contents of the file with that digest.

        Raises
        ------
        sqlalchemy.exc.IntegrityError
            Also where that file was imported before.
        """
        if add(self.engine, additions, guard=self._guard, digest=digest):
            self._writes.increase()

    def fetch(self, query: Select[*tuple[Any, ...]]) -> Sequence[AnyRow]:
        """The rows that a query selects."""
        with border("read"), self.engine.connect() as connection:
            return connection.execute(query).fetchall()


class _Counter:
    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def increase(self) -> None:
        with self._lock:
            self.count += 1


@contextmanager
def border(verb: str, place: str = "") -> Iterator[None]:
    """Turns errors of the database, of files and of tables into this project's."""
    try:
        yield
    except (SQLAlchemyError, OSError, ImportError, InvalidProblem, OverflowError) as error:
        reason = getattr(error, "orig", None) or error
        raise StoreError(f"cannot {verb} the store{place}: {reason}") from error


def _device(fingerprint: str, text: str) -> Device:
    try:
        return Device.from_json(text)
    except (ValueError, TypeError) as error:
        fault = f"the row with the fingerprint {fingerprint!r} in its table devices is corrupt ({error})"
        raise StoreError(f"cannot read the store: {fault}") from None
