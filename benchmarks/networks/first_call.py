"""The first call of a network in a new process: eager, and by ours with nothing kept and with what that kept.

Each is a process of its own, whose model is on the GPU before the clock starts. Ours with a kept plan is asked to
take at most 1.2 times what eager takes. Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.networks.cells import Cell

WAYS: Final = (
    *("eager", "compile"),
    *("backend", "backend, kept"),
    *("backend without Inductor", "backend without Inductor, kept"),
    *("optimize", "optimize, kept"),
)
"""In this order: what is kept comes from the one before."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a way; in a process of its own, take one time."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.first_call",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("network", nargs="?", default="resnet50")
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, help="take one time, in this process")
    parser.add_argument("--plan-file", help="of that one time")
    chosen = parser.parse_args(arguments)
    cell = Cell(chosen.network, chosen.precision, chosen.batch)
    if chosen.way:
        print(json.dumps(first_call_s(cell, chosen.way, chosen.plan_file)))
        return 0
    with TemporaryDirectory() as folder:
        for line in table(cell, lambda way: _in_a_process(cell, way, Path(folder))):
            print(line, flush=True)
    return 0


def table(cell: Cell, take: Callable[[str], float]) -> Iterator[str]:
    """The lines of a table: seconds, and times those of eager."""
    yield f"{cell.network}, {cell.precision}, batch {cell.batch}\n\n| | first call, s | ÷ eager |\n| --- | --- | --- |"
    eager_s = 0.0
    for way in WAYS:
        taken_s = take(way)
        eager_s = eager_s or taken_s
        yield f"| {way} | {taken_s:.2f} | {taken_s / eager_s:.2f} |"


def first_call_s(cell: Cell, way: str, plan_file: str | None) -> float:
    """Seconds from having a model on the GPU to its first answer."""
    import torch

    from benchmarks.networks.running import images, network_of, set_precision

    set_precision(cell)
    network, x = network_of(cell), images(cell)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.no_grad():
        _callable(network, x, way, plan_file)(x)
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _callable(network: Any, x: Any, way: str, plan_file: str | None) -> Callable[..., Any]:
    import torch

    if way == "eager":
        return network  # type: ignore[no-any-return]  # PyTorch is not followed
    if way == "compile":
        return torch.compile(network)  # type: ignore[no-any-return]  # PyTorch is not followed
    import conv_advisor.torch

    if way.startswith("optimize"):
        conv_advisor.torch.optimize(network, x, plan_file=plan_file)
        return network  # type: ignore[no-any-return]  # PyTorch is not followed
    options = {"plan_file": plan_file, "inductor": "without" not in way}
    compiled: Callable[..., Any] = torch.compile(network, backend=conv_advisor.torch.backend, options=options)
    return compiled


def _in_a_process(cell: Cell, way: str, folder: Path) -> float:
    plan_file = folder / f"{way.partition(',')[0]}.json"
    command = [sys.executable, "-m", "benchmarks.networks.first_call", cell.network, "--precision", cell.precision]
    command += ["--batch", str(cell.batch), "--way", way, "--plan-file", str(plan_file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - itself
    return float(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
