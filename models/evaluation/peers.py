"""What other libraries take beside the oracle, timed in one run on one GPU by ``benchmarks.advice``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from conv_advisor import data
from conv_advisor.data.errors import InvalidProblem, StoreError
from conv_advisor.data.measurement import relative_noise
from conv_advisor.data.problem import FIELDS, ConvProblem
from conv_advisor.models.costs import is_tied
from conv_advisor.models.evaluation.judging import ORACLE, Result
from conv_advisor.models.evaluation.tuning import Trial

PEERS: Final = Path(data.__file__).parent / "peers"
"""One file a device, ``<device>.parquet``."""

ADVICE: Final = "advice"
DEFAULT: Final = "pytorch.default"
TUNED: Final = "pytorch.benchmark"
RULES: Final = ("cudnn.graph.heuristic_b", DEFAULT, TUNED)
"""Rules that are read: the picks of the other rules ship, and are judged by the measurements."""

_COLUMNS: Final = (*FIELDS, "rule", "variant", "failure", "tree", "time_ms", "samples_ms", "first_call_s")


@dataclass(frozen=True)
class Peers:
    """A run of ``benchmarks.advice``.

    Parameters
    ----------
    results : dict of rule to dict of ConvProblem to Result
        What each of `RULES` costs on each problem that it was timed on, against the oracle that was timed beside it.
    oracle : dict of ConvProblem to str
        The variant that this oracle ran.
    trials : dict of ConvProblem to Trial
        PyTorch untuned and tuned, beside the advice of that run.
    trees : tuple of str
        The ids of the trees that advised there.
    """

    results: Mapping[str, Mapping[ConvProblem, Result]] = field(default_factory=dict)
    oracle: Mapping[ConvProblem, str] = field(default_factory=dict)
    trials: Mapping[ConvProblem, Trial] = field(default_factory=dict)
    trees: tuple[str, ...] = ()


def read_peers(path: Path) -> Peers:
    """Read what a run wrote.

    Parameters
    ----------
    path : Path
        As ``benchmarks.advice --output`` writes it.

    Raises
    ------
    StoreError
        It cannot be read, or lacks a column.
    """
    try:
        records = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
        timed = [record for record in records if record["samples_ms"]]
        problems = [ConvProblem(*(record[name] for name in FIELDS)) for record in timed]
    except (OSError, pa.ArrowException, KeyError, InvalidProblem) as error:
        raise StoreError(f"{path}: {error}") from error
    layers: dict[ConvProblem, dict[str, dict[str, Any]]] = {}
    for problem, record in zip(problems, timed, strict=True):
        layers.setdefault(problem, {})[record["rule"]] = record
    layers = {problem: rows for problem, rows in layers.items() if ORACLE in rows}
    return Peers(
        results={
            rule: {problem: _result(problem, rows[rule], rows[ORACLE]) for problem, rows in of.items()}
            for rule in RULES
            if (of := {problem: rows for problem, rows in layers.items() if rule in rows})
        },
        oracle={problem: rows[ORACLE]["variant"] for problem, rows in layers.items()},
        trials={problem: trial for problem, rows in layers.items() if (trial := _trial(rows))},
        trees=tuple(sorted({record["tree"] for record in timed} - {""})),
    )


def _result(problem: ConvProblem, record: dict[str, Any], oracle: dict[str, Any]) -> Result:
    time_ms, noise, oracle_ms, oracle_noise = (
        value for row in (record, oracle) for value in (row["time_ms"], relative_noise(row["samples_ms"]))
    )
    return Result(
        problem=problem,
        slowdown=time_ms / oracle_ms,
        is_tied=is_tied(time_ms, noise, oracle_ms, oracle_noise),
        is_refused=bool(record["failure"]),
        is_oracle=bool(record["variant"]) and record["variant"] == oracle["variant"],
        variant=record["variant"],
    )


def _trial(rows: Mapping[str, dict[str, Any]]) -> Trial | None:
    if not {ADVICE, DEFAULT, TUNED} <= rows.keys() or not rows[TUNED]["first_call_s"]:
        return None
    return Trial(
        advised_ms=rows[ADVICE]["time_ms"],
        untuned_ms=rows[DEFAULT]["time_ms"],
        tuned_ms=rows[TUNED]["time_ms"],
        untuned_call_s=rows[DEFAULT]["first_call_s"] or 0.0,
        tuned_call_s=rows[TUNED]["first_call_s"],
    )
