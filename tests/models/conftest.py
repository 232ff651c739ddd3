"""A tree trained once on the made-up device, small enough for tests."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from conv_advisor.models.training.options import Options
from conv_advisor.models.training.train import train
from conv_advisor.models.tree.file import TreeModel
from tests.models import synthetic

QUICK = Options(n_sampled=400, max_leaves=60, n_trees=8, n_rounds=12)
CREATED = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="session")
def table() -> pa.Table:
    return synthetic.table(synthetic.all_problems())


@pytest.fixture(scope="session")
def trained(table: pa.Table) -> TreeModel:
    return train(table, device_id=synthetic.DEVICE.id, options=QUICK, created=CREATED)


@pytest.fixture(scope="session")
def quick() -> Options:
    return QUICK
