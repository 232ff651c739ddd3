"""Trees that were altered: each is refused, or every walk in it ends in a leaf and its advice is made of numbers."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from conv_advisor.app.wire.answers.advice import advice_json
from conv_advisor.app.wire.answers.models import model_answer
from conv_advisor.data.errors import ModelRejected, NoAdvice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import Entry
from conv_advisor.models.tree.arrays import LEAF
from conv_advisor.models.tree.features import features
from conv_advisor.models.tree.file import TreeModel, path_nodes, read, walk
from tests.app.serving import GPU, LARGE, SMALL, TIMES_MS, small_tree
from tests.models import hand_made
from tests.reliability.scale import count
from tests.reliability.trees import Altered
from tests.reliability.watch import limit_memory, peak_bytes, within

pytestmark = pytest.mark.slow

N_TREES = count(4_000, 100_000)
LONGEST_S = 5.0
MOST_BYTES = 256 * 2**20
PROBLEMS = (SMALL, LARGE, hand_made.MIDDLE, hand_made.POINTWISE)


def use(model: TreeModel) -> None:
    """Walk a tree, ask it for advice, and show its card, as the service does."""
    n_nodes = len(model.arrays["feature"])
    for problem in PROBLEMS:
        values = features(problem)
        assert len(path_nodes(model, values)) <= n_nodes
        assert model.arrays["feature"][walk(model, values)] == LEAF
    try:
        content = advice_json(Advisor(model).advise(PROBLEMS[0]))
    except NoAdvice:
        content = b"{}"
    msgspec.json.decode(content)
    msgspec.json.encode(model_answer(Entry(model.id, model.device.id, False, True, model.card)))


def attempt_all(folder: Path, seed: int, n: int) -> tuple[Counter[str], int]:
    """What came of so many trees, and by how much memory peaked above what it was."""
    altered = Altered(folder, (small_tree(TIMES_MS), hand_made.model(), hand_made.of_first_protocol()), seed)
    before, found = peak_bytes(), Counter[str]()
    limit_memory(MOST_BYTES)
    for _ in range(n):
        altered.write_next()
        try:
            with within(LONGEST_S):
                model = read(folder)
        except ModelRejected:
            found["refused"] += 1
            continue
        try:
            with within(LONGEST_S):
                use(model)
        except BaseException:
            shutil.copytree(folder, folder.with_name(f"failed-{seed}"), dirs_exist_ok=True)
            raise
        found["used"] += 1
    return found, peak_bytes() - before


@pytest.mark.timeout(7200)
def test_altered_trees_are_refused_or_walked_to_a_leaf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use(small_tree(TIMES_MS, GPU))
    use(hand_made.model())
    use(hand_made.of_first_protocol())
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(2, os.nice, (10,)) as pool:
        jobs = [(tmp_path / str(seed), seed, N_TREES // 2) for seed in (2, 3)]
        results = pool.starmap_async(attempt_all, jobs, chunksize=1).get(timeout=7000)
    found: Counter[str] = sum((outcomes for outcomes, _ in results), Counter())
    most = max(more for _, more in results)
    with capsys.disabled():
        took = time.monotonic() - began
        print(f"\n{found.total()} trees in {took:.0f} s, at most {most / 2**20:.0f} MiB more: {dict(found)}")
    assert found.total() == N_TREES
    assert found["refused"] > 0.2 * N_TREES
    assert found["used"] > 0.01 * N_TREES, "some alterations should leave a tree that may be used"
    assert most < MOST_BYTES
