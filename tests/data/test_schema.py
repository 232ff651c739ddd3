"""Migrations: they make the tables that the code has, lose nothing of older databases, and run once."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, column, insert, inspect, select, table
from sqlalchemy.exc import IntegrityError

from conv_advisor.data.database import addition, schema
from conv_advisor.data.database.addition import add
from conv_advisor.data.database.opening import open_engine, problem_row
from conv_advisor.data.database.rows import of_measurements, of_picks
from conv_advisor.data.database.schema import HEAD, MIGRATIONS, revision, upgrade
from conv_advisor.data.database.tables import JOBS, MEASUREMENTS, METADATA
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import StoreError
from conv_advisor.data.measurement import Pick
from conv_advisor.data.problem import ENDINGS, ConvProblem
from conv_advisor.data.shipped import Shipped
from conv_advisor.data.store import Store
from conv_advisor.data.transfer import measurements_table, picks_table
from tests.data.stored import LAYER, MEASURED
from tests.data.stored import MEASUREMENTS as SOME

BEFORE_MIGRATIONS = """
CREATE TABLE problems (key VARCHAR NOT NULL, n INTEGER NOT NULL, c INTEGER NOT NULL, h INTEGER NOT NULL,
    w INTEGER NOT NULL, k INTEGER NOT NULL, r INTEGER NOT NULL, s INTEGER NOT NULL, stride_h INTEGER NOT NULL,
    stride_w INTEGER NOT NULL, pad_h INTEGER NOT NULL, pad_w INTEGER NOT NULL, dilation_h INTEGER NOT NULL,
    dilation_w INTEGER NOT NULL, groups INTEGER NOT NULL, dtype VARCHAR NOT NULL, layout VARCHAR NOT NULL,
    PRIMARY KEY (key));
CREATE TABLE devices (fingerprint VARCHAR NOT NULL, id VARCHAR NOT NULL, json VARCHAR NOT NULL,
    PRIMARY KEY (fingerprint));
CREATE TABLE measurements (id INTEGER NOT NULL, problem_key VARCHAR NOT NULL, variant VARCHAR NOT NULL,
    device VARCHAR NOT NULL, device_id VARCHAR NOT NULL, outcome VARCHAR NOT NULL, detail VARCHAR NOT NULL,
    samples_ms BLOB NOT NULL, time_ms FLOAT, noise FLOAT, workspace_bytes BIGINT, max_error FLOAT,
    plan VARCHAR NOT NULL, l2 VARCHAR NOT NULL, floor_ms FLOAT, clock_start_mhz INTEGER, clock_end_mhz INTEGER,
    measured_at_us BIGINT NOT NULL, run_id VARCHAR NOT NULL, PRIMARY KEY (id),
    FOREIGN KEY(problem_key) REFERENCES problems (key), FOREIGN KEY(device) REFERENCES devices (fingerprint));
CREATE INDEX measurements_by_run ON measurements (run_id);
CREATE TABLE jobs (number INTEGER NOT NULL, id VARCHAR(32) NOT NULL, kind VARCHAR(32) NOT NULL,
    state VARCHAR(16) NOT NULL, progress FLOAT NOT NULL, message TEXT NOT NULL, request JSON NOT NULL, result JSON,
    error JSON, attempt INTEGER NOT NULL, created_at DATETIME NOT NULL, started_at DATETIME, finished_at DATETIME,
    PRIMARY KEY (number), UNIQUE (id));
INSERT INTO problems VALUES ('p', 1, 2, 3, 4, 5, 1, 1, 1, 1, 0, 0, 1, 1, 1, 'float32', 'nchw');
INSERT INTO devices VALUES ('f', 'cpu', '{"id": "cpu", "name": "Some CPU", "kind": "cpu"}');
INSERT INTO measurements VALUES (7, 'p', 'cpu.direct', 'f', 'cpu', 'not_supported', 'as it was', x'', NULL, NULL, NULL,
    NULL, '{}', 'warm', NULL, NULL, NULL, 1700000000000000, 'run');
INSERT INTO jobs VALUES (3, 'old', 'retrain', 'running', 0.5, 'half way', '{"device": "cpu"}', NULL, NULL, 1,
    '2026-01-01 00:00:00.000000', '2026-01-01 00:00:01.000000', NULL)
"""
"""What a database of the first versions held, which had neither picks nor versions yet."""


@pytest.fixture
def engine(database_url: str) -> Engine:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def old_ways(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A new database is made by all migrations, as one that was old then was."""
    monkeypatch.setattr(schema, "_is_new", lambda _connection: False)
    return monkeypatch


def described(engine: Engine) -> dict[str, object]:
    """All that can be asked of every table, whatever the order of its columns."""
    found = inspect(engine)
    ask = (found.get_columns, found.get_indexes, found.get_unique_constraints, found.get_foreign_keys)
    return {
        name: [sorted(({**each, "type": str(each.get("type"))} for each in of(name)), key=repr) for of in ask]
        + [found.get_pk_constraint(name), found.get_check_constraints(name)]
        for name in found.get_table_names()
    }


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), METADATA)


def test_the_newest_migration_is_the_one_that_this_version_needs() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


@pytest.mark.usefixtures("old_ways")
def test_migrations_make_the_tables_that_the_code_has(engine: Engine) -> None:
    assert revision(engine) is None
    upgrade(engine)
    assert revision(engine) == HEAD
    assert differences(engine) == []
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE jobs DROP COLUMN message")
    assert "message" in str(differences(engine)), "and a difference would be found"


def test_a_new_file_is_what_all_migrations_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = (open_engine(f"sqlite:///{tmp_path / name}") for name in ("new.db", "old.db"))
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_migrate", None)
        upgrade(new)
    monkeypatch.setattr(schema, "_is_new", lambda _connection: False)
    upgrade(old)
    assert (revision(new), differences(new)) == (HEAD, [])
    assert described(new) == described(old)
    for engine in (new, old):
        engine.dispose()


def test_upgrading_again_changes_nothing(engine: Engine) -> None:
    for _ in range(2):
        upgrade(engine)
    assert differences(engine) == []


def test_a_database_from_before_there_were_migrations_is_taken_over_without_loss(tmp_path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'store.db'}")
    with engine.begin() as connection:
        for statement in BEFORE_MIGRATIONS.split(";"):
            connection.exec_driver_sql(statement)
    assert revision(engine) is None
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert (revision(engine), differences(engine)) == (HEAD, [])
        (row,) = measurements_table(store, "cpu").to_pylist()
        assert (row["variant"], row["detail"], row["run_id"]) == ("cpu.direct", "as it was", "run")
        store.append(SOME)
    with engine.connect() as connection:
        job = connection.execute(select(JOBS)).one()
        assert connection.execute(select(MEASUREMENTS.c.id).order_by(MEASUREMENTS.c.id).limit(1)).scalar() == 7
    assert (job.number, job.id, job.state, job.request, job.revision, job.lease_ends_s) == (
        *(3, "old", "running", {"device": "cpu"}),
        *(0, None),
    )
    assert job.created_at.replace(tzinfo=UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    engine.dispose()


def test_keys_from_before_callers_had_their_own_are_kept(engine: Engine, old_ways: pytest.MonkeyPatch) -> None:
    with old_ways.context() as patch:
        patch.setattr(schema, "HEAD", "0002")
        upgrade(engine)
    job = {"kind": "sweep", "state": "queued", "message": "", "request": {}, "attempt": 0, "progress": 0.0}
    job |= {"created_at": datetime(2026, 1, 1, tzinfo=UTC), "idempotency_key": "monday"}
    before = table("jobs", *(column(name, JOBS.c[name].type) for name in ("id", *job)))
    with engine.begin() as connection:
        connection.execute(insert(before).values(id="old", **job))
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(select(JOBS.c.id, JOBS.c.caller)).all() == [("old", "")]
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(JOBS).values(id="new", **job))
    with engine.begin() as connection:
        connection.execute(insert(JOBS).values(id="new", caller="one", **job))


def _problem_row_before_endings(problem: ConvProblem) -> dict[str, Any]:
    """A problem as databases before 0005 have it."""
    return {name: value for name, value in problem_row(problem).items() if name not in ENDINGS}


def test_problems_from_before_there_were_epilogues_have_none(
    engine: Engine, database_url: str, old_ways: pytest.MonkeyPatch
) -> None:
    with old_ways.context() as patch:
        patch.setattr(schema, "HEAD", "0004")
        upgrade(engine)
        patch.setattr(addition, "problem_row", _problem_row_before_endings)
        add(engine, [of_measurements([MEASURED])])
    with Store(database_url) as store:
        (row,) = measurements_table(store, MEASURED.device.id).to_pylist()
        assert [row[name] for name in ENDINGS] == [None, None, None]
        store.append([replace(MEASURED, problem=replace(LAYER, epilogue=Epilogue(bias=True)))])
        assert measurements_table(store, MEASURED.device.id)["epilogue"].to_pylist() == [None, "bias"]


def test_copies_of_what_ships_leave_and_what_was_measured_here_stays(
    engine: Engine, database_url: str, old_ways: pytest.MonkeyPatch
) -> None:
    with old_ways.context() as patch:
        patch.setattr(schema, "HEAD", "0003")
        upgrade(engine)
    shipped = Shipped().devices()[-1]
    copied = {"device": shipped, "run_id": "held-out", "measured_at": datetime(2026, 11, 22, tzinfo=UTC)}
    copy = replace(MEASURED, **copied, detail="a copy")
    own = {
        "elsewhere": replace(copy, device=replace(shipped, versions={"driver": "1"})),
        "another run": replace(copy, run_id="monday"),
        "later": replace(copy, measured_at=datetime(2026, 11, 24, tzinfo=UTC)),
    }
    rows = [copy, *(replace(row, detail=name) for name, row in own.items())]
    pick = Pick(LAYER, shipped, "cudnn.heuristic_v7", "cudnn.gemm", run_id="held-out")
    picks = [pick, replace(pick, run_id="monday")]
    with old_ways.context() as patch:
        patch.setattr(addition, "problem_row", _problem_row_before_endings)
        add(engine, [of_measurements(rows), of_picks(picks)])
    with Store(database_url) as store:
        assert sorted(measurements_table(store, shipped.id)["detail"].to_pylist()) == sorted(own)
        assert picks_table(store, shipped.id)["run_id"].to_pylist() == ["monday"]


def test_a_file_that_a_migration_empties_shrinks(tmp_path: Path, old_ways: pytest.MonkeyPatch) -> None:
    url, path = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "store.db"
    engine = open_engine(url)
    with old_ways.context() as patch:
        patch.setattr(schema, "HEAD", "0003")
        upgrade(engine)
    shipped = Shipped().devices()[-1]
    copy = replace(MEASURED, device=shipped, run_id="held-out", measured_at=datetime(2026, 11, 22, tzinfo=UTC))
    with old_ways.context() as patch:
        patch.setattr(addition, "problem_row", _problem_row_before_endings)
        add(engine, [of_measurements([copy] * 2000)])
    engine.dispose()
    before = path.stat().st_size
    with Store(url) as store:
        assert measurements_table(store, shipped.id).num_rows == 0
    assert path.stat().st_size < before / 2


def _open(url: str) -> str | None:
    with Store(url) as store:
        return revision(store.engine)


def test_processes_that_start_at_once_migrate_once(database_url: str) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert [each.result() for each in [pool.submit(_open, database_url) for _ in range(8)]] == [HEAD] * 8


def test_a_database_of_a_newer_version_is_refused(engine: Engine, database_url: str) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="9999, newer than"):
        Store(database_url)


def test_a_migration_that_fails_leaves_the_database_as_it_was(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE active_models (something INTEGER)")
    with pytest.raises(Exception, match="active_models"):
        upgrade(engine)
    assert inspect(engine).get_table_names() == ["active_models"]
