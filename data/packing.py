"""Shipped tables as Arrow columns, and Arrow columns as a shipped table: the compact form of what sweeps wrote."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors.numpy import save_file

from conv_advisor.data import parquet
from conv_advisor.data.block import Block, compress, compress_text, encode
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.measurement import Device, L2State, Outcome
from conv_advisor.data.problem import COLUMNS, ConvProblem, to_columns
from conv_advisor.data.shipped import BLOCK_PROBLEMS, FORMAT, GAP, SUFFIX, ShippedTable
from conv_advisor.data.steadiness import refuse_unsteady_rows

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.ASCII)
_MANY_DETAILS: Final = 100
"""Details that differ only in their numbers share one reason, with gaps, where there are so many of them."""


@dataclass(frozen=True)
class Contents:
    """Everything that a table holds, as Arrow columns.

    Parameters
    ----------
    attempts : pyarrow.Table
        In `data.parquet.ATTEMPTS`.
    picks : pyarrow.Table
        In `data.parquet.PICKS_SCHEMA`.
    clocks : Counter of int
        How many times were measured at each SM clock, MHz.
    files : dict of str to str
        SHA-256 and name of every file that the rows come from.
    """

    attempts: pa.Table
    picks: pa.Table
    clocks: Counter[int]
    files: dict[str, str]


def empty() -> Contents:
    """Contents without a row."""
    return Contents(parquet.ATTEMPTS.empty_table(), parquet.PICKS_SCHEMA.empty_table(), Counter(), {})


def contents_of(shipped: ShippedTable) -> Contents:
    """Everything in a table.

    Raises
    ------
    StoreError
    """
    clocks = Counter({int(clock): count for clock, count in shipped.card.clocks.items()})
    return Contents(attempts_of(shipped), picks_of(shipped), clocks, dict(shipped.card.files))


def attempts_of(shipped: ShippedTable) -> pa.Table:
    """Every attempt in a table, in `data.parquet.ATTEMPTS`, by problem, variant and time.

    Raises
    ------
    StoreError
    """
    card, blocks = shipped.card, list(shipped.blocks())
    if not blocks:
        return parquet.ATTEMPTS.empty_table()
    column = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in Block.__slots__[:-1]}
    numbers = [line for block in blocks for line in block.numbers]
    run, has_times = column["run"], column["n_samples"] > 0
    details = _details(shipped, column["reason"], numbers)
    columns = _problem_columns(shipped, np.repeat(np.arange(len(shipped.keys)), np.diff(shipped.ends))) | {
        "variant": _pick(card.variants, column["variant"]),
        "outcome": _pick([str(reason.outcome) for reason in card.reasons], column["reason"]),
        "detail": details,
        "time_ms": pa.array(column["time_ms"], mask=~has_times),
        "workspace_bytes": pa.array(column["workspace_bytes"], mask=column["workspace_bytes"] < 0),
        "max_error": pa.array(column["max_error"].astype(np.float64), from_pandas=True),
        "plan": _pick(shipped.plans, column["plan"]),
        "l2": pa.repeat(pa.scalar(str(L2State.WARM)), len(run)),
        "measured_at": pa.array(column["at_s"].astype(np.int64) * 1_000_000).cast(pa.timestamp("us", tz="UTC")),
        "run_id": _pick([run.id for run in card.runs], run),
        "device": _device_column(shipped, run),
        "noise": pa.array(column["noise"].astype(np.float64), mask=~has_times),
        "n_samples": pa.array(column["n_samples"].astype(np.int32)),
        "source": _pick([run.source for run in card.runs], run),
    }
    return pa.table([columns[name] for name in parquet.ATTEMPTS.names], schema=parquet.ATTEMPTS)


def picks_of(shipped: ShippedTable) -> pa.Table:
    """Every pick in a table, in `data.parquet.PICKS_SCHEMA`.

    Raises
    ------
    StoreError
    """
    card, (problem, source, variant, plan, run) = shipped.card, shipped.picks
    columns = _problem_columns(shipped, problem) | {
        "source": _pick(card.pick_sources, source),
        "variant": _pick(card.variants, variant),
        "plan": _pick(shipped.plans, plan),
        "run_id": _pick([run.id for run in card.runs], run),
        "device": _device_column(shipped, run),
    }
    return pa.table([columns[name] for name in parquet.PICKS_SCHEMA.names], schema=parquet.PICKS_SCHEMA)


def added(contents: Contents, path: Path, device_id: str, *, replaces: bool = False) -> Contents:
    """The contents plus the rows of a Parquet file; these are picks if its name ends in ``picks.parquet``.

    A file that is already in the contents adds nothing. A time of an unsteady device gets that outcome, as in a store.
    With `replaces`, earlier attempts at the file's variants and problems go: a kernel has changed since.

    Raises
    ------
    StoreError, InvalidInput
        The file holds something else than warm measurements, or picks, of this device.
    """
    if not path.is_file():
        raise InvalidInput("paths", str(path), "files that exist")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest in contents.files:
        return contents
    files = contents.files | {digest: path.name}
    if path.name.endswith("picks.parquet"):
        picks = parquet.read(path, parquet.PICKS_SCHEMA)
        _check_device(path, picks, device_id)
        return Contents(contents.attempts, pa.concat_tables([contents.picks, picks]), contents.clocks, files)
    rows = refuse_unsteady_rows(parquet.read(path, parquet.SCHEMA))
    _check_device(path, rows, device_id)
    if pc.any(pc.not_equal(rows["l2"], str(L2State.WARM)), min_count=0).as_py():
        raise InvalidInput("l2", "cold", f"warm, in every row of {path}")
    clocks = rows.filter(pc.equal(rows["outcome"], str(Outcome.MEASURED)))["clock_end_mhz"].drop_null()
    counted = {row["values"]: row["counts"] for row in pc.value_counts(clocks).to_pylist()}
    new = parquet.to_attempts(rows, path.stem)
    earlier = _without(contents.attempts, new) if replaces else contents.attempts
    return Contents(pa.concat_tables([earlier, new]), contents.picks, contents.clocks + Counter(counted), files)


def _without(attempts: pa.Table, new: pa.Table) -> pa.Table:
    """The attempts whose problem and variant no new attempt has."""
    both = pa.concat_tables([attempts, new])
    _, problems = parquet.distinct_problems(both)
    variants = pc.dictionary_encode(both["variant"].combine_chunks()).indices.to_numpy()
    pairs = problems.astype(np.int64) << 32 | variants
    return attempts.filter(pa.array(~np.isin(pairs[: len(attempts)], pairs[len(attempts) :])))


def attempts_in(path: Path) -> pa.Table:
    """The attempts in a Parquet file, in a folder of them, or in a shipped table, in `data.parquet.ATTEMPTS`.

    Parameters
    ----------
    path : Path
        A table may be named without its suffix: ``data/timings/nvidia-h200``. A path with nothing there has none.

    Raises
    ------
    StoreError
    """
    table = path.with_name(path.name + SUFFIX)
    if path.suffix == SUFFIX or table.is_file():
        return attempts_of(ShippedTable(path if path.suffix == SUFFIX else table))
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    files = [file for file in files if not file.name.endswith("picks.parquet")]
    rows = {file.stem: refuse_unsteady_rows(parquet.read(file, parquet.SCHEMA)) for file in files}
    tables = [parquet.to_attempts(table, stem) for stem, table in rows.items()]
    return pa.concat_tables([parquet.ATTEMPTS.empty_table(), *tables])


def _check_device(path: Path, table: pa.Table, device_id: str) -> None:
    for text in pc.unique(pc.cast(table["device"], pa.string())).to_pylist():
        if (other_id := Device.from_json(text).id) != device_id:
            raise InvalidInput("device", other_id, f"{device_id}, in every row of {path}")


def write(contents: Contents, path: Path, device_id: str) -> int:
    """Write a table whole or not at all; returns its size in bytes.

    Raises
    ------
    InvalidInput
        There are no attempts.
    """
    if not contents.attempts.num_rows:
        raise InvalidInput("paths", "nothing", "files with measurements")
    packed = _Packed(contents, device_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        save_file(packed.tensors(), unfinished, metadata={"card": json.dumps(packed.card(), separators=(",", ":"))})
        ShippedTable(unfinished)
        unfinished.chmod(0o644)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path.stat().st_size


class _Packed:
    """Columns as indices into sorted lists."""

    def __init__(self, contents: Contents, device_id: str) -> None:
        self._contents, self._device_id = contents, device_id
        attempts, picks = contents.attempts, contents.picks
        self._variants = sorted({*_values(attempts["variant"]), *_values(picks["variant"])})
        self._plans = ["{}", *sorted({*_values(attempts["plan"]), *_values(picks["plan"])} - {"{}"})]
        self._pick_sources = sorted(_values(picks["source"]))
        self._devices = _devices(attempts, picks)
        named = [parquet.distinct_problems(table) for table in (attempts, picks)]
        distinct = {problem for problems, _ in named for problem in problems}
        self._keys = [problem.key for problem in sorted(distinct, key=_likeness)]
        place = {key: code for code, key in enumerate(self._keys)}
        self._problem, self._picked = (
            np.array([place[problem.key] for problem in problems], np.int64)[codes] for problems, codes in named
        )
        self._run_list, self._run, self._picks_run = self._runs()
        self._reasons, self._reason, self._numbers = _reasons(attempts)

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays of the file, each as bytes."""
        blocks = self._blocks()
        n_problems = len(self._keys)
        is_measured = pc.equal(self._contents.attempts["outcome"], str(Outcome.MEASURED)).to_numpy()
        counts = [np.bincount(rows, minlength=n_problems) for rows in (self._problem, self._problem[is_measured])]
        picks = self._contents.picks
        picked = [
            self._picked,
            _places(picks["source"], self._pick_sources),
            _places(picks["variant"], self._variants),
            _places(picks["plan"], self._plans),
            self._picks_run,
        ]
        contents = {
            "keys": compress_text("\n".join(self._keys)),
            "counts": compress(np.stack(counts).astype(np.uint32)),
            "block_ends": compress(np.cumsum([len(block) for block in blocks]).astype(np.uint32)),
            "blocks": b"".join(blocks),
            "plans": compress_text(json.dumps(self._plans)),
            "picks": compress(np.stack(picked).astype(np.int32)),
        }
        return {name: np.frombuffer(content, np.uint8) for name, content in contents.items()}

    def card(self) -> dict[str, Any]:
        """The fields that `data.shipped.Card` reads."""
        return {
            "format": FORMAT,
            "n_problems": len(self._keys),
            "n_attempts": len(self._problem),
            "n_plans": len(self._plans),
            "n_picks": len(self._picked),
            "device_id": self._device_id,
            "devices": [asdict(Device.from_json(text)) for text in self._devices],
            "variants": self._variants,
            "reasons": [{"outcome": outcome, "detail": detail} for outcome, detail in self._reasons],
            "runs": [{"id": name, "source": source, "device": device} for name, source, device in self._run_list],
            "pick_sources": self._pick_sources,
            "clocks": {str(clock): count for clock, count in sorted(self._contents.clocks.items())},
            "files": dict(sorted(self._contents.files.items(), key=lambda item: item[1])),
        }

    def _runs(self) -> tuple[list[tuple[str, str, int]], np.ndarray, np.ndarray]:
        """Every run with its source and device index, and the run index of each attempt and of each pick."""
        attempts, picks = self._contents.attempts, self._contents.picks
        names = sorted({*_values(attempts["run_id"]), *_values(picks["run_id"])})
        sources = sorted({*_values(attempts["source"]), ""})
        shape = (len(names), len(sources), len(self._devices))
        of_attempts, of_picks = (
            np.ravel_multi_index(
                (_places(table["run_id"], names), source, _places(_strings(table["device"]), self._devices)), shape
            )
            for table, source in (
                (attempts, _places(attempts["source"], sources)),
                (picks, np.full(picks.num_rows, sources.index(""))),
            )
        )
        used = np.unique(np.concatenate([of_attempts, of_picks]))
        places = zip(*(axis.tolist() for axis in np.unravel_index(used, shape)), strict=True)
        runs = [(names[name], sources[source], device) for name, source, device in places]
        return runs, np.searchsorted(used, of_attempts), np.searchsorted(used, of_picks)

    def _blocks(self) -> list[bytes]:
        attempts = self._contents.attempts
        variant = _places(attempts["variant"], self._variants)
        at_us = pc.cast(attempts["measured_at"], pa.int64()).to_numpy()
        order = np.lexsort((at_us, variant, self._problem))
        columns = {
            "variant": variant,
            "reason": self._reason,
            "run": self._run,
            "at_s": at_us // 1_000_000,
            "n_samples": attempts["n_samples"].to_numpy(),
            "time_ms": _floats(attempts["time_ms"]),
            "noise": _floats(attempts["noise"]),
            "max_error": _floats(attempts["max_error"]),
            "workspace_bytes": pc.fill_null(attempts["workspace_bytes"], -1).to_numpy(),
            "plan": _places(attempts["plan"], self._plans),
        }
        columns = {name: values[order] for name, values in columns.items()}
        numbers = [self._numbers[row] for row in order.tolist()]
        edges = np.arange(0, len(self._keys) + BLOCK_PROBLEMS, BLOCK_PROBLEMS)
        ends = np.searchsorted(self._problem[order], edges).tolist()
        whole = Block(**columns, numbers=numbers)
        return [encode(whole.rows(start, stop)) for start, stop in pairwise(ends)]


def _likeness(problem: ConvProblem) -> tuple[object, ...]:
    """Sort key that puts problems next to each other that were tried with the same variants, with similar outcomes."""
    shape = (problem.groups > 1, problem.r, problem.s, problem.c, problem.k, problem.h, problem.w, problem.n)
    return (problem.dtype, problem.layout, *shape, problem.key)


def _reasons(attempts: pa.Table) -> tuple[list[tuple[str, str]], np.ndarray, list[str]]:
    """Every outcome with its words, the index of each attempt's among them, and the numbers in its gaps."""
    pairs = pc.binary_join_element_wise(attempts["outcome"], attempts["detail"], "\n")
    texts = _values(pairs)
    shapes = [_NUMBER.sub(GAP, text) for text in texts]
    n_texts = Counter(shapes)
    shared = [shape if n_texts[shape] > _MANY_DETAILS else text for shape, text in zip(shapes, texts, strict=True)]
    numbers = [
        " ".join(_NUMBER.findall(text)) if GAP in reason else "" for text, reason in zip(texts, shared, strict=True)
    ]
    reasons = sorted(set(shared))
    place = {reason: code for code, reason in enumerate(reasons)}
    row = _places(pairs, texts)
    reason_of = np.array([place[reason] for reason in shared], np.int64)[row]
    outcomes = [(outcome, detail) for outcome, _, detail in (reason.partition("\n") for reason in reasons)]
    return outcomes, reason_of, [numbers[code] for code in row.tolist()]


def _devices(attempts: pa.Table, picks: pa.Table) -> list[str]:
    """The fingerprints as JSON; the one measured last is last."""
    last = attempts.select(["device", "measured_at"]).set_column(0, "device", _strings(attempts["device"]))
    newest = last.group_by("device").aggregate([("measured_at", "max")]).sort_by("measured_at_max")
    texts: list[str] = newest["device"].to_pylist()
    return [*sorted({*_values(_strings(picks["device"]))} - {*texts}), *texts]


def _problem_columns(shipped: ShippedTable, places: np.ndarray) -> dict[str, pa.Array]:
    codes, columns = pa.array(places), {}
    rows = [to_columns(problem) for problem in shipped.problems()]
    for place, name in enumerate(COLUMNS):
        kind = parquet.SCHEMA.field(name).type
        columns[name] = pa.array([row[place] for row in rows], kind).take(codes)
    return columns


def _device_column(shipped: ShippedTable, run: np.ndarray) -> pa.DictionaryArray:
    devices = np.array([run_entry.device for run_entry in shipped.card.runs], np.int32)
    texts = pa.array([device.json for device in shipped.card.devices])
    return pa.DictionaryArray.from_arrays(pa.array(devices[run]), texts)


def _details(shipped: ShippedTable, reason: np.ndarray, numbers: Sequence[str]) -> pa.Array:
    """The words of every attempt: without numbers by reason, with numbers one by one."""
    details = np.array([reason_entry.detail for reason_entry in shipped.card.reasons], dtype=object)[reason]
    for row in np.flatnonzero([bool(line) for line in numbers]).tolist():
        details[row] = shipped.detail(int(reason[row]), numbers[row])
    return pa.array(details, pa.string())


def _pick(values: Sequence[str], places: np.ndarray) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(places))


def _values(column: pa.ChunkedArray) -> list[str]:
    values: list[str] = pc.unique(column).to_pylist()
    return values


def _places(column: pa.ChunkedArray, values: Sequence[str]) -> np.ndarray:
    places: np.ndarray = pc.index_in(column, value_set=pa.array(values, pa.string())).to_numpy()
    return places


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    values: np.ndarray = pc.fill_null(column, np.nan).to_numpy()
    return values


def _strings(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string())
