"""The store: nothing lost, nothing twice, summaries by hand, and errors of the database as errors of this project."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError, StatementError

from conv_advisor.data import networks, parquet
from conv_advisor.data.database.opening import bulk_insert
from conv_advisor.data.database.tables import DEVICES, METADATA, PICKS, PROBLEMS
from conv_advisor.data.database.tables import MEASUREMENTS as ROWS
from conv_advisor.data.errors import StoreError, UnknownDevice
from conv_advisor.data.measurement import L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import SUFFIX, TIMINGS, Shipped, ShippedTable, problem_of
from conv_advisor.data.store import Store
from conv_advisor.data.summary import Summary
from conv_advisor.data.transfer import export_files, import_file, measurements_table, picks_table
from tests.data import arrow
from tests.data.stored import (
    BARE,
    CPU,
    ENDED,
    ENDING_MEASUREMENTS,
    ENDING_PICKS,
    H200,
    LAYER,
    MEASURED,
    MEASUREMENTS,
    NOON,
    STRIDED,
    UNEVEN,
)
from tests.data.stored import PICKS as SOME_PICKS

KNOWN = ShippedTable(TIMINGS / f"nvidia-h200{SUFFIX}")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    with Store(database_url) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'new' / 'folder' / 'store.db'}") as opened:
        yield opened


def _read(store: Store, device_id: str = "nvidia-h200") -> list[Measurement]:
    return arrow.table_to_measurements(measurements_table(store, device_id))


def _summaries(
    store: Store, problems: Sequence[ConvProblem], device_id: str = "nvidia-h200"
) -> dict[str, dict[str, Summary]]:
    return Records(store, Shipped(Path("nowhere"))).summaries(problems, device_id)


def _count(store: Store, table: str = "measurements") -> int:
    with store.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(METADATA.tables[table])).scalar_one()


def test_measurements_survive_store_file_and_another_store(store: Store, tmp_path: Path) -> None:
    assert store.append(MEASUREMENTS) == len(MEASUREMENTS)
    assert _read(store) == MEASUREMENTS
    path, beside = tmp_path / "m.parquet", tmp_path / "m-picks.parquet"
    assert export_files(store, path, device_id="nvidia-h200") == {path: len(MEASUREMENTS), beside: 0}
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        assert import_file(other, tmp_path / "m.parquet") == len(MEASUREMENTS)
        assert _read(other) == MEASUREMENTS
        assert _summaries(other, [LAYER, STRIDED]) == _summaries(store, [LAYER, STRIDED])


def test_epilogues_and_uneven_padding_survive_store_file_and_another_store(store: Store, tmp_path: Path) -> None:
    store.append(ENDING_MEASUREMENTS, ENDING_PICKS)
    assert _read(store) == ENDING_MEASUREMENTS
    written = export_files(store, tmp_path / "m.parquet", device_id="nvidia-h200")
    assert list(written.values()) == [len(ENDING_MEASUREMENTS), len(ENDING_PICKS)]
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        import_file(other, tmp_path / "m.parquet")
        import_file(other, tmp_path / "m-picks.parquet")
        assert _read(other) == ENDING_MEASUREMENTS
        assert arrow.table_to_picks(picks_table(other, "nvidia-h200")) == ENDING_PICKS
        known = _summaries(other, [ENDED, LAYER, UNEVEN])
        assert known.keys() == {ENDED.key, LAYER.key, UNEVEN.key}


def test_picks_survive_store_file_and_another_store(store: Store, tmp_path: Path) -> None:
    store.append([], SOME_PICKS)
    assert export_files(store, tmp_path / "m.parquet", device_id="nvidia-h200")[tmp_path / "m-picks.parquet"] == 2
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        assert [import_file(other, tmp_path / "m-picks.parquet") for _ in range(2)] == [2, 0]
        assert arrow.table_to_picks(picks_table(other, "nvidia-h200")) == SOME_PICKS
        assert arrow.table_to_picks(picks_table(other, "nvidia-h200", run_id="sweep-1")) == SOME_PICKS[:1]
        assert picks_table(other, "cpu").num_rows == 0


def test_what_a_rule_chose_last_for_a_problem_counts_before_what_ships(store: Store) -> None:
    problem, device = problem_of(KNOWN.keys[int(KNOWN.picks[0, 0])]), KNOWN.device
    shipped = Records().picked(problem, device.id)
    assert len(shipped) > 1
    source = next(iter(shipped))
    store.append([], [Pick(problem, device, source, variant) for variant in ("cudnn.fft", "cudnn.gemm")])
    assert store.picked(problem.key, device.id) == {source: "cudnn.gemm"}
    assert store.picked(problem.key, "cpu") == {}
    records = Records(store)
    assert records.picked(problem, device.id) == shipped | {source: "cudnn.gemm"}
    assert records.picked(problem, device.id, stored=set()) == shipped


def test_measurements_survive_reopening(database_url: str) -> None:
    with Store(database_url) as store:
        store.append(MEASUREMENTS)
    with Store(database_url) as store:
        assert _read(store) == MEASUREMENTS


def test_tables_are_by_device_and_by_run(store: Store) -> None:
    on_cpu = replace(MEASURED, device=CPU, variant="cpu.gemm", run_id="sweep-2")
    again = replace(MEASURED, run_id="sweep-3")
    store.append([MEASURED, on_cpu, again])
    assert _read(store, "cpu") == [on_cpu]
    assert _read(store) == [MEASURED, again]
    assert arrow.table_to_measurements(measurements_table(store, "nvidia-h200", run_id="sweep-3")) == [again]
    assert measurements_table(store, "nowhere").schema == parquet.SCHEMA
    assert measurements_table(store, "nowhere").num_rows == 0


def test_more_rows_than_one_batch_keep_their_order(store: Store) -> None:
    problems = networks.problems("seeds", dtypes=DType, layouts=Layout)
    rows = [
        replace(MEASURED, problem=problem, variant=f"v{i}", samples_ms=(float(n + 1),) * (i + 1))
        for n, problem in enumerate(problems)
        for i in range(4)
    ]
    store.append(rows)
    assert _read(store) == rows
    found = _summaries(store, problems)
    assert list(map(len, found.values())) == [4] * len(problems)
    assert found[problems[-1].key]["v3"].time_ms == float(len(problems))


def test_samples_are_kept_as_little_endian_float32_for_any_reader_of_the_database(store: Store) -> None:
    store.append([MEASURED])
    with store.engine.connect() as connection:
        row = connection.execute(select(ROWS)).one()
    assert row.samples_ms == bytes.fromhex("0000803e 0000003f 0000003e")
    assert (row.time_ms, row.noise, row.device_id) == (0.25, MEASURED.noise, "nvidia-h200")
    assert row.measured_at_us == 1_795_262_400_123_456


def test_appending_is_all_or_nothing(store: Store) -> None:
    store.append([MEASURED])
    with pytest.raises(StoreError, match=r"column samples_ms has a sample that is no time"):
        store.append([MEASURED, replace(MEASURED, samples_ms=(float("nan"),))])
    with pytest.raises(StoreError, match="write"):
        store.append([MEASURED, replace(MEASURED, workspace_bytes=2**70)])
    assert _count(store) == 1


def test_appending_nothing_is_fine(store: Store) -> None:
    assert store.append([]) == 0
    assert _summaries(store, []) == {}


def test_attempted_is_what_a_run_need_not_do_again(store: Store) -> None:
    store.append([MEASURED, BARE, replace(MEASURED, run_id="sweep-2", variant="other")])
    assert store.attempted("sweep-1") == {(LAYER.key, "cudnn.graph.eng62"), (STRIDED.key, "cuda.cuconv")}
    assert store.attempted("sweep-2") == {(LAYER.key, "other")}
    assert store.attempted("never") == set()


def test_a_summary_of_one_attempt_is_that_attempt(store: Store) -> None:
    store.append([MEASURED, BARE])
    found = _summaries(store, [LAYER, STRIDED, LAYER])
    assert {key: list(variants) for key, variants in found.items()} == {
        LAYER.key: ["cudnn.graph.eng62"],
        STRIDED.key: ["cuda.cuconv"],
    }
    summary = found[LAYER.key]["cudnn.graph.eng62"]
    assert (summary.variant, summary.outcome) == ("cudnn.graph.eng62", Outcome.MEASURED)
    assert (summary.time_ms, summary.noise, summary.n_samples) == (MEASURED.time_ms, MEASURED.noise, 3)
    assert (summary.workspace_bytes, summary.max_error, summary.plan) == (2**33, 3.1e-7, MEASURED.plan)
    assert summary.measured_at == NOON
    refused = found[STRIDED.key]["cuda.cuconv"]
    assert (refused.outcome, refused.detail) == (Outcome.NOT_APPLICABLE, "stride is 2x3, not 1x1")
    assert (refused.time_ms, refused.noise, refused.n_samples, refused.workspace_bytes) == (None, None, 0, None)


def test_several_attempts_are_pooled_worked_by_hand(store: Store) -> None:
    def attempt(minutes: int, *samples_ms: float, **changes: object) -> Measurement:
        return replace(MEASURED, samples_ms=samples_ms, measured_at=NOON + timedelta(minutes=minutes), **changes)

    newest = attempt(3, 4.0, 4.0, workspace_bytes=7, plan={"engine": 1}, max_error=0.5)
    store.append([newest, attempt(1, 1.0, 2.0, 3.0), attempt(2, 100.0)])
    store.append([attempt(4, outcome=Outcome.CRASHED, detail="died"), attempt(5, 9.0, outcome=Outcome.PRUNED)])
    summary = _summaries(store, [LAYER])[LAYER.key]["cudnn.graph.eng62"]
    assert summary.outcome is Outcome.MEASURED
    assert summary.time_ms == 4.0
    assert summary.noise == attempt(1, 1.0, 2.0, 3.0).noise
    assert summary.n_samples == 6
    assert (summary.workspace_bytes, summary.plan, summary.max_error) == (7, {"engine": 1}, 0.5)
    assert (summary.detail, summary.measured_at) == ("", newest.measured_at)


def test_pruned_attempts_count_before_refusals_and_the_newest_refusal_counts(store: Store) -> None:
    late = NOON + timedelta(hours=1)
    store.append([replace(MEASURED, outcome=Outcome.PRUNED)])
    store.append([replace(BARE, problem=LAYER, variant=MEASURED.variant, outcome=Outcome.CRASHED, measured_at=late)])
    store.append([replace(BARE, detail="new", measured_at=late), replace(BARE, detail="old")])
    found = _summaries(store, [LAYER, STRIDED])
    assert found[LAYER.key][MEASURED.variant].outcome is Outcome.PRUNED
    assert found[LAYER.key][MEASURED.variant].time_ms == 0.25
    assert found[STRIDED.key][BARE.variant].detail == "new"


def test_summaries_are_of_one_device_and_of_a_warm_cache(store: Store) -> None:
    store.append([MEASURED, replace(MEASURED, l2=L2State.COLD, samples_ms=(8.0,))])
    store.append([replace(MEASURED, device=CPU, samples_ms=(16.0,))])

    assert _summaries(store, [LAYER])[LAYER.key][MEASURED.variant].time_ms == 0.25
    assert _summaries(store, [LAYER], "cpu")[LAYER.key][MEASURED.variant].time_ms == 16.0
    assert _summaries(store, [STRIDED], "cpu") == {}
    assert _read(store)[1].l2 is L2State.COLD


def test_attempts_under_different_drivers_are_one_device(store: Store) -> None:
    newer = replace(H200, versions={"driver": "590"})
    store.append([replace(MEASURED, device=newer, measured_at=NOON + timedelta(days=1)), replace(BARE, device=CPU)])
    store.append([MEASURED])
    assert store.devices() == [CPU, newer]
    assert store.device("nvidia-h200") == newer
    assert {row.device for row in _read(store)} == {H200, newer}
    assert _summaries(store, [LAYER])[LAYER.key][MEASURED.variant].n_samples == 6
    with pytest.raises(UnknownDevice, match=r"^unknown device 'tpu'; known: cpu, nvidia-h200$"):
        store.device("tpu")


def test_a_file_is_imported_once(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    parquet.write(arrow.measurements_to_table(MEASUREMENTS), path)
    assert import_file(store, path) == len(MEASUREMENTS)
    assert import_file(store, path.rename(tmp_path / "renamed.parquet")) == 0
    assert _count(store) == len(MEASUREMENTS)
    parquet.write(arrow.measurements_to_table([BARE]), path)
    assert import_file(store, path) == 1


def test_a_refused_file_leaves_nothing(store: Store, tmp_path: Path) -> None:
    table = arrow.measurements_to_table(MEASUREMENTS)
    parquet.write(table.drop_columns(["detail"]), tmp_path / "m.parquet")
    with pytest.raises(StoreError, match=r"m\.parquet: column detail is missing"):
        import_file(store, tmp_path / "m.parquet")
    with pytest.raises(StoreError, match=r"gone\.parquet"):
        import_file(store, tmp_path / "gone.parquet")
    assert _count(store) == _count(store, "imports") == 0


def _open_and_append(url: str, run: int) -> int:
    with Store(url) as store:
        return sum(store.append([replace(row, run_id=f"run-{run}")]) for row in MEASUREMENTS * 3)


def _open_and_import(url: str, path: Path) -> int:
    with Store(url) as store:
        return import_file(store, path)


def test_processes_that_open_write_and_import_at_once_lose_nothing(database_url: str, tmp_path: Path) -> None:
    url, path = database_url, tmp_path / "m.parquet"
    parquet.write(arrow.measurements_to_table(MEASUREMENTS * 500), path)
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        writers = [pool.submit(_open_and_append, url, run) for run in range(3)]
        importers = [pool.submit(_open_and_import, url, path) for _ in range(3)]
        assert [writer.result() for writer in writers] == [3 * len(MEASUREMENTS)] * 3
        assert sorted(importer.result() for importer in importers) == [0, 0, 500 * len(MEASUREMENTS)]
    with Store(url) as store:
        assert _count(store) == (500 + 9) * len(MEASUREMENTS)
        assert _count(store, "problems") == 2
        assert all(
            len(store.attempted(f"run-{run}")) == len({(m.problem, m.variant) for m in MEASUREMENTS})
            for run in range(3)
        )


def test_sqlite_is_set_up_for_several_processes(sqlite_store: Store) -> None:
    with sqlite_store.engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "foreign_keys")
        }
        assert settings == {"journal_mode": "wal", "foreign_keys": 1}
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000


def test_a_measurement_of_an_unregistered_problem_cannot_be_stored(store: Store) -> None:
    row = {"problem_key": "none", "device": "none", "device_id": "cpu", "source": "s", "variant": "v", "plan": "{}"}
    with pytest.raises(IntegrityError), store.engine.begin() as connection:
        connection.execute(insert(PICKS), row | {"run_id": ""})


def test_one_problem_is_found_by_index(store: Store) -> None:
    asked = "SELECT * FROM measurements WHERE device_id = 'x' AND problem_key IN ('a', 'b')"
    with store.engine.connect() as connection:
        if store.engine.dialect.name == "sqlite":
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}").all()
        else:  # a table of no rows is read whole, unless that is forbidden
            connection.exec_driver_sql("SET enable_seqscan = off")
            plan = connection.exec_driver_sql(f"EXPLAIN {asked}").all()
    assert "measurements_by_problem" in str(plan)


def test_problem_fields_are_columns_of_the_database(store: Store) -> None:
    store.append(MEASUREMENTS)
    joined = select(ROWS.c.variant).join(PROBLEMS).join(DEVICES).where(PROBLEMS.c.groups == 2, PROBLEMS.c.pad_w == 2)
    with store.engine.connect() as connection:
        variants = connection.execute(joined.where(DEVICES.c.id == "nvidia-h200")).scalars().all()
    assert variants == [row.variant for row in MEASUREMENTS if row.problem == STRIDED]


def test_bulk_inserts_are_in_the_style_of_the_database() -> None:
    columns = {"sha256": ["a", "b"], "rows": [1, 2]}
    imports = METADATA.tables["imports"]
    assert bulk_insert(imports, columns, sqlite.dialect()) == (
        "INSERT INTO imports (sha256, rows) VALUES (?, ?)",
        [("a", 1), ("b", 2)],
    )
    statement, rows = bulk_insert(imports, columns, postgresql.dialect(paramstyle="pyformat"))
    assert "%(sha256)s" in statement
    assert rows == [{"sha256": "a", "rows": 1}, {"sha256": "b", "rows": 2}]


@pytest.mark.parametrize("url", ["no url", "sqlite:////dev/null/store.db", "nosuch://host/db"])
def test_a_store_that_cannot_be_opened_says_so(url: str) -> None:
    with pytest.raises(StoreError, match="store"):
        Store(url)


def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("not a database, but long enough to be read as the header of one" * 20)
    with pytest.raises(StoreError, match="not a database"):
        Store(f"sqlite:///{tmp_path / 'store.db'}")


def test_a_store_whose_tables_are_gone_says_so(store: Store) -> None:
    store.append([MEASURED])
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE measurements")
    for read in (
        lambda: measurements_table(store, "nvidia-h200"),
        lambda: store.attempted("x"),
        lambda: store.append([MEASURED]),
    ):
        with pytest.raises(StoreError, match=r"no such table: measurements|relation \"measurements\" does not exist"):
            read()


def test_measurements_and_picks_are_added_together_or_not_at_all(store: Store) -> None:
    assert store.append(MEASUREMENTS, SOME_PICKS) == len(MEASUREMENTS)
    assert (_count(store), _count(store, "picks")) == (len(MEASUREMENTS), len(SOME_PICKS))
    with pytest.raises(StoreError):
        store.append([replace(MEASURED, samples_ms=(float("nan"),))], SOME_PICKS)
    assert (_count(store), _count(store, "picks")) == (len(MEASUREMENTS), len(SOME_PICKS))


def test_what_a_guard_refuses_is_not_added(store: Store) -> None:
    version = store.version("nvidia-h200")
    seen: list[int] = []

    def refuse(connection: Connection) -> None:
        seen.append(connection.execute(select(func.count()).select_from(ROWS)).scalar_one())
        raise UnknownDevice("guarded")

    with pytest.raises(UnknownDevice, match="guarded"):
        store.guarded(refuse).append(MEASUREMENTS, SOME_PICKS)
    assert seen == [0]
    assert (_count(store), _count(store, "picks"), store.version("nvidia-h200")) == (0, 0, version)
    assert store.writes == 0
    store.guarded(lambda _: None).append(MEASUREMENTS)
    assert store.writes == 1, "whoever reads through the store itself must know"
    store.append(MEASUREMENTS)
    assert _count(store) == 2 * len(MEASUREMENTS)


def test_no_error_of_the_database_shows_a_statement_or_what_was_to_be_written(store: Store) -> None:
    mark = "nobodys-business"
    row = {"problem_key": mark, "device": mark, "device_id": "cpu", "source": mark, "variant": mark, "plan": mark}
    said = []
    for parameters in (row | {"run_id": mark}, [row | {"run_id": mark}] * 2, row | {"run_id": object()}):
        with pytest.raises(StatementError) as caught, store.engine.begin() as connection:
            connection.execute(insert(PICKS), parameters)
        said.append("".join(traceback.format_exception(caught.value)))
    assert "constraint" in said[0]
    for text in said:
        assert mark not in text
        assert "INSERT" not in text
        assert "sqlalche.me" not in text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "missing"),
        ("null", "NoneType"),
        ("[1]", "list"),
        ("", "Expecting value"),
        (H200.json[:-9], "column"),
        (H200.json.replace('"nvidia-h200"', "7"), "id is 7; allowed: str"),
        (H200.json.replace("132", '"132"'), "processors is '132'; allowed: int"),
        (H200.json.replace('"cuda"', '"cuda","unheard":1'), "unheard"),
    ],
)
def test_a_corrupt_row_of_a_device_is_named(store: Store, text: str, reason: str) -> None:
    store.append([MEASURED])
    with store.engine.begin() as connection:
        connection.execute(insert(DEVICES), {"fingerprint": "spoilt", "id": "spoilt", "json": text})
    with pytest.raises(StoreError, match=f"fingerprint 'spoilt' in its table devices is corrupt .*{reason}"):
        store.devices()


def test_a_text_that_is_not_utf_8_is_not_quoted(sqlite_store: Store) -> None:
    with sqlite_store.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO devices VALUES ('x', 'x', CAST(x'736563726574FF' AS TEXT))")
    with pytest.raises(StoreError, match="UTF-8 column 'json'") as caught:
        sqlite_store.devices()
    assert "secret" not in str(caught.value)


def _modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_the_pool_of_connections_logs_nothing_when_all_is_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.append(MEASUREMENTS)
    assert not caplog.text


def test_only_its_user_can_read_a_database_file_and_what_is_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    before = os.umask(0o022)
    try:
        with Store(f"sqlite:///{folder / 'store.db'}") as store:
            store.append(MEASUREMENTS)
            assert _modes(folder) == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm"), 0o600)
        assert {stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)} == {0o700}
    finally:
        os.umask(before)


def test_a_database_file_that_all_could_read_is_closed_to_them_and_one_of_a_group_stays_so(tmp_path: Path) -> None:
    file, names = tmp_path / "store.db", ("store.db", "store.db-wal", "store.db-shm")
    for mode, becomes in ((0o644, 0o600), (0o640, 0o640)):
        with Store(f"sqlite:///{file}") as older:  # holds the files beside it
            older.append(MEASUREMENTS)
            for name in names:
                (tmp_path / name).chmod(mode)
            with Store(f"sqlite:///{file}"):
                assert _modes(tmp_path) == dict.fromkeys(names, becomes)
