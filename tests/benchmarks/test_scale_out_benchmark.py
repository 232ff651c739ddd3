"""The table of the scale-out benchmark, from rows worked by hand."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from benchmarks.scale_out import Row, table


def test_ratios_are_to_one_device_of_the_same_path():
    rows = [
        Row("local", 1, 10, 300, 200, 30.0),
        Row("local", 4, 10, 300, 200, 8.0),
        Row("dask", 1, 10, 300, 200, 36.0),
        Row("dask", 4, 10, 300, 200, 10.0),
    ]
    assert cells(rows) == [
        ["local", "1", "10", "300", "30.0", "10.0", "1.00"],
        ["local", "4", "10", "300", "8.0", "37.5", "3.75"],
        ["dask", "1", "10", "300", "36.0", "8.3", "1.00"],
        ["dask", "4", "10", "300", "10.0", "30.0", "3.60"],
    ]


def test_without_a_run_on_one_device_there_is_no_ratio():
    assert cells([Row("dask", 2, 10, 300, 200, 10.0)]) == [["dask", "2", "10", "300", "10.0", "30.0", ""]]


def cells(rows: list[Row]) -> list[list[str]]:
    """What the table shows, row by row."""
    printed = StringIO()
    Console(file=printed, width=120).print(table(rows))
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in printed.getvalue().splitlines() if "│" in line
    ]
