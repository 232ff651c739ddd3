"""Times of every side for one layer with its epilogue, kept as a line of JSON a layer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.rivals.rows import TUNED, whole_lines
from conv_advisor.data.problem import ConvProblem

OURS: Final = "ours, fused"
CUDNN: Final = "cuDNN, fused"
POOL: Final = "ours and cuDNN"
"""The fastest of all variants, fused or followed by a kernel of its own."""
PLAIN: Final = "ours, plain"
"""The variant of `OURS` on the convolution alone."""
EAGER: Final = TUNED
EAGER_PLAIN: Final = f"{TUNED}, plain"
"""PyTorch's convolution alone: `EAGER` less this is what its elementwise kernels take."""
COMPILED: Final = "pytorch.compile"
AUTOTUNED: Final = "pytorch.max_autotune"

CHOSEN: Final = (OURS, CUDNN, POOL)
"""Sides for which a variant is chosen, on a pass of its own."""
SIDES: Final = (*CHOSEN, PLAIN, EAGER, EAGER_PLAIN, COMPILED, AUTOTUNED)


@dataclass(frozen=True)
class Timed:
    """What one side takes on the pass that is reported.

    Parameters
    ----------
    samples_ms : tuple of float
        At least one.
    variant, plan : str
        What runs; empty for PyTorch, which does not say.
    chosen_ms : float or None
        The variant's time on the pass that chose it.
    is_captured : bool
        Whether it is the time of replayed graphs; else host time may be in it.
    """

    samples_ms: tuple[float, ...]
    variant: str = ""
    plan: str = ""
    chosen_ms: float | None = None
    is_captured: bool = True


@dataclass(frozen=True)
class Row:
    """One layer.

    Parameters
    ----------
    problem : ConvProblem
    timed : dict of str to Timed
        By side, one of `SIDES`; a side with nothing that runs is missing.
    failures : dict of str to str
        What failed and how, by variant, mode of PyTorch or side.
    tried_ms : dict of str to float
        By variant, the time of its fastest plan on the pass that chose: few samples, but of all that ran.
    refused : tuple of str
        Variants that a library refused by every plan, though their rules allow the layer.
    networks : str
        Names of the networks that have the layer, separated by blanks.
    device, software : str
        Id of the device, and versions of what ran.
    """

    problem: ConvProblem
    timed: dict[str, Timed] = field(default_factory=dict, hash=False)
    failures: dict[str, str] = field(default_factory=dict, hash=False)
    tried_ms: dict[str, float] = field(default_factory=dict, hash=False)
    refused: tuple[str, ...] = ()
    networks: str = ""
    device: str = ""
    software: str = ""

    @property
    def column(self) -> tuple[str, str]:
        """Its line in the tables."""
        return str(self.problem.dtype), str(self.problem.layout)

    def time_ms(self, *sides: str) -> float | None:
        """Median time of the fastest of these sides; None where none of them has one."""
        return min((median(self.timed[side].samples_ms) for side in sides if side in self.timed), default=None)


def append(row: Row, path: Path) -> None:
    """Add a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(_record(row))}\n")


def write(rows: Iterable[Row], path: Path) -> None:
    """Replace the lines of a file by these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text("".join(f"{json.dumps(_record(row))}\n" for row in rows), encoding="utf-8")
    unfinished.replace(path)


def read(path: Path) -> list[Row]:
    """The rows of a file, without a last line that a killed run left unfinished."""
    return [_row(json.loads(line)) for line in whole_lines(path)]


def merge(parts: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of several runs; the last row of a layer counts."""
    return list({row.problem: row for part in parts for row in part}.values())


def _record(row: Row) -> dict[str, Any]:
    problem = row.problem
    return {"layer": problem.short, "dtype": problem.dtype, "layout": problem.layout} | {
        name: value for name, value in asdict(row).items() if name != "problem"
    }


def _row(record: dict[str, Any]) -> Row:
    problem = ConvProblem.parse(record.pop("layer"), dtype=record.pop("dtype"), layout=record.pop("layout"))
    timed = {
        side: Timed(**entry | {"samples_ms": tuple(entry["samples_ms"])}) for side, entry in record.pop("timed").items()
    }
    return Row(problem, timed, refused=tuple(record.pop("refused", ())), **record)
