"""Serial against parallel, and direct, GEMM, FFT and Winograd against each other, on the local CPU.

The experiments are those of the parallel-processing study of direct, FFT and Winograd convolution (Univ. of Oregon
2019), one table each. Run it as ``python -m benchmarks.cpu``; what ``--output`` writes, ``python -m benchmarks.plots``
holds against a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from conv_advisor.data.measurement import Measurement
from conv_advisor.data.networks import problems
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.bench import BenchOptions, measure, open_runner
from conv_advisor.kernels.cpu.plans import fft_size
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cpu.variants import VARIANTS
from conv_advisor.kernels.stopping import StopRule
from conv_advisor.kernels.variant import Algorithm, Variant

EXPERIMENTS: Final = {
    "input-layers": "Input layers: an RGB image, one filter (Table 1, Figures 3 to 5)",
    "feature-layers": "Feature layers: 16x16, 3x3 (Table 2)",
    "filter-sweep": "Filter sweep: one 512x512 plane (Table 3)",
}
SLOWEST_FLOPS_PER_SECOND: Final = 5e9
"""What even an unfavourable shape reaches on one core; estimates err on the long side."""
QUICK_FLOPS: Final = 1e9
LEAST_WIDTH: Final = 132
"""A console of fewer columns would break the text of cells."""

Cell = tuple[ConvProblem, str]


@dataclass(frozen=True)
class CpuTimes:
    """What a CPU took for the experiments.

    Parameters
    ----------
    name : str
    cores : int
        Those that the parallel variants ran on.
    time_ms : mapping of (problem, variant) to float
    """

    name: str
    cores: int
    time_ms: Mapping[Cell, float]


def main() -> None:
    """Measure every experiment, print its table, and write the times where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only small problems, and few samples")
    parser.add_argument("--max-seconds", type=float, default=10, help="skip what would take longer (default 10)")
    parser.add_argument("--output", type=Path, help="write the median times to this JSON file")
    arguments = parser.parse_args()
    every: dict[Cell, Measurement] = {}
    console = Console(width=max(Console().width, LEAST_WIDTH))
    for experiment, title in EXPERIMENTS.items():
        chosen = [p for p in problems(experiment) if not arguments.quick or p.flops <= QUICK_FLOPS]
        stop = StopRule(max_samples=5) if arguments.quick else StopRule(budget_ms=1000)
        measured = _measure(chosen, BenchOptions(stop=stop, prune_factor=inf), arguments.max_seconds)
        console.print(_table(title, chosen, measured, arguments.max_seconds))
        if experiment == "filter-sweep":
            console.print(_takeovers(chosen, measured))
        every |= measured
    if arguments.output:
        write(arguments.output, every)


def write(file: Path, measured: Mapping[Cell, Measurement]) -> None:
    """Keep the times; what was not timed is left out."""
    device = next(iter(measured.values())).device
    times = [
        {"layer": problem.short, "variant": variant, "time_ms": measurement.time_ms}
        for (problem, variant), measurement in measured.items()
        if measurement.time_ms is not None
    ]
    file.write_text(json.dumps({"cpu": device.name, "cores": available_cores(), "times": times}, indent=1) + "\n")


def read(file: Path) -> CpuTimes:
    """What `write` has written."""
    content = json.loads(file.read_text())
    times = {(ConvProblem.parse(timing["layer"]), timing["variant"]): timing["time_ms"] for timing in content["times"]}
    return CpuTimes(content["cpu"], content["cores"], times)


def estimated_seconds(variant: Variant, problem: ConvProblem) -> float:
    """How long one run may take, from its operations alone."""
    operations = float(problem.flops)
    if variant.algorithm is Algorithm.FFT:
        height, width = fft_size(problem)
        planes = problem.n * problem.c + problem.c * problem.k + problem.k * problem.n
        products = problem.n * problem.c * problem.k
        operations = height * width * (5 * log2(height * width) * planes + 4 * products)
    return operations / SLOWEST_FLOPS_PER_SECOND


def _measure(chosen: Sequence[ConvProblem], options: BenchOptions, max_seconds: float) -> dict[Cell, Measurement]:
    runner = open_runner("cpu")
    measured = {}
    for problem in chosen:
        short_enough = [variant for variant in VARIANTS if estimated_seconds(variant, problem) <= max_seconds]
        for measurement in measure(runner, problem, short_enough, options=options):
            measured[problem, measurement.variant] = measurement
    return measured


def _table(title: str, chosen: Sequence[ConvProblem], measured: dict[Cell, Measurement], max_seconds: float) -> Table:
    table = Table(title=title, caption="median ms of one run: serial | parallel | serial / parallel")
    table.add_column("layer", no_wrap=True)
    serial = [variant for variant in VARIANTS if not variant.id.endswith("_parallel")]
    for variant in serial:
        table.add_column(variant.algorithm, justify="right")
    for problem in chosen:
        cells = []
        for variant in serial:
            if (problem, variant.id) in measured:
                cells.append(_cell(measured[problem, variant.id], measured[problem, f"{variant.id}_parallel"]))
            else:
                estimate = estimated_seconds(variant, problem)
                cells.append(f"skipped: up to {estimate:.0f} s, the limit is {max_seconds:g} s")
        table.add_row(problem.short, *cells)
    return table


def _cell(serial: Measurement, parallel: Measurement) -> str:
    if serial.time_ms is None or parallel.time_ms is None:
        return serial.detail or parallel.detail
    return f"{serial.time_ms:.3f} | {parallel.time_ms:.3f} | {serial.time_ms / parallel.time_ms:.2f}x"


def _takeovers(chosen: Sequence[ConvProblem], measured: dict[Cell, Measurement]) -> str:
    def time_ms(problem: ConvProblem, variant: str) -> float:
        measurement = measured.get((problem, variant))
        return inf if measurement is None or measurement.time_ms is None else measurement.time_ms

    def is_fft_ahead(suffix: str) -> Callable[[ConvProblem], bool]:
        return lambda problem: time_ms(problem, f"cpu.fft{suffix}") < time_ms(problem, f"cpu.direct{suffix}")

    lines = []
    for name, suffix in (("serial", ""), ("parallel", "_parallel")):
        ahead = [problem for problem in chosen if is_fft_ahead(suffix)(problem)]
        first = next((p for p in chosen if set(chosen[chosen.index(p) :]) <= set(ahead)), None)
        lines.append(f"{name}: FFT takes over from direct " + (f"at {first.r}x{first.s}" if first else "nowhere"))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
