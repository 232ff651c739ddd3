"""What a plan says that the convolutions of a network take, against what they take on the GPU that it is made for.

Each layer is run by the variant that the plan names, with what follows it where the plan counts that, and each
conversion between layouts by a kernel of Inductor's; medians, device time of replayed graphs, warm. Asked: within 7 %
in the median over networks, 15 % at worst. Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.networks.cells import BATCHES, NETWORKS, PRECISIONS, Cell, cells

if TYPE_CHECKING:
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.kernels.runner import Runner
    from conv_advisor.models.planning.plan import Plan


@dataclass(frozen=True)
class Row:
    """One network in one precision at one batch, as planned and as measured.

    Parameters
    ----------
    cell : Cell
    planned_ms, measured_ms : float
        Of convolutions and conversions, without layers that failed.
    n_layers : int
        Convolutions.
    n_known : int
        Convolutions whose times the plan took from measurements of this device.
    n_counted : int
        Convolutions whose times include what follows them.
    failed : tuple of str
        Layers that did not run as planned, and why.
    """

    cell: Cell
    planned_ms: float
    measured_ms: float
    n_layers: int
    n_known: int
    n_counted: int
    failed: tuple[str, ...] = ()

    @property
    def off(self) -> float:
        """The plan's time over the measured one, less one."""
        return self.planned_ms / self.measured_ms - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan and measure until the time is up, and print the table."""
    chosen = _parser().parse_args(arguments)
    if chosen.report:
        print(report(_read(json.loads(chosen.report.read_text(encoding="utf-8")))))
        return 0
    batches = [int(n) for n in chosen.batches.split(",")]
    todo = cells(chosen.networks.split(","), chosen.precisions.split(","), batches)
    rows: list[Row] = []
    for row in _run(todo, chosen.time_limit):
        rows.append(row)
        print(f"{row.cell}: {row.off:+.1%}", flush=True)
        if chosen.output:
            chosen.output.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print(report(rows))
    return 0


def report(rows: Iterable[Row]) -> str:
    """A line a cell, then how far off the plans are."""
    lines = [
        "| | planned, ms | measured, ms | off | layers | with known times | with what follows |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    offs = []
    for row in rows:
        name = f"{row.cell.network}, {row.cell.precision}, batch {row.cell.batch}"
        times = f"{row.planned_ms:.3f} | {row.measured_ms:.3f} | {row.off:+.1%}"
        lines.append(f"| {name} | {times} | {row.n_layers} | {row.n_known} | {row.n_counted} |")
        lines += [f"| {name}: {failure} | | | | | | |" for failure in row.failed]
        offs.append(abs(row.off))
    if offs:
        lines += ["", f"off by {median(offs):.1%} in the median (asked 7 %), by {max(offs):.1%} at worst (asked 15 %)"]
    return "\n".join(lines)


def compare(cell: Cell, plan: Plan, layers_ms: Mapping[ConvProblem, float | str], conversions_ms: float) -> Row:
    """A plan beside what was measured of it.

    Parameters
    ----------
    cell : Cell
    plan : Plan
    layers_ms : mapping of ConvProblem to float or str
        The time of each layer's problem, or why there is none.
    conversions_ms : float
        All of them.
    """
    planned_ms, measured_ms, failed = plan.conversions_ms, conversions_ms, []
    for layer in plan.layers:
        taken = layers_ms[layer.problem]
        if isinstance(taken, str):
            failed.append(f"{layer.problem.short} by {layer.advice.variant}: {taken}")
            continue
        planned_ms += layer.total_ms
        measured_ms += layer.count * taken
    n_known = sum(layer.count for layer in plan.layers if layer.advice.best.source == "measured")
    n_counted = sum(layer.count for layer in plan.layers if not layer.advice.uncounted)
    return Row(cell, planned_ms, measured_ms, plan.n_convolutions, n_known, n_counted, tuple(failed))


def _run(todo: Iterable[Cell], time_limit_s: float) -> Iterator[Row]:
    from conv_advisor.kernels.bench import open_runner

    begin, runner = time.monotonic(), open_runner("cuda:0")
    for cell in todo:
        if time.monotonic() - begin > time_limit_s:
            print(f"the time is up before {cell}")
            return
        yield _row(cell, runner)


def _row(cell: Cell, runner: Runner) -> Row:
    import torch

    from benchmarks.networks.running import images, network_of, set_precision
    from conv_advisor.torch import plan as plan_of

    set_precision(cell)
    with torch.no_grad():
        plan = plan_of(network_of(cell), images(cell), device=runner.device.id)
    shapes = dict(_shapes(plan))
    conversions_ms = sum(
        _conversion_ms(shapes[conversion.tensor], images(cell).dtype, conversion.to.value)
        if conversion.tensor in shapes
        else conversion.time_ms  # between operators that are no convolutions: Inductor lets one of them do it
        for conversion in plan.conversions
    )
    return compare(cell, plan, dict(_layers_ms(runner, plan)), conversions_ms)


def _layers_ms(runner: Runner, plan: Plan) -> Iterator[tuple[ConvProblem, float | str]]:
    from conv_advisor.kernels.bench import measure
    from conv_advisor.kernels.catalog import VARIANTS

    for layer in plan.layers:
        counted = layer.problem.plain if layer.advice.uncounted else layer.problem
        (measurement,) = measure(runner, counted, [VARIANTS[layer.advice.variant]])
        yield layer.problem, measurement.time_ms or f"{measurement.outcome.value}: {measurement.detail}"


def _shapes(plan: Plan) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """The tensors that convolutions read and write, by name."""
    for operator in plan.network.convolutions:
        problem = operator.problem
        if problem is not None:
            yield from ((name, (problem.n, problem.c, problem.h, problem.w)) for name in operator.reads[:1])
            yield from ((name, (problem.n, problem.k, problem.p, problem.q)) for name in operator.writes)


def _conversion_ms(shape: tuple[int, int, int, int], dtype: Any, to: str) -> float:
    """Time of a conversion by Inductor's kernel, as in a compiled graph; PyTorch's own copy is several times slower."""
    import torch

    from benchmarks.networks.running import replayed_ms

    other = torch.channels_last if to == "nchw" else torch.contiguous_format
    tensor = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=other)
    return replayed_ms(partial(_converter(to), tensor))


@cache
def _converter(to: str) -> Callable[[Any], Any]:
    import torch

    memory_format = torch.contiguous_format if to == "nchw" else torch.channels_last

    def convert(tensor: Any) -> Any:
        return tensor.contiguous(memory_format=memory_format)

    compiled: Callable[[Any], Any] = torch.compile(convert, dynamic=True)  # once for all shapes
    return compiled


def _read(records: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for fields in records:
        yield Row(**(dict(fields) | {"cell": Cell(**fields["cell"]), "failed": tuple(fields["failed"])}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.totals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names of torchvision, divided by commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds; what is missing then is said")
    parser.add_argument("--output", type=Path, help="JSON file of the rows, written after each cell")
    parser.add_argument("--report", type=Path, help="print the table of such a file; needs no GPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
