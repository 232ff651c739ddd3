"""Measurements as matrices of problems by variants: what training and evaluation read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conv_advisor.data.errors import NotEnoughData, UnknownDevice
from conv_advisor.data.measurement import LEAST_UNLAUNCHED_SLOWDOWN, Device, L2State, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS, for_device_kind
from conv_advisor.kernels.variant import Rule, left_to_ask

if TYPE_CHECKING:
    import pyarrow as pa

REFUSALS: Final = tuple(
    sorted(set(Outcome) - {Outcome.MEASURED, Outcome.PRUNED, Outcome.UNSTEADY, Outcome.NOT_APPLICABLE})
)
"""Outcomes of an attempt that the variant's own rule allowed and the device or the library did not."""

TIE_STANDARD_ERRORS: Final = 2.0
"""Medians closer than this many standard errors of their difference are tied."""

MIN_SHARE_KNOWN: Final = 0.5
"""A problem teaches which variant is fastest if at least this share of the variants has an outcome there.

Only variants that apply count: measuring on demand leaves the others out, a sweep records them with a reason.
"""

MIN_WINS_KNOWN: Final = 0.95
"""A problem also teaches if variants with an outcome win on this share of such problems: others are seldom missed."""

BROAD: Final = "at least half of the variants that apply"
MEASURE_ALL: Final = (
    "Measure all variants of some 40 layers: conv-advisor sweep, or POST /v1/convolutions with the variant 'all'"
)
"""What to do where too little was measured to train on: `models.training.enough.ENOUGH_MEASURED` layers."""

_LONGEST_LAUNCH_MS: Final = 50.0
_FARTHEST_BEHIND: Final = 1000.0
"""A first launch beyond both was not the device's time: the host was busy, or a library loaded."""

_LEAST_SUCH: Final = 100
"""Least number of broadly measured problems of a dtype and layout that show which variants win there."""


def is_tied(time_ms: float, noise: float, other_ms: float, other_noise: float) -> bool:
    """Whether two medians are closer than their noise.

    Parameters
    ----------
    time_ms, other_ms : float
    noise, other_noise : float
        Relative standard errors.
    """
    return abs(time_ms - other_ms) <= TIE_STANDARD_ERRORS * math.hypot(time_ms * noise, other_ms * other_noise)


def roofline_ms(problem: ConvProblem, roofline: Sequence[float]) -> float:
    """Least time by the flops per ms, bytes per ms and least ms that a device is known to reach."""
    flops_per_ms, bytes_per_ms, least_ms = roofline
    return max(problem.flops / flops_per_ms, problem.bytes / bytes_per_ms, least_ms)


@dataclass(frozen=True)
class Costs:
    """What is known of P problems and V variants on one device.

    Parameters
    ----------
    variants : tuple of str
    problems : tuple of ConvProblem
    time_ms : float64 array of shape (P, V)
        Median, ms; NaN where there is none.
    noise : float64 array of shape (P, V)
        Relative standard error of the time; NaN where there is none.
    is_pruned : bool array of shape (P, V)
        Whether the time is that of a variant far behind the best, which was not timed further.
    is_refused : bool array of shape (P, V)
        Whether the device or library refused it.
    is_known : bool array of shape (P, V)
        Whether there is any outcome.
    workspace_bytes : float64 array of shape (P, V)
        NaN where the variant never said.
    n_unsteady : int
        Times that did not count, since the device was throttled or shared when they were taken.
    """

    variants: tuple[str, ...]
    problems: tuple[ConvProblem, ...]
    time_ms: np.ndarray
    noise: np.ndarray
    is_pruned: np.ndarray
    is_refused: np.ndarray
    is_known: np.ndarray
    workspace_bytes: np.ndarray
    n_unsteady: int = 0

    @property
    def best_ms(self) -> np.ndarray:
        """Time of the oracle of each problem, float64 array of shape (P,)."""
        best: np.ndarray = np.nanmin(np.where(self.is_pruned, np.nan, self.time_ms), axis=1)
        return best

    def log_slowdown(self, cap: float) -> np.ndarray:
        """log(time / oracle), at most the cap, which refusals count as; NaN where nothing is known.

        Returns
        -------
        float64 array of shape (P, V)
        """
        with np.errstate(invalid="ignore"):
            logs = np.log(self.time_ms / self.best_ms[:, None])
        return np.where(self.is_refused, cap, np.clip(logs, 0, cap))

    def where(self, is_wanted: Callable[[ConvProblem], bool]) -> Costs:
        """Only the problems that the predicate wants."""
        return self.take([row for row, problem in enumerate(self.problems) if is_wanted(problem)])

    def take(self, rows: Sequence[int] | np.ndarray) -> Costs:
        """Only these rows, in this order."""
        arrays: dict[str, Any] = {
            name: value[np.asarray(rows, dtype=np.int64)]
            for name in (field.name for field in fields(self))
            if isinstance(value := getattr(self, name), np.ndarray)
        }
        return replace(self, problems=tuple(self.problems[row] for row in rows), **arrays)


def split(costs: Costs, layers: Collection[ConvProblem]) -> tuple[Costs, Costs]:
    """The problems of all other layers, and the problems of these layers."""
    is_held = [problem.layer in layers for problem in costs.problems]
    return costs.take(np.flatnonzero(~np.array(is_held))), costs.take(np.flatnonzero(is_held))


def from_table(table: pa.Table, device_id: str) -> Costs:
    """Gather the warm measurements of one device; of several attempts at a variant of a problem a success counts.

    Parameters
    ----------
    table : pyarrow.Table
        In `data.parquet.SCHEMA` or `ATTEMPTS`.
    device_id : str

    Returns
    -------
    Costs
        Problems and variants in sorted order, whatever the order of rows. Where a variant was timed several times the
        median counts; a pruned one without a sample is as far behind as at a smaller batch. A variant is unknown where
        its launch took longer than at a larger batch, or than any kernel would (the host was busy), and where it was
        left out with no slow launch before. An outcome does not count where the variant's rule now says no, nor does
        "not applicable" where the rule now says yes. Problems with too few outcomes to tell the best are left out, and
        so are those with an epilogue.

    Raises
    ------
    NotEnoughData
        No problem is left.
    """
    import pyarrow as pa  # advice alone does without Arrow
    import pyarrow.compute as pc

    from conv_advisor.data.parquet import times

    table, n_unsteady = _steady(table, device_id)
    table, problems, rows = _plain(table)
    variants, columns = coded(table["variant"])
    shape = (len(problems), len(variants))
    names, codes = coded(table["outcome"])
    had = {outcome: np.isin(codes, np.flatnonzero(names == outcome)) for outcome in Outcome}
    row_ms, row_noise = times(table)
    cells = rows * len(variants) + columns
    device = device_of(table, device_id)
    is_ruled_out = _ruled_out(problems, variants.tolist(), device)
    is_measured = _any_by(cells[had[Outcome.MEASURED]], shape) & ~is_ruled_out
    counts = had[Outcome.MEASURED] | (had[Outcome.PRUNED] & ~is_measured.ravel()[cells])
    counts &= np.isfinite(row_ms)
    time_ms = np.where(is_ruled_out, np.nan, _median_by(cells[counts], row_ms[counts], shape))
    is_pruned = _any_by(cells[had[Outcome.PRUNED]], shape) & ~is_measured & ~is_ruled_out
    best_ms = np.where(is_measured, time_ms, np.inf).min(axis=1, keepdims=True)
    is_false = _false_pruning(problems, time_ms, best_ms, is_measured, is_pruned)
    is_pruned &= ~is_false
    time_ms = np.where(is_false, np.nan, time_ms)
    time_ms = np.where(is_pruned & np.isnan(time_ms), LEAST_UNLAUNCHED_SLOWDOWN * best_ms, time_ms)
    workspace = pc.fill_null(pc.cast(table["workspace_bytes"], pa.float64()), math.nan).to_numpy()
    has_workspace = np.isfinite(workspace)
    costs = Costs(
        variants=tuple(variants.tolist()),
        problems=tuple(problems),
        time_ms=time_ms,
        noise=np.where(np.isnan(time_ms), np.nan, _median_by(cells[counts], row_noise[counts], shape)),
        is_pruned=is_pruned,
        is_refused=_any_by(cells[np.any([had[outcome] for outcome in REFUSALS], axis=0)], shape)
        & np.isnan(time_ms)
        & ~is_ruled_out,
        is_known=_any_by(cells[~had[Outcome.NOT_APPLICABLE] | is_ruled_out.ravel()[cells]], shape) & ~is_false,
        workspace_bytes=_median_by(cells[has_workspace], workspace[has_workspace], shape),
        n_unsteady=n_unsteady,
    )
    unseen = [variant.id for variant in for_device_kind(device.kind) if variant.id not in costs.variants]
    n_unseen = (~_ruled_out(problems, unseen, device)).sum(axis=1)
    return _sorted_and_usable(costs, is_measured, is_ruled_out, n_unseen, device_id)


def _steady(table: pa.Table, device_id: str) -> tuple[pa.Table, int]:
    """The warm attempts on a device without its unreliable times, and the number of those.

    Raises
    ------
    NotEnoughData
        Nothing is left.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from conv_advisor.data.steadiness import unsteady_rows

    table = table.filter(pc.and_(is_of(table, device_id), pc.equal(table["l2"], str(L2State.WARM))))
    was_refused = pc.equal(table["outcome"], str(Outcome.UNSTEADY)).to_numpy()
    is_unsteady = unsteady_rows(table) | was_refused
    n_unsteady = int(np.count_nonzero(is_unsteady))
    table = table.filter(pa.array(~is_unsteady))
    if not table.num_rows:
        counted = f"none of its {n_unsteady} times counts: the device was throttled or shared" if n_unsteady else ""
        raise NotEnoughData(f"device {device_id}: {counted or 'nothing was measured with a warm L2 cache'}")
    return table, n_unsteady


def _plain(table: pa.Table) -> tuple[pa.Table, list[ConvProblem], np.ndarray]:
    """The rows without an epilogue, which no feature describes, and their `distinct_problems`."""
    import pyarrow as pa

    from conv_advisor.data.parquet import distinct_problems

    problems, rows = distinct_problems(table)
    if any(problem.epilogue for problem in problems):
        is_plain = np.array([not problem.epilogue for problem in problems])
        table = table.filter(pa.array(is_plain[rows]))
        problems, rows = distinct_problems(table)
    return table, problems, rows


def _ruled_out(problems: Sequence[ConvProblem], variants: Sequence[str], device: Device) -> np.ndarray:
    """Where a variant's own rule says no, bool array of shape (P, V); one outside the catalogue has no rule."""
    is_ruled_out = np.zeros((len(problems), len(variants)), dtype=bool)
    refused: dict[Rule, np.ndarray] = {}  # many variants share their rules
    for column, name in enumerate(variants):
        rules = left_to_ask(VARIANTS[name].why_not, problems[0], device) if name in VARIANTS and problems else ()
        if rules is None:
            is_ruled_out[:, column] = True
            continue
        for rule in rules:
            if rule not in refused:
                refused[rule] = np.array([bool(rule(problem, device)) for problem in problems])
            is_ruled_out[:, column] |= refused[rule]
    return is_ruled_out


def _false_pruning(
    problems: Sequence[ConvProblem],
    time_ms: np.ndarray,
    best_ms: np.ndarray,
    is_measured: np.ndarray,
    is_pruned: np.ndarray,
) -> np.ndarray:
    """Where the launch of a pruned variant is not its own time, or it was left out with no slow launch before.

    Parameters
    ----------
    problems : sequence of P ConvProblem
    time_ms : float64 array of shape (P, V)
        NaN where it was left out.
    best_ms : float64 array of shape (P, 1)
    is_measured, is_pruned : bool arrays of shape (P, V)

    Returns
    -------
    bool array of shape (P, V)
    """
    batches: dict[tuple[ConvProblem, DType, Layout], list[int]] = {}
    for row in sorted(range(len(problems)), key=lambda row: problems[row].n):
        problem = problems[row]
        batches.setdefault((problem.layer, problem.dtype, problem.layout), []).append(row)
    is_false = is_pruned & (time_ms > np.maximum(_LONGEST_LAUNCH_MS, _FARTHEST_BEHIND * best_ms))
    for rows in batches.values():
        least_ms = np.full(time_ms.shape[1], np.inf)
        for row in reversed(rows):
            is_false[row] |= is_pruned[row] & (time_ms[row] > least_ms)
            least_ms = np.where(is_measured[row], np.minimum(least_ms, time_ms[row]), least_ms)
        is_behind = np.zeros(time_ms.shape[1], dtype=bool)
        for row in rows:
            is_false[row] |= is_pruned[row] & np.isnan(time_ms[row]) & ~is_behind
            is_behind |= ~is_false[row] & (time_ms[row] >= LEAST_UNLAUNCHED_SLOWDOWN * best_ms[row])
    return is_false


def device_of(table: pa.Table, device_id: str) -> Device:
    """The fingerprint of this device that was measured last.

    Raises
    ------
    UnknownDevice
        The table has no row of it.
    """
    import pyarrow.compute as pc

    mine = table.select(["device", "measured_at"]).filter(is_of(table, device_id))
    if not mine.num_rows:
        texts, _ = coded(table["device"])
        raise UnknownDevice(device_id, sorted({json.loads(text)["id"] for text in texts.tolist()}))
    latest = mine.filter(pc.equal(mine["measured_at"], pc.max(mine["measured_at"])))
    return Device.from_json(latest["device"][-1].as_py())


def _sorted_and_usable(
    costs: Costs, is_measured: np.ndarray, is_ruled_out: np.ndarray, n_unseen: np.ndarray, device_id: str
) -> Costs:
    """The problems that teach which variant is fastest; `n_unseen`, shape (P,): applicable variants never tried."""
    n_known, n_asked = costs.is_known.sum(axis=1), (costs.is_known | ~is_ruled_out).sum(axis=1)
    is_alone = (n_known == 1) & (n_asked + n_unseen > 1)  # the fastest only of itself, in a store with no other
    is_broad = is_measured.any(axis=1) & (n_known >= MIN_SHARE_KNOWN * n_asked) & ~is_alone
    is_usable = is_broad | (is_measured.any(axis=1) & _knows_winners(costs, is_measured, is_ruled_out, is_broad))
    rows = sorted(np.flatnonzero(is_usable).tolist(), key=lambda row: costs.problems[row].key)
    if not rows:
        raise NotEnoughData(f"device {device_id}: no problem was measured with {BROAD}. {MEASURE_ALL}")
    return costs.take(rows)


def _knows_winners(costs: Costs, is_measured: np.ndarray, is_ruled_out: np.ndarray, is_broad: np.ndarray) -> np.ndarray:
    """Where the variants that are the fastest elsewhere have an outcome or do not apply, bool array of shape (P,).

    Elsewhere: on the broadly measured problems of the same dtype and layout, grouped ones apart.
    """
    kinds: dict[tuple[DType, Layout, bool], list[int]] = {}
    for row, problem in enumerate(costs.problems):
        kinds.setdefault((problem.dtype, problem.layout, problem.groups > 1), []).append(row)
    fastest = np.where(is_measured, costs.time_ms, np.inf).argmin(axis=1)
    knows_winners = np.zeros(len(costs.problems), dtype=bool)
    for rows in kinds.values():
        wins = np.bincount(fastest[rows][is_broad[rows]], minlength=len(costs.variants))
        if wins.sum() >= _LEAST_SUCH:
            is_settled = costs.is_known[rows] | is_ruled_out[rows]
            knows_winners[rows] = is_settled @ wins >= MIN_WINS_KNOWN * wins.sum()
    return knows_winners


def is_of(table: pa.Table, device_id: str) -> pa.BooleanArray:
    """For each row of a table with a device column, whether it is of this device."""
    import pyarrow as pa

    texts, places = coded(table["device"])
    is_mine = np.array([json.loads(text)["id"] == device_id for text in texts.tolist()], bool)
    return pa.array(is_mine[places])


def coded(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct texts of a column in rising order, and for each row the index of its text among them."""
    encoded = column.dictionary_encode().combine_chunks()
    used, places = np.unique(encoded.indices.to_numpy(), return_inverse=True)
    names, order = np.unique(np.array(encoded.dictionary.take(used).to_pylist(), dtype=str), return_inverse=True)
    return names, order[places]


def _median_by(cells: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Median of the values of each cell; NaN where there are none."""
    out = np.full(math.prod(shape), np.nan)
    ordered = values[np.lexsort((values, cells))]
    occupied, starts, counts = np.unique(np.sort(cells), return_index=True, return_counts=True)
    out[occupied] = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    return out.reshape(shape)


def _any_by(cells: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    out = np.zeros(math.prod(shape), dtype=bool)
    out[cells] = True
    return out.reshape(shape)
