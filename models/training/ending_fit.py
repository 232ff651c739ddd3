"""Costs of epilogues, fitted to times of the same variant on the same layer with an epilogue and without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from conv_advisor.data.measurement import Device, L2State, Outcome
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Ending
from conv_advisor.models.costs import REFUSALS, is_of
from conv_advisor.models.ranking.endings import (
    EAGER,
    FORMAT,
    KINDS,
    LEAST_SHARE,
    Cost,
    Endings,
    Work,
    kind_of,
    way_of,
    work_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

LEAST_TIMES: Final = 8
"""Times that a cost is fitted to, at least."""
_OUTLIER: Final = 3.0
"""Standard deviations, by the median absolute deviation, beyond which a time does not count in the second fit."""
_MAD_TO_SIGMA: Final = 1.4826


@dataclass(frozen=True)
class Pair:
    """One variant, or PyTorch, on one layer.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    work : Work
        What the epilogue adds.
    alone_ms : float or None
        The time without it; None where all that is known is whether it runs with it.
    ended_ms : float or None
        The time with it; None where it does not run so.
    """

    kind: str
    work: Work
    alone_ms: float | None
    ended_ms: float | None


def fit(pairs: Iterable[Pair]) -> dict[str, Cost]:
    """The cost of each kind that enough is known of.

    A kernel of ours that nobody timed is taken to cost what each of PyTorch's does.
    """
    by_kind: dict[str, list[Pair]] = {kind: [] for kind in KINDS}
    for pair in pairs:
        by_kind[pair.kind].append(pair)
    costs = {kind: cost for kind, of_kind in by_kind.items() if (cost := _cost(of_kind))}
    if Ending.APPENDED not in costs and EAGER in costs:
        costs[str(Ending.APPENDED)] = msgspec.structs.replace(costs[EAGER], factor=1.0)
    return costs


def pair_of(variant: str, problem: ConvProblem, alone_ms: float | None, ended_ms: float | None) -> Pair | None:
    """The pair of a variant's times without an epilogue and with it; None where the variant computes no epilogue."""
    known = VARIANTS.get(variant)
    way = known and way_of(known, problem)
    return Pair(kind_of(way, problem), work_of(way, problem), alone_ms, ended_ms) if way else None


def learn(table: pa.Table, device_id: str) -> Endings | None:
    """The costs that measurements of one device teach; None where they teach none.

    Parameters
    ----------
    table : pyarrow.Table
        Measurements, in `data.parquet.SCHEMA` or `ATTEMPTS`: those with an epilogue teach, beside those of the same
        variant on the same layer without. Layers that judge trees teach nothing.
    device_id : str
    """
    import pyarrow as pa  # what only answers does without Arrow
    import pyarrow.compute as pc

    from conv_advisor.data.parquet import distinct_problems
    from conv_advisor.data.steadiness import unsteady_rows

    if "epilogue" not in table.column_names or table["epilogue"].null_count == table.num_rows:
        return None
    table = table.filter(pc.and_(is_of(table, device_id), pc.equal(table["l2"], str(L2State.WARM))))
    table = table.filter(pa.array(~unsteady_rows(table)))
    if not table.num_rows:
        return None
    problems, rows = distinct_problems(table)
    never = held_out_layers()
    ended = {problem for problem in problems if problem.epilogue and problem.plain.layer not in never}
    compared = ended | {problem.plain for problem in ended}
    known = _known(table, [problem if problem in compared else None for problem in problems], rows)
    pairs = {
        problem: list(_pairs(problem, known[problem], known.get(problem.plain, {})))
        for problem in problems
        if problem in ended and problem in known
    }
    costs = fit(pair for problem_pairs in pairs.values() for pair in problem_pairs)
    return Endings(FORMAT, device_id, _software(table), sum(map(bool, pairs.values())), costs) if costs else None


def _software(table: pa.Table) -> str:
    """What a table was measured under."""
    import pyarrow as pa

    devices = map(Device.from_json, table["device"].cast(pa.string()).unique().to_pylist())
    return "; ".join(sorted({device.software for device in devices} - {""}))


def _known(
    table: pa.Table, problems: Sequence[ConvProblem | None], rows: np.ndarray
) -> dict[ConvProblem, dict[str, float | None]]:
    """The time of each variant on each problem that counts; None where it was refused."""
    from conv_advisor.data.parquet import times

    counts = np.array([problem is not None for problem in problems])[rows]
    ms, outcomes, variants = times(table)[0].tolist(), table["outcome"].to_pylist(), table["variant"].to_pylist()
    samples: dict[tuple[int, str], list[float]] = {}
    refused: dict[tuple[int, str], None] = {}
    for row in np.flatnonzero(counts).tolist():
        cell = int(rows[row]), variants[row]
        if outcomes[row] == Outcome.MEASURED:
            samples.setdefault(cell, []).append(ms[row])
        elif outcomes[row] in REFUSALS:
            refused[cell] = None
    by_problem: dict[ConvProblem, dict[str, float | None]] = {}
    for (place, variant), time_ms in (refused | {cell: median(cell_ms) for cell, cell_ms in samples.items()}).items():
        problem = problems[place]
        assert problem is not None  # noqa: S101 - its rows count
        by_problem.setdefault(problem, {})[variant] = time_ms
    return by_problem


def _pairs(
    problem: ConvProblem, ended: Mapping[str, float | None], alone: Mapping[str, float | None]
) -> Iterator[Pair]:
    for variant, ended_ms in ended.items():
        alone_ms = alone.get(variant)
        if alone_ms is not None and (pair := pair_of(variant, problem, alone_ms, ended_ms)):
            yield pair


def errors(pairs: Iterable[Pair], costs: Mapping[str, Cost]) -> dict[str, list[float]]:
    """log(time predicted / time with the epilogue), by kind."""
    by_kind: dict[str, list[float]] = {}
    for pair in pairs:
        if pair.ended_ms is not None and pair.alone_ms is not None and pair.kind in costs:
            predicted_ms = costs[pair.kind].time_ms(pair.alone_ms, pair.work)
            by_kind.setdefault(pair.kind, []).append(float(np.log(predicted_ms / pair.ended_ms)))
    return by_kind


def _cost(pairs: Sequence[Pair]) -> Cost | None:
    """The cost of one kind; of one that hardly ever runs so, its share alone."""
    timed = [pair for pair in pairs if pair.ended_ms is not None and pair.alone_ms is not None]
    if len(pairs) < LEAST_TIMES:
        return None
    share = sum(pair.ended_ms is not None for pair in pairs) / len(pairs)
    if len(timed) < LEAST_TIMES:
        return Cost(1.0, 0.0, 0.0, 0.0, share, 0) if share < LEAST_SHARE else None
    alone_ms, ended_ms = (np.array([getattr(pair, name) for pair in timed]) for name in ("alone_ms", "ended_ms"))
    columns = np.stack([alone_ms, *np.array([pair.work for pair in timed], float).T], axis=1)
    prices = _prices(columns, ended_ms)
    off = _off(columns, ended_ms, prices)
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(off - np.median(off))))
    near = np.abs(off - np.median(off)) <= max(_OUTLIER * sigma, 1e-9)
    prices = _prices(columns[near], ended_ms[near])
    spread = float(np.sqrt(np.mean(_off(columns, ended_ms, prices)[near] ** 2)))
    return Cost(1 + float(prices[0]), float(prices[1]), float(prices[2]), spread, share, len(timed))


def _off(columns: np.ndarray, ended_ms: np.ndarray, prices: np.ndarray) -> np.ndarray:
    """log(predicted / measured), float64 array of shape (N,)."""
    off: np.ndarray = np.log((columns[:, 0] + columns @ prices) / ended_ms)
    return off


def _prices(columns: np.ndarray, ended_ms: np.ndarray) -> np.ndarray:
    """Prices of the columns, none negative, by least squares of relative errors of what the first column lacks.

    With three columns every subset of them is tried, so the result is the best there is.
    """
    matrix = columns / ended_ms[:, None]
    target = 1.0 - columns[:, 0] / ended_ms
    best, least = np.zeros(columns.shape[1]), float(np.sum(target**2))
    used = [column for column in range(columns.shape[1]) if matrix[:, column].any()]
    for count in range(1, len(used) + 1):
        for chosen in combinations(used, count):
            scaled = np.abs(matrix[:, chosen]).max(axis=0)  # bytes are large numbers, kernels small ones
            solved, _, _, _ = np.linalg.lstsq(matrix[:, chosen] / scaled, target, rcond=None)
            if (solved < 0).any():
                continue
            rest = float(np.sum((matrix[:, chosen] / scaled @ solved - target) ** 2))
            if rest < least:
                best, least = np.zeros(columns.shape[1]), rest
                best[list(chosen)] = solved / scaled
    return best
