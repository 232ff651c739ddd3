"""What one rule runs for one layer, and how long that takes; kept line by line while a run lasts, then as Parquet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from conv_advisor.data import parquet
from conv_advisor.data.measurement import relative_noise
from conv_advisor.data.problem import FIELDS, ConvProblem
from conv_advisor.models.evaluation import peers

ADVICE: Final = peers.ADVICE
THREE: Final = "advice, three measured"
"""The fastest of the first three of the ranking, chosen on the choosing pass."""
ORACLE: Final = "oracle"
SINGLE_BEST: Final = "single best"
DEFAULT: Final = peers.DEFAULT
TUNED: Final = peers.TUNED
LAYER: Final = "layer"
"""The rule of a row that says why nothing of its layer could be measured."""

RULES: Final = (
    ADVICE,
    THREE,
    SINGLE_BEST,
    "cudnn.heuristic_v7",
    "cudnn.graph.heuristic_a",
    "cudnn.graph.heuristic_b",
    DEFAULT,
    TUNED,
)
"""Rules whose choices are compared with the oracle, in the order of the tables."""

JOURNAL: Final = ".jsonl"


@dataclass(frozen=True)
class Row:
    """One rule's choice for one layer.

    Parameters
    ----------
    problem : ConvProblem
    rule : str
        One of `RULES`, `ORACLE` or `LAYER`.
    variant : str
        What it runs; empty for PyTorch, which does not say, and where nothing runs.
    plan : str
        JSON that rebuilds the exact plan; empty where the variant has only one.
    samples_ms : tuple of float
        Samples of the pass that is reported; empty where nothing runs.
    chosen_ms : float or None
        Median on the pass that the oracle was chosen on.
    predicted_ms : float or None
        What the tree says the variant takes; of advice alone.
    abstains : bool or None
        Whether the tree says that its ranking is a guess; of advice alone.
    first_call_s : float or None
        Wall time of the first call: for PyTorch the whole call, for the others what prepares the launch.
    is_captured : bool
        Whether the time is that of replayed graphs; else host time may be in it.
    max_error : float or None
        Against float64, as in `Measurement`.
    failure : str
        Why nothing runs, or what stood in for the first choice: ``outcome: reason``.
    others_ms : dict of str to float
        For the oracle alone: the medians on the choosing pass of all that it was chosen among.
    networks : str
        Names of the networks that have the layer, separated by blanks.
    tree, device, software : str
        Id of the tree, id of the device, and versions of what ran.
    """

    problem: ConvProblem
    rule: str
    variant: str = ""
    plan: str = ""
    samples_ms: tuple[float, ...] = ()
    chosen_ms: float | None = None
    predicted_ms: float | None = None
    abstains: bool | None = None
    first_call_s: float | None = None
    is_captured: bool = True
    max_error: float | None = None
    failure: str = ""
    others_ms: dict[str, float] = field(default_factory=dict, hash=False)
    networks: str = ""
    tree: str = ""
    device: str = ""
    software: str = ""

    @property
    def time_ms(self) -> float:
        """Median of the samples; not a number where there are none."""
        return median(self.samples_ms) if self.samples_ms else math.nan

    @property
    def noise(self) -> float:
        """Relative standard error of `time_ms`."""
        return relative_noise(self.samples_ms) if self.samples_ms else math.nan

    @property
    def column(self) -> tuple[str, str]:
        """Dtype and layout."""
        return str(self.problem.dtype), str(self.problem.layout)


_OWN: Final = {
    "rule": pa.string(),
    "variant": pa.string(),
    "plan": pa.string(),
    "samples_ms": pa.list_(pa.float64()),
    "chosen_ms": pa.float64(),
    "predicted_ms": pa.float64(),
    "abstains": pa.bool_(),
    "first_call_s": pa.float64(),
    "is_captured": pa.bool_(),
    "max_error": pa.float64(),
    "failure": pa.string(),
    "others_ms": pa.string(),
    "networks": pa.string(),
    "tree": pa.string(),
    "device": pa.string(),
    "software": pa.string(),
}

SCHEMA: Final = pa.schema(
    [
        ("layer", pa.string()),
        *((name, pa.string() if name in ("dtype", "layout") else pa.int32()) for name in FIELDS),
        *_OWN.items(),
        ("time_ms", pa.float64()),
    ]
)
"""A row is one rule on one layer; layer and time_ms are for readers and not read back."""


def write(rows: Iterable[Row], path: Path) -> None:
    """Write rows whole or not at all, as Parquet."""
    parquet.write(pa.Table.from_pylist([_record(row) for row in rows], SCHEMA), path)


def read(path: Path) -> list[Row]:
    """The rows of a Parquet file, or of the journal of a run that was killed."""
    if path.suffix == JOURNAL:
        return [_row(record) for line in whole_lines(path) for record in json.loads(line)]
    with pq.ParquetFile(path) as file:
        return [_row(record) for record in file.read().to_pylist()]


def append(rows: Iterable[Row], journal: Path) -> None:
    """Add the rows of one layer as one line, on the disk when this returns."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps([_record(row) for row in rows]) + "\n")


def merge(parts: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of several runs; those of a layer in the last run that has it count."""
    by_problem: dict[ConvProblem, list[Row]] = {}
    for part in parts:
        fresh: dict[ConvProblem, list[Row]] = {}
        for row in part:
            fresh.setdefault(row.problem, []).append(row)
        by_problem |= fresh
    return [row for rows in by_problem.values() for row in rows]


def whole_lines(path: Path) -> list[str]:
    """The lines of a journal, without a last one that was not finished."""
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _record(row: Row) -> dict[str, Any]:
    own = {name: value for name, value in asdict(row).items() if name != "problem"}
    return {
        "layer": row.problem.short,
        **{name: getattr(row.problem, name) for name in FIELDS},
        "dtype": str(row.problem.dtype),
        "layout": str(row.problem.layout),
        **own,
        "samples_ms": list(row.samples_ms),
        "others_ms": json.dumps(row.others_ms),
        "time_ms": row.time_ms if row.samples_ms else None,
    }


def _row(record: dict[str, Any]) -> Row:
    own: dict[str, Any] = {name: record.get(name) for name in _OWN}  # older files do not say what abstains
    own |= {"samples_ms": tuple(record["samples_ms"]), "others_ms": json.loads(record["others_ms"])}
    return Row(ConvProblem(*(record[name] for name in FIELDS)), **own)
