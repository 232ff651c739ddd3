"""The benchmark of refreshing, on times of which two variants are 1.4 times as slow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.refresh import alike, scored, versions
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.records import Records
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.registry.on_disk import SHIPPED
from conv_advisor.models.tree.file import read
from tests.data import arrow
from tests.fakes import SMALL_DEVICE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ships() -> Costs:
    return from_table(Records().table("nvidia-h200"), "nvidia-h200")


def test_what_is_said_is_held_against_all_that_changed(ships: Costs) -> None:
    before = ships.take(range(0, len(ships.problems), 60))
    slower = [before.variants.index(name) for name in ("cuda.implicit_gemm_nhwc", "cudnn.graph.eng62")]
    time_ms = before.time_ms.copy()
    time_ms[:, slower] *= 1.4
    scores = scored(before, replace(before, time_ms=time_ms), read(SHIPPED / "nvidia-h200"), seed=0)
    n_moved, n_said, n_both = scores.moved
    assert n_moved == 2
    assert n_both <= min(n_said, n_moved)
    assert scores.found.share <= 0.02
    n_regressed, n_named, n_right = scores.regressed
    assert n_right <= min(n_regressed, n_named)
    assert n_regressed > 0


def test_only_what_both_have_tried_is_compared(ships: Costs) -> None:
    one = ships.take(range(40))
    is_known = one.is_known.copy()
    is_known[:, 0] = False
    other = replace(one.take(range(20, 40)), is_known=is_known[20:40])
    before, after = alike(one, other)
    assert before.problems == after.problems == one.problems[20:40]
    assert np.isnan(before.time_ms[:, 0]).all()


def test_times_of_an_older_kernel_stand_in_for_those_that_ship(ships: Costs, tmp_path: Path) -> None:
    column = ships.variants.index("cuda.gemm")
    rows = np.flatnonzero(np.isfinite(ships.time_ms[:, column]) & ~ships.is_pruned[:, column])[:3]
    old = [
        Measurement(ships.problems[row], "cuda.gemm", SMALL_DEVICE, Outcome.MEASURED, samples_ms=(9.0,) * 3)
        for row in rows
    ]
    file = tmp_path / "old.parquet"
    pq.write_table(arrow.measurements_to_table(old), file)
    before, after = versions(ships, [file])
    assert after.problems == tuple(ships.problems[row] for row in rows)
    assert (before.time_ms[:, column] == 9.0).all()
    assert np.array_equal(after.time_ms[:, column], ships.time_ms[rows, column])
