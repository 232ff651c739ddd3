"""Bounds of what an undisturbed device does, each from both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conv_advisor.data import parquet
from conv_advisor.data.measurement import Device, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import Shipped
from conv_advisor.data.steadiness import LEAST_ROWS, refuse_unsteady, refuse_unsteady_rows, unsteady_rows, why_unsteady
from conv_advisor.data.store import Store
from conv_advisor.data.transfer import import_file, measurements_table
from tests.data import arrow

GPU = Device("test-gpu", "A GPU for tests", "cuda", max_clock_mhz=1980)
PROBLEM = ConvProblem.parse("7-1-1-8-8")


def timed(
    samples_ms: tuple[float, ...] = (1.0, 1.0, 1.0), start: int | None = 1980, end: int | None = 1980
) -> Measurement:
    """A time at these clocks."""
    return Measurement(
        *(PROBLEM, "cudnn.gemm", GPU, Outcome.MEASURED),
        samples_ms=samples_ms,
        clock_start_mhz=start,
        clock_end_mhz=end,
    )


CASES = [
    (timed(), 1980, None),
    (timed(start=1980, end=1935), None, None),
    (timed(start=1980, end=1905), None, "the clock went from 1980 to 1905 MHz, by more than 3%"),
    (timed(start=1905, end=1980), None, "the clock went from 1905 to 1980 MHz, by more than 3%"),
    (timed(start=1890, end=1890), 1980, None),
    (timed(start=1875, end=1875), 1980, "the clock was 1875 MHz, below 95% of the usual 1980 MHz"),
    (timed(start=1500, end=1500), 1500, None),
    (timed(start=1500, end=1500), None, None),
    (timed(start=None, end=None), 1980, None),
    (timed((1.0, 1.01, 0.99, 1.0, 1.0)), 1980, None),
    (timed((1.0, 1.2, 0.8, 1.0, 1.1)), 1980, "samples are wide: the median errs by 8.3%, above 2%"),
    (timed((1.0, 1.2, 0.8, 1.1)), 1980, None),
    (timed((1.0,)), 1980, None),
    (replace(timed((1.0,), 1980, 1000), outcome=Outcome.PRUNED), 1980, None),
    (replace(timed((1.0, 2.0, 3.0)), device=Device("cpu", "A CPU", "cpu")), None, None),
]


@pytest.mark.parametrize(("measurement", "usual_mhz", "reason"), CASES)
def test_what_speaks_against_a_time(measurement: Measurement, usual_mhz: float | None, reason: str | None) -> None:
    assert why_unsteady(measurement, usual_mhz) == reason


def test_a_refused_time_keeps_its_samples_and_says_why() -> None:
    good, bad = timed(), timed(end=1500)
    kept = refuse_unsteady([good, bad])
    assert kept[0] is good
    assert (kept[1].outcome, kept[1].samples_ms) == (Outcome.UNSTEADY, bad.samples_ms)
    assert kept[1].detail == "the clock went from 1980 to 1500 MHz, by more than 3%"


def test_a_table_is_judged_as_its_rows_are() -> None:
    for usual_mhz in (None, 1980, 1500):
        rows = [measurement for measurement, _, _ in CASES]
        table = arrow.measurements_to_table(rows)
        kept = arrow.table_to_measurements(table)
        wanted = refuse_unsteady(kept, usual_mhz)
        assert unsteady_rows(table, {GPU.id: usual_mhz}).tolist() == [
            row.outcome != was.outcome for row, was in zip(wanted, kept, strict=True)
        ]
        assert arrow.table_to_measurements(refuse_unsteady_rows(table, {GPU.id: usual_mhz})) == wanted


def test_the_usual_clock_of_a_table_is_that_of_most_of_its_times() -> None:
    slow = timed(start=1200, end=1200)
    table = arrow.measurements_to_table([timed()] * (LEAST_ROWS - 1) + [slow])
    assert unsteady_rows(table).tolist() == [False] * (LEAST_ROWS - 1) + [True]
    assert not unsteady_rows(table.slice(1)).any(), "too few times to say"
    assert not unsteady_rows(table, {GPU.id: 1200.0}).any()


def test_what_is_imported_is_refused_as_what_is_appended_is(tmp_path) -> None:
    rows = [timed((1.0, 1.2, 0.8, 1.0, 1.1)), replace(timed(), variant="cudnn.fft")]
    parquet.write(arrow.measurements_to_table(rows), tmp_path / "rows.parquet")
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        assert import_file(store, tmp_path / "rows.parquet") == 2
        found = Records(store).summaries([PROBLEM], GPU.id)[PROBLEM.key]
        assert (found["cudnn.gemm"].outcome, found["cudnn.gemm"].time_ms) == (Outcome.UNSTEADY, None)
        assert found["cudnn.gemm"].detail == "samples are wide: the median errs by 8.3%, above 2%"
        assert found["cudnn.fft"].time_ms == 1.0


def test_the_store_refuses_on_entry_and_a_later_time_counts(tmp_path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.append([timed((5.0, 5.0, 5.0), end=1500)])
        (summary,) = Records(store).summaries([PROBLEM], GPU.id)[PROBLEM.key].values()
        assert (summary.outcome, summary.time_ms, summary.noise) == (Outcome.UNSTEADY, None, None)
        assert "from 1980 to 1500 MHz" in summary.detail
        store.append([timed()])
        (summary,) = Records(store).summaries([PROBLEM], GPU.id)[PROBLEM.key].values()
        assert (summary.outcome, summary.time_ms) == (Outcome.MEASURED, 1.0)
        assert measurements_table(store, GPU.id)["outcome"].to_pylist() == ["unsteady", "measured"]


def test_the_usual_clock_is_the_store_s_once_it_has_times_enough(tmp_path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.append([timed(start=1410, end=1410)] * (LEAST_ROWS - 1))
        assert store.usual_clock_mhz(GPU.id) is None
        store.append([timed()])
        assert store.usual_clock_mhz(GPU.id) == 1410
        store.append([timed(start=1200, end=1200)])
        assert measurements_table(store, GPU.id)["outcome"].to_pylist()[-1] == "unsteady"
        assert store.usual_clock_mhz("elsewhere") is None


def test_the_usual_clock_is_what_ships_says_where_the_store_has_few_times(tmp_path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.db'}", shipped=Shipped()) as store:
        assert store.usual_clock_mhz("nvidia-h200") == 1980
        store.append([replace(timed(start=1410, end=1410), device=replace(GPU, id="nvidia-h200"))])
        assert measurements_table(store, "nvidia-h200")["outcome"].to_pylist() == ["unsteady"]
