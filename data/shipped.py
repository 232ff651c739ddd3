"""The measurements that ship: one table per device, read in place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property, lru_cache
from math import isnan
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from conv_advisor.data.block import Block, decode, decompress, decompress_text
from conv_advisor.data.errors import StoreError
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.summary import Attempt

TIMINGS: Final = Path(__file__).parent / "timings"
SUFFIX: Final = ".safetensors"

FORMAT: Final = 1
"""The version of the tables; a reader refuses any other."""
BLOCK_PROBLEMS: Final = 64
"""Problems of one block: decompressing it takes a fraction of a millisecond."""
GAP: Final = "\0"
"""Stands in a reason's detail for a number that differs from attempt to attempt."""

_BLOCKS_KEPT: Final = 64
_SOUGHT_IN_TEXT: Final = 4
"""Lookups before the index of all problems is built: a command asks for one or two, a server for many."""
_MOST_CARD_BYTES: Final = 2**24
_MOST_TEXT_BYTES: Final = 2**28
_BROKEN: Final = (OSError, ValueError, SafetensorError, msgspec.MsgspecError)


class Reason(msgspec.Struct, frozen=True):
    """The outcome of an attempt and why; `GAP` stands for numbers."""

    outcome: Outcome
    detail: str


class Run(msgspec.Struct, frozen=True):
    """A run of a sweep, the file that it was packed from, and the place of its device among the table's."""

    id: str
    source: str
    device: int


class Format(msgspec.Struct, frozen=True):
    """The format number, which every version of a card has."""

    format: int


class Card(Format, frozen=True):
    """The description of a table, and the lists that its columns point into.

    Parameters
    ----------
    format, n_problems, n_attempts, n_plans, n_picks : int
    device_id : str
    devices : list of Device
        Fingerprints of the one device, in the order they were measured last.
    variants, pick_sources : list of str
    reasons : list of Reason
    runs : list of Run
    clocks : dict of str to int
        SM clock in MHz, and how many times were taken at it.
    files : dict of str to str
        SHA-256 and name of every file that is packed in the table.
    """

    n_problems: int
    n_attempts: int
    n_plans: int
    n_picks: int
    device_id: str
    devices: list[Device]
    variants: list[str]
    reasons: list[Reason]
    runs: list[Run]
    pick_sources: list[str]
    clocks: dict[str, int]
    files: dict[str, str]


class ShippedTable:
    """The measurements of one device, compact: checked when it is opened, decompressed block by block on demand.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    card : Card
    ends : int64 array of shape (P + 1,)
        The attempts at a problem run from its entry to the next.
    n_timed : int64 array of shape (P,)
        How many attempts at each problem were measured.

    Raises
    ------
    StoreError
        From everything; names the file and what is wrong in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: Any = safe_open(path, framework="numpy")
            self._open()
        except _BROKEN as error:
            raise StoreError(f"{path} is no table of measurements: {error}") from error
        self._n_sought = 0
        self._block = lru_cache(_BLOCKS_KEPT)(self._read_block)

    @property
    def device(self) -> Device:
        """The device as it was measured last."""
        return self.card.devices[-1]

    @cached_property
    def keys(self) -> list[str]:
        """The keys of all problems, similar ones next to each other."""
        keys = self._lines[1:-1].split("\n") if self.card.n_problems else []
        if len(set(keys)) != len(keys):
            raise StoreError(f"{self.path} is no table of measurements: a problem is there twice")
        return keys

    @cached_property
    def place(self) -> dict[str, int]:
        """The index of each problem among the keys."""
        return {key: place for place, key in enumerate(self.keys)}

    @property
    def usual_clock_mhz(self) -> float | None:
        """The SM clock that most times were taken at; None where none is known."""
        clocks = self.card.clocks
        return float(max(clocks, key=clocks.__getitem__)) if clocks else None

    @cached_property
    def plans(self) -> list[str]:
        """Every plan, as JSON; the first is none."""
        try:
            plans = msgspec.json.decode(self._text("plans"), type=list[str])
            _require(len(plans) == self.card.n_plans, f"there are {len(plans)}; allowed: {self.card.n_plans}")
        except _BROKEN as error:
            raise StoreError(f"{self.path}: plans: {error}") from error
        return plans

    @cached_property
    def picks(self) -> np.ndarray:
        """What other rules chose: problem, source, variant, plan and run of each, int32 array of shape (5, picks)."""
        card = self.card
        lengths = (card.n_problems, len(card.pick_sources), len(card.variants), card.n_plans, len(card.runs))
        try:
            picks = decompress(self._bytes("picks"), (5, card.n_picks), "<i4")
            is_inside = (picks >= 0) & (picks < np.array(lengths)[:, None])
            _require(bool(is_inside.all()), "a place is beyond its list")
        except _BROKEN as error:
            raise StoreError(f"{self.path}: picks: {error}") from error
        return picks

    def picked(self, key: str) -> dict[str, str]:
        """What other rules chose for one problem: the variant by the rule's name; a rule's last choice counts."""
        place = self._place_of(key)
        if place is None:
            return {}
        problems, rows = self._picks_by_problem
        first, last = np.searchsorted(problems, (place, place + 1)).tolist()
        _, sources, variants, _, _ = self.picks[:, rows[first:last]].tolist()
        card = self.card
        return {
            card.pick_sources[source]: card.variants[variant] for source, variant in zip(sources, variants, strict=True)
        }

    def problems(self) -> list[ConvProblem]:
        """Every problem, in the order of the keys."""
        return list(map(problem_of, self.keys))

    def measured_keys(self) -> list[str]:
        """The keys of the problems on which some variant was timed in full."""
        return [self.keys[place] for place in np.flatnonzero(self.n_timed).tolist()]

    def attempts(self, key: str) -> list[Attempt]:
        """The attempts at one problem, by variant and time; none where it is unknown."""
        place = self._place_of(key)
        if place is None:
            return []
        number = place // BLOCK_PROBLEMS
        start = self.ends[number * BLOCK_PROBLEMS]
        rows = self._block(number).rows(int(self.ends[place] - start), int(self.ends[place + 1] - start))
        return self._attempts(rows)

    def blocks(self) -> Iterator[Block]:
        """Every block, in order."""
        return map(self._read_block, range(len(self._block_ends)))

    def detail(self, reason: int, numbers: str) -> str:
        """The words of a reason, with its numbers in the gaps."""
        head, *tail = self._words[reason]
        return head + "".join(map("".join, zip(numbers.split(" "), tail, strict=True))) if tail else head

    def _place_of(self, key: str) -> int | None:
        """The index of a problem: the first few are searched in the text, which takes a tenth of building the index."""
        self._n_sought += 1
        if self._n_sought > _SOUGHT_IN_TEXT:
            return self.place.get(key)
        start = self._lines.find(f"\n{key}\n") if "\n" not in key else -1
        return None if start < 0 else self._lines.count("\n", 0, start)

    @cached_property
    def _picks_by_problem(self) -> tuple[np.ndarray, np.ndarray]:
        """The problems of the picks in rising order, and the row of each pick."""
        rows = np.argsort(self.picks[0], kind="stable")
        return self.picks[0][rows], rows

    def _attempts(self, rows: Block) -> list[Attempt]:
        card, plans = self.card, self.plans
        columns = (rows.variant, rows.reason, rows.at_s, rows.n_samples, rows.time_ms, rows.noise)
        lists = [column.tolist() for column in (*columns, rows.max_error, rows.workspace_bytes, rows.plan)]
        return [
            Attempt(
                variant=card.variants[variant],
                outcome=card.reasons[reason].outcome,
                time_ms=time_ms if n_samples else None,
                noise=noise if n_samples else None,
                n_samples=n_samples,
                workspace_bytes=workspace_bytes if workspace_bytes >= 0 else None,
                max_error=None if isnan(max_error) else max_error,
                plan=plans[plan],
                detail=self.detail(reason, numbers),
                measured_at_us=at_s * 1_000_000,
            )
            for variant, reason, at_s, n_samples, time_ms, noise, max_error, workspace_bytes, plan, numbers in zip(
                *lists, rows.numbers, strict=True
            )
        ]

    def _read_block(self, number: int) -> Block:
        start = self._block_ends[number - 1] if number else 0
        first, last = number * BLOCK_PROBLEMS, min((number + 1) * BLOCK_PROBLEMS, self.card.n_problems)
        try:
            content = self._file.get_slice("blocks")[int(start) : int(self._block_ends[number])].tobytes()
            block = decode(content, int(self.ends[last] - self.ends[first]))
            self._check_block(block)
        except (ValueError, SafetensorError) as error:
            raise StoreError(f"{self.path}: block {number}: {error}") from error
        return block

    def _check_block(self, block: Block) -> None:
        card = self.card
        lengths = len(card.variants), len(card.reasons), len(card.runs), card.n_plans
        for name, length in zip(("variant", "reason", "run", "plan"), lengths, strict=True):
            most = int(getattr(block, name).max(initial=0))
            _require(most < length, f"{name} is {most}; allowed: below {length}")
        timed = block.time_ms[block.n_samples > 0]
        _require(bool((np.isfinite(timed) & (timed > 0)).all()), "time_ms has a value that is no time")
        n_numbers = [line.count(" ") + bool(line) for line in block.numbers]
        _require(np.array_equal(n_numbers, self._n_gaps[block.reason]), "numbers are not one for each gap of a reason")

    def _open(self) -> None:
        card = self.card = _card_of(self._file.metadata() or {})
        self._words = [reason.detail.split(GAP) for reason in card.reasons]
        self._n_gaps = np.array([len(words) - 1 for words in self._words])
        self._lines = f"\n{self._text('keys')}\n" if card.n_problems else "\n"
        n_problems = self._lines.count("\n") - 1
        _require(n_problems == card.n_problems, f"{n_problems} problems; allowed: {card.n_problems}")
        counts = decompress(self._bytes("counts"), (2, card.n_problems), "<u4").astype(np.int64)
        self.ends, self.n_timed = np.concatenate([[0], np.cumsum(counts[0])]), counts[1]
        _require(self.ends[-1] == card.n_attempts, f"{self.ends[-1]} attempts; allowed: {card.n_attempts}")
        n_blocks = -(-card.n_problems // BLOCK_PROBLEMS)
        self._block_ends = decompress(self._bytes("block_ends"), (n_blocks,), "<u4").astype(np.int64)
        blocks = self._file.get_slice("blocks")
        _require(blocks.get_dtype() == "U8", f"blocks is {blocks.get_dtype()}; allowed: U8")
        (length,) = blocks.get_shape()
        edges = np.concatenate([[0], self._block_ends])
        _require(bool((np.diff(edges) > 0).all()) and edges[-1] == length, "its blocks do not follow each other")

    def _text(self, name: str) -> str:
        return decompress_text(self._bytes(name), _MOST_TEXT_BYTES)

    def _bytes(self, name: str) -> bytes:
        tensor = self._file.get_tensor(name)
        _require(tensor.dtype == np.uint8 and tensor.ndim == 1, f"{name} is {tensor.dtype}; allowed: uint8")
        return bytes(tensor.tobytes())


def problem_of(key: str) -> ConvProblem:
    """The problem that has this key.

    Raises
    ------
    InvalidProblem, InvalidLayerName
    """
    short, dtype, layout = key.rsplit("-", 2)
    return ConvProblem.parse(short, dtype=dtype, layout=layout)


def _card_of(metadata: dict[str, str]) -> Card:
    text = metadata.get("card", "")
    _require(0 < len(text) <= _MOST_CARD_BYTES, f"its card has {len(text)} characters")
    version = msgspec.json.decode(text, type=Format).format
    _require(version == FORMAT, f"its format is {version}; allowed: {FORMAT}")
    card = msgspec.json.decode(text, type=Card)
    for name in ("variants", "pick_sources"):
        values = getattr(card, name)
        _require(len(set(values)) == len(values), f"{name} has a name twice")
    _require({device.id for device in card.devices} == {card.device_id}, f"its devices are not all {card.device_id}")
    _require(all(0 <= run.device < len(card.devices) for run in card.runs), "a run is of no device")
    return card


def _require(is_right: bool, reason: str) -> None:
    if not is_right:
        raise ValueError(reason)


class Shipped:
    """The tables of a folder, each opened on first use.

    Parameters
    ----------
    folder : Path
        Holds ``<device>.safetensors``.

    Raises
    ------
    StoreError
        A table cannot be read.
    """

    def __init__(self, folder: Path = TIMINGS) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}
        self._tables: dict[str, ShippedTable] = {}
        self._lock = threading.Lock()

    @property
    def device_ids(self) -> list[str]:
        """The devices that have a table."""
        return list(self._paths)

    def table(self, device_id: str) -> ShippedTable | None:
        """The table of a device, if it has one."""
        with self._lock:  # or several requests would all open it
            if device_id in self._paths and device_id not in self._tables:
                table = self._tables[device_id] = ShippedTable(self._paths[device_id])
                if table.card.device_id != device_id:
                    raise StoreError(f"{table.path} is of {table.card.device_id}")
            return self._tables.get(device_id)

    def devices(self) -> list[Device]:
        """Every device that has a table, as it was measured last."""
        return [table.device for name in self._paths if (table := self.table(name))]
