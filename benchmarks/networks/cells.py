"""What is run, in which order, and what the rows say: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from math import exp, log
from typing import Any, Final

NETWORKS: Final = (
    *("resnet50", "squeezenet1_1", "vgg19", "googlenet", "densenet121"),
    *("efficientnet_b0", "mobilenet_v3_large", "regnet_x_3_2gf"),
)
"""By their names in torchvision."""
PRECISIONS: Final = ("float32", "float16", "tf32", "bfloat16")
BATCHES: Final = (1, 32)
PEERS: Final = ("eager", "benchmark", "compile", "max-autotune")
"""PyTorch's modes; the fastest of those that ran is what ours is held against."""
OURS: Final = "ours"


@dataclass(frozen=True)
class Cell:
    """One network in one precision at one batch."""

    network: str
    precision: str
    batch: int

    @property
    def is_nhwc(self) -> bool:
        """Whether it runs in channels last: in half precision."""
        return self.precision in ("float16", "bfloat16")


@dataclass(frozen=True)
class Row:
    """What one cell gave; times by mode.

    Parameters
    ----------
    cell : Cell
    device_ms : dict
        Median device time of a replayed graph of one call.
    wall_ms : dict
        Median wall time of one call from Python, waited for.
    first_call_s : dict
        From ``torch.compile`` to the first answer.
    error, torch_error : float
        max |y − y64| / max |y64| of ours, and of eager PyTorch, over the images compared.
    replaced, convolutions : int
        Layers that ours runs by a variant, and all.
    failures : dict
        What went wrong, by mode.
    """

    cell: Cell
    device_ms: dict[str, float] = field(default_factory=dict)
    wall_ms: dict[str, float] = field(default_factory=dict)
    first_call_s: dict[str, float] = field(default_factory=dict)
    error: float | None = None
    torch_error: float | None = None
    replaced: int = 0
    convolutions: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All fields, by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Row:
        """Read what `to_json` wrote."""
        return cls(**(dict(fields) | {"cell": Cell(**fields["cell"])}))

    @property
    def best_peer(self) -> str | None:
        """The fastest of PyTorch's modes."""
        ran = {peer: self.device_ms[peer] for peer in PEERS if peer in self.device_ms}
        return min(ran, key=ran.__getitem__, default=None)

    @property
    def gain(self) -> float | None:
        """How many times as fast ours is as the best of PyTorch's modes; None where either is missing."""
        peer = self.best_peer
        return None if peer is None or OURS not in self.device_ms else self.device_ms[peer] / self.device_ms[OURS]


def cells(networks: Sequence[str], precisions: Sequence[str], batches: Sequence[int]) -> Iterator[Cell]:
    """Every cell, whole columns of the table one after the other: what a time limit cuts off are the last ones."""
    for batch, precision in sorted(product(batches, precisions), key=_importance):
        for network in networks:
            yield Cell(network, precision, batch)


def _importance(column: tuple[int, str]) -> tuple[int, int]:
    batch, precision = column
    pairs = (1, "float32"), (1, "float16"), (32, "float32"), (32, "float16")
    return (
        pairs.index(column) if column in pairs else len(pairs),
        batch * len(PRECISIONS) + PRECISIONS.index(precision),
    )


def report(rows: Iterable[Row]) -> str:
    """A table a precision and batch, then the geometric mean and the least gain of each."""
    by_column: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        by_column.setdefault((row.cell.precision, row.cell.batch), []).append(row)
    parts = [_column(precision, batch, column) for (precision, batch), column in by_column.items()]
    lines = ["| | networks | geometric mean over the best PyTorch mode | least |", "| --- | --- | --- | --- |"]
    for (precision, batch), column in by_column.items():
        gains = [row.gain for row in column if row.gain is not None]
        if gains:
            mean = exp(sum(map(log, gains)) / len(gains))
            lines.append(f"| {precision}, batch {batch} | {len(gains)} | {mean:.3f} | {min(gains):.3f} |")
    return "\n\n".join([*parts, "\n".join(lines)])


def _column(precision: str, batch: int, rows: Sequence[Row]) -> str:
    modes = [mode for mode in (*PEERS, OURS) if any(mode in row.device_ms for row in rows)]
    head = [
        "",
        *(f"{mode}, ms" for mode in modes),
        "best PyTorch ÷ ours",
        "first call, s",
        "error ÷ PyTorch's",
        "layers",
    ]
    lines = [f"{precision}, batch {batch}", "", f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for row in rows:
        times = [f"{row.device_ms[mode]:.3f}" if mode in row.device_ms else "–" for mode in modes]
        gain = "–" if row.gain is None else f"{row.gain:.3f}"
        first = f"{row.first_call_s[OURS]:.1f}" if OURS in row.first_call_s else "–"
        error = "–" if row.error is None or not row.torch_error else f"{row.error / row.torch_error:.2f}"
        layers = f"{row.replaced} of {row.convolutions}"
        lines.append(f"| {' | '.join([row.cell.network, *times, gain, first, error, layers])} |")
    failed = [f"{row.cell.network}, {mode}: {why}" for row in rows for mode, why in row.failures.items()]
    return "\n".join([*lines, *([""] if failed else []), *failed])
