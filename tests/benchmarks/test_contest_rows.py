"""A win, and rows written and read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.contest.rows import merge, read, write
from conv_advisor.data.measurement import L2State
from tests.benchmarks.made_up import row, side


@pytest.mark.parametrize(
    ("cudnn_ms", "ours_ms", "spread", "is_win"),
    [
        (1.04, 1.0, 0.0, True),
        (1.03, 1.0, 0.0, False),
        (1.02, 1.0, 0.0, False),
        (0.5, 1.0, 0.0, False),
        # Three samples, one so far to each side: the median errs by sqrt(pi / 2) * 1.4826 / sqrt(3) = 1.07 times as
        # much, the difference of 1.10 and 1.03 by 1.6 %, and 0.07 is more than two of these; of 3.2 % it is not.
        (1.10, 1.0, 0.01, True),
        (1.10, 1.0, 0.03, False),
        (None, 1.0, 0.0, False),
        (1.0, None, 0.0, False),
    ],
)
def test_a_win_is_more_than_three_percent_beyond_noise(cudnn_ms, ours_ms, spread, is_win) -> None:
    assert row("14-1-3-256-128", cudnn_ms, ours_ms, spread=spread).is_win is is_win


def test_one_sample_alone_is_no_win() -> None:
    found = row("14-1-3-256-128", 2.0, 1.0)
    assert found.is_win
    assert not replace(found, ours=replace(side(1.0), samples_ms=(1.0,))).is_win


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_rows_are_read_as_they_were_written(tmp_path, suffix) -> None:
    rows = [
        replace(
            row("14-1-3-256-128", 1.1, 0.3, dtype="bfloat16", spread=0.02),
            failures={"cuda.fft": 'workspace_exceeded: needs 2, "1" allowed\n'},
            others_ms={"cudnn.gemm": 1.5},
        ),
        replace(row("7-8-1-32-832", 1.0, None, layout="nhwc", l2=L2State.COLD), choosing="é"),
        row("7-8-1-32-832", None, None),
    ]
    rows[0] = replace(rows[0], cudnn=replace(rows[0].cudnn, plan='{"engine":0,"knobs":{"2":1}}'))
    path = tmp_path / "folder" / f"rows{suffix}"
    write(rows, path)
    again = read(path)
    assert again == rows
    assert [(r.failures, r.others_ms) for r in again] == [(r.failures, r.others_ms) for r in rows]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_merged_rows_are_those_given_last() -> None:
    first, second = row("7-8-1-32-832", 1.0, 2.0), row("7-8-1-32-832", 1.0, 3.0)
    cold = row("7-8-1-32-832", 1.0, 2.0, l2=L2State.COLD)
    assert merge([[first, cold], [second]]) == [second, cold]
