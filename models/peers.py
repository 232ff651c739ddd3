"""What other libraries take beside the oracle, timed in one run on one GPU by ``benchmarks.advice``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import data
from data.errors import InvalidProblem, StoreError
from data.measurement import relative_noise
from data.problem import FIELDS, ConvProblem
from models.costs import is_tied
from models.judging import ORACLE, Result

PEERS: Final = Path(data.__file__).parent / "peers"
"""One file a device, ``<device>.parquet``."""
PREFIX: Final = "pytorch."
"""Of the rules that are read: the others are judged by the measurements."""

_COLUMNS: Final = (*FIELDS, "rule", "time_ms", "samples_ms")

Peers = dict[str, dict[ConvProblem, Result]]
"""What each rule costs on each problem that it was timed on."""


def read_peers(path: Path) -> Peers:
    """The slowdown of each peer against the oracle that was timed beside it.

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
    pairs = list(zip(problems, timed, strict=True))
    oracles = {problem: record for problem, record in pairs if record["rule"] == ORACLE}
    found: Peers = {}
    for problem, record in pairs:
        if record["rule"].startswith(PREFIX) and problem in oracles:
            found.setdefault(record["rule"], {})[problem] = _result(problem, record, oracles[problem])
    return found


def _result(problem: ConvProblem, record: dict[str, Any], oracle: dict[str, Any]) -> Result:
    time_ms, noise, oracle_ms, oracle_noise = (
        value for each in (record, oracle) for value in (each["time_ms"], relative_noise(each["samples_ms"]))
    )
    return Result(
        problem=problem,
        slowdown=time_ms / oracle_ms,
        is_tied=is_tied(time_ms, noise, oracle_ms, oracle_noise),
        is_refused=False,
        is_oracle=False,
    )
