"""Training: from measurements to one decision tree that ranks the variants and predicts their times."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conv_advisor.data.counting import counted
from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.measurement import Device
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import BROAD, MEASURE_ALL, Costs, device_of, from_table, is_of
from conv_advisor.models.ranking.accuracy import learn_laws
from conv_advisor.models.ranking.endings import CARD as ENDINGS
from conv_advisor.models.training.ending_fit import learn as learn_endings
from conv_advisor.models.training.enough import MIN_PROBLEMS, teaches
from conv_advisor.models.training.graft import graft
from conv_advisor.models.training.grow import Orders, grow_all
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.threads import processes, threads
from conv_advisor.models.tree.arrays import DOMAIN
from conv_advisor.models.tree.domain import learn_domain
from conv_advisor.models.tree.file import TreeModel, make, with_card

MOST_THREADS: Final = 4
"""Most threads that training gets: each labels a dtype and layout, which takes memory of its own."""


def train(
    table: pa.Table,
    *,
    device_id: str,
    seed: int = 0,
    options: Options | None = None,
    created: datetime | None = None,
    n_threads: int = 1,
    costs: Costs | None = None,
) -> TreeModel:
    """Train the tree of a device.

    Parameters
    ----------
    table : pyarrow.Table
        Measurements, in `data.parquet.SCHEMA`; other devices' rows are ignored.
    device_id : str
    seed : int
        The same table, seed and options give the same arrays.
    options : Options
    created : datetime
        By default that of the newest measurement, so that the same data give the same card.
    n_threads : int
        Decides how long it takes, and nothing else.
    costs : Costs, optional
        `models.costs.from_table` of the table, where it was read already.

    Returns
    -------
    TreeModel
        Nodes that tell dtypes, layouts and grouped layers apart, and below them one scikit-learn tree for each.

    Raises
    ------
    NotEnoughData, UnknownDevice
    """
    device = device_of(table, device_id)
    until = pc.max(table["measured_at"].filter(is_of(table, device_id))).as_py()
    model = fit(
        costs or from_table(table, device_id),
        device,
        seed=seed,
        options=options,
        created=created,
        data_until=until,
        n_threads=n_threads,
    )
    model = with_card(model, errors=learn_laws(table, device_id))
    endings = learn_endings(table, device_id)
    return with_card(model, **{ENDINGS: msgspec.to_builtins(endings)}) if endings else model


def fit(
    costs: Costs,
    device: Device,
    *,
    seed: int = 0,
    options: Options | None = None,
    created: datetime | None = None,
    data_until: datetime | None = None,
    n_threads: int = 1,
) -> TreeModel:
    """Train from costs already gathered, the newest of which was measured at ``data_until``; see `train`."""
    tree, _ = fit_beside(
        costs,
        device,
        (),
        seed=seed,
        options=options,
        created=created,
        data_until=data_until,
        n_threads=n_threads,
    )
    return tree


def fit_beside(
    costs: Costs,
    device: Device,
    asked: Sequence[ConvProblem],
    *,
    seed: int = 0,
    options: Options | None = None,
    created: datetime | None = None,
    data_until: datetime | None = None,
    n_threads: int = 1,
) -> tuple[TreeModel, Orders]:
    """As `fit`, and beside the tree how its teacher ranks some problems, which neither has seen.

    The tree is the same whatever is asked. Rules of the variants have no part in the ranking.
    """
    options, created = options or Options(), created or data_until or datetime.now(UTC)
    costs = training_set(costs)
    if len(costs.problems) < MIN_PROBLEMS:
        raise NotEnoughData(
            f"device {device.id}: {counted(len(costs.problems), 'problem')} to train on with {BROAD}; allowed: at least"
            f" {MIN_PROBLEMS}. {MEASURE_ALL}"
        )
    with threads(n_threads) as thread_map, processes(n_threads) as process_map:
        domains = thread_map(learn_domain, [costs.problems])  # while trees grow
        trees, orders = grow_all(costs, device, asked, seed, options, (thread_map, process_map))
        ((sizes, domain),) = domains
    card = {"created": _iso(created), "data_until": _iso(data_until or created)} | _card(costs, seed, options)
    arrays = graft(trees) | {DOMAIN: sizes}
    return make(arrays, variants=costs.variants, device=device, card=card | {"domain": domain}), orders


def training_set(costs: Costs) -> Costs:
    """The problems that a tree is trained on."""
    return trainable(costs).where(teaches)


def trainable(costs: Costs) -> Costs:
    """Without `data.networks.held_out_layers`, which judge every tree and therefore teach none."""
    never = held_out_layers()
    return costs.where(lambda problem: problem.layer not in never)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _card(costs: Costs, seed: int, options: Options) -> dict[str, Any]:
    import sklearn

    return {
        "data_sha256": data_digest(costs),
        "n_problems": len(costs.problems),
        "n_layers": len({problem.layer for problem in costs.problems}),
        "n_times": int((np.isfinite(costs.time_ms) & ~costs.is_pruned).sum()),
        "n_unsteady": costs.n_unsteady,
        "seed": seed,
        "options": asdict(options),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "scores": {},
    }


def data_digest(costs: Costs) -> str:
    """SHA-256 of all that training reads of a training set."""
    digest = hashlib.sha256("\n".join([*costs.variants, *(problem.key for problem in costs.problems)]).encode())
    for values in (costs.time_ms, costs.is_pruned, costs.is_refused, costs.workspace_bytes):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
