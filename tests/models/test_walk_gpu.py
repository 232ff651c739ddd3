"""Walking trees on a real GPU: bit for bit what scikit-learn says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from conv_advisor.models import walk_gpu
from conv_advisor.models.costs import from_table
from conv_advisor.models.fits import fit_each
from conv_advisor.models.options import Options
from conv_advisor.models.train import train
from conv_advisor.models.tree_file import TreeModel
from conv_advisor.models.walk import ON_CORES
from conv_advisor.models.walk_gpu import OnGpu
from tests.models import synthetic
from tests.models.conftest import CREATED
from tests.models.test_walk import boosted, forest, rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("count", [0, 1, 64, 1000])
def test_the_mean_of_leaves_is_that_of_the_cores(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_gpu, "_BLOCK", 300)
    trees, values = forest(rows(500, 0))
    gpu, asked = OnGpu(), rows(count, 1)
    found = gpu.mean(trees, values)(gpu.hold(asked))
    assert found.shape == (count, values.shape[1])
    assert np.array_equal(found, ON_CORES.mean(trees, values)(asked))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_boosted_trees_say_what_they_say_on_the_cores(step: int) -> None:
    fitted = boosted(rows(500, 0))
    gpu, asked = OnGpu(), rows(900, 1)
    chosen = np.arange(0, 900, step)
    found = gpu.boosted(fitted)(gpu.hold(asked), chosen)
    assert np.array_equal(found, ON_CORES.boosted(fitted)(asked, chosen))
    assert not len(gpu.boosted(fitted)(gpu.hold(asked), chosen[:0]))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_tree_trained_with_a_gpu_is_the_one_trained_without(
    table: pa.Table, trained: TreeModel, quick: Options, threads: int
) -> None:
    found = train(table, device_id=synthetic.DEVICE.id, options=quick, created=CREATED, n_threads=threads, walk=OnGpu())
    assert found.id == trained.id


def test_processes_of_their_own_walk_on_the_gpu(table: pa.Table, quick: Options) -> None:
    costs, short = from_table(table, synthetic.DEVICE.id), replace(quick, n_sampled=50)
    parts = [costs.take(np.arange(len(costs.problems))[place::2]) for place in range(2)]
    ids = [
        [tree.id for tree, _ in fit_each(parts, synthetic.DEVICE, asked=[(), ()], options=short, jobs=2, walk=walk)]
        for walk in (ON_CORES, OnGpu())
    ]
    assert ids[0] == ids[1]
