"""What is run, in which order, and what the rows say: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from math import exp, log
from typing import Any, Final

from conv_advisor.data.problem import ConvProblem

NETWORKS: Final = (
    *("resnet50", "squeezenet1_1", "vgg19", "googlenet", "densenet121"),
    *("efficientnet_b0", "mobilenet_v3_large", "regnet_x_3_2gf"),
)
"""By their names in torchvision."""
UNSEEN: Final = ("latent_decoder", "unet", "convnext_tiny")
"""Nothing was tuned on these; the first two are of `benchmarks.networks.unseen`."""
PRECISIONS: Final = ("float32", "float16", "tf32", "bfloat16")
BATCHES: Final = (1, 32)
PEERS: Final = ("eager", "benchmark", "compile", "max-autotune")
"""PyTorch's modes; ours is compared to the fastest of those that ran."""
OURS: Final = "ours"
ALL: Final = "all"
"""Ours, with every variant of the ranking measured: measuring the first few is compared to it."""
GIVEN: Final = "given"
"""Ours, with every convolution in the layout that the network has: choosing layouts is compared to it."""


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
        From ``torch.compile`` to the first answer, in files of runs in which nothing else was compiled meanwhile.
    error, torch_error : float
        max |y − y64| / max |y64| of ours, and of eager PyTorch, over the images compared.
    replaced, fused, convolutions : int
        Layers that ours runs by a variant, those of them that end with what follows, and all.
    device : str
        The GPU, and PyTorch's version.
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
    fused: int = 0
    convolutions: int = 0
    device: str = ""
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

    @property
    def slowdown(self) -> float | None:
        """How many times as long ours takes as with every variant measured; None where either is missing."""
        return self.device_ms[OURS] / self.device_ms[ALL] if {OURS, ALL} <= self.device_ms.keys() else None

    @property
    def wall_gain(self) -> float | None:
        """How many times as fast a call of ours is as one of PyTorch's fastest mode, by wall time."""
        ran = [self.wall_ms[peer] for peer in PEERS if peer in self.wall_ms]
        return min(ran) / self.wall_ms[OURS] if ran and OURS in self.wall_ms else None


def layers_of(outcomes: Sequence[str]) -> dict[str, int]:
    """How many layers run by a variant, how many of those end with what follows, and how many there are.

    Parameters
    ----------
    outcomes : sequence of str
        What our backend says of each layer: ``conv1: <key of its problem> by <variant> …``.
    """
    parts = [outcome.partition(" by ") for outcome in outcomes]
    replaced = [named.rpartition(": ")[2] for named, _, by in parts if by.startswith(("cuda.", "cudnn."))]
    ending = [key for key in replaced if ConvProblem.parse(key.rsplit("-", 2)[0]).epilogue]
    return {"replaced": len(replaced), "fused": len(ending), "convolutions": len(outcomes)}


def cells(networks: Sequence[str], precisions: Sequence[str], batches: Sequence[int]) -> Iterator[Cell]:
    """Every cell, whole columns of the table one after the other: a time limit cuts off the last ones."""
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
    by_column: dict[str, list[Row]] = {}
    for row in rows:
        on = f" on {row.device}" if row.device else ""
        by_column.setdefault(f"{row.cell.precision}, batch {row.cell.batch}{on}", []).append(row)
    parts = [_column(name, column) for name, column in by_column.items()]
    lines = [
        "| | networks | geometric mean over the best PyTorch mode | least | on the wall, mean | least |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, column in by_column.items():
        gains = [row.gain for row in column if row.gain is not None]
        walls = [row.wall_gain for row in column if row.wall_gain is not None]
        if gains:
            lines.append(f"| {name} | {len(gains)} | {_mean_and_least(gains)} | {_mean_and_least(walls)} |")
    return "\n\n".join([*parts, "\n".join(lines)])


def _mean_and_least(gains: Sequence[float]) -> str:
    mean = exp(sum(map(log, gains)) / len(gains)) if gains else None
    return f"{_number(mean, 3)} | {_number(min(gains, default=None), 3)}"


def _column(name: str, rows: Sequence[Row]) -> str:
    modes = [mode for mode in (*PEERS, GIVEN, OURS) if any(mode in row.device_ms for row in rows)]
    has_all = any(row.slowdown is not None for row in rows)
    walls = [mode for mode in (*PEERS, GIVEN, OURS) if any(mode in row.wall_ms for row in rows)]
    has_first = any(row.first_call_s for row in rows)
    head = [
        "",
        *(f"{mode}, ms" for mode in modes),
        "best PyTorch ÷ ours",
        *(["ours ÷ all measured"] if has_all else []),
        *(f"{mode}, wall ms" for mode in walls),
        *(["first call, s"] if has_first else []),
        "error ÷ PyTorch's",
        "layers, fused",
    ]
    lines = [name, "", f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for row in rows:
        times = [_number(row.device_ms.get(mode), 3) for mode in modes]
        waits = [_number(row.wall_ms.get(mode), 2) for mode in walls]
        error = row.error / row.torch_error if row.error is not None and row.torch_error else None
        layers = f"{row.replaced} of {row.convolutions}, {row.fused}"
        first = [_number(row.first_call_s.get(OURS), 1)] if has_first else []
        rest = [*first, _number(error, 2), layers]
        gains = [_number(row.gain, 3), *([_number(row.slowdown, 3)] if has_all else [])]
        lines.append(f"| {' | '.join([row.cell.network, *times, *gains, *waits, *rest])} |")
    failed = [f"{row.cell.network}, {mode}: {why}" for row in rows for mode, why in row.failures.items()]
    return "\n".join([*lines, *([""] if failed else []), *failed])


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
