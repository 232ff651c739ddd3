"""The first call of a network in a new process: eager, compiled and by ours, with nothing kept and with what that kept.

Each is a process of its own, which has imported PyTorch and us and has the model on the GPU when the clock starts.
What is kept are plans, kernels, and what Inductor compiled, each pair of processes in a folder of its own; whether
Inductor found its graph there is said. Ours with a kept plan is asked to take at most 1.2 times what eager takes.
Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.networks.cells import Cell

WAYS: Final = (
    "eager",
    *("compile", "compile, kept"),
    *("backend", "backend, kept"),
    *("backend without Inductor", "backend without Inductor, kept"),
    *("optimize", "optimize, kept"),
)
"""In this order: each way that is "kept" uses what the one before it kept."""


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
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="all by default")
    parser.add_argument("--way", choices=WAYS, help="take one time, in this process")
    parser.add_argument("--plan-file", help="of that one time")
    chosen = parser.parse_args(arguments)
    cell = Cell(chosen.network, chosen.precision, chosen.batch)
    if chosen.way:
        print(json.dumps(first_call_s(cell, chosen.way, chosen.plan_file)))
        return 0
    with TemporaryDirectory() as folder:
        for line in table(cell, lambda way: _in_a_process(cell, way, Path(folder)), chosen.ways):
            print(line, flush=True)
    return 0


def table(cell: Cell, take: Callable[[str], tuple[float, str]], ways: Sequence[str] = WAYS) -> Iterator[str]:
    """The lines of a table: seconds, and times those of eager, if that comes first."""
    yield f"{cell.network}, {cell.precision}, batch {cell.batch}\n"
    yield "| | first call, s | ÷ eager | Inductor's cache |\n| --- | --- | --- | --- |"
    eager_s = None
    for way in ways:
        taken_s, cache = take(way)
        if way == "eager":
            eager_s = taken_s
        yield f"| {way} | {taken_s:.2f} | {f'{taken_s / eager_s:.2f}' if eager_s else '–'} | {cache} |"


def first_call_s(cell: Cell, way: str, plan_file: str | None) -> tuple[float, str]:
    """Seconds from having a model on the GPU to its first answer, and what Inductor said of its cache."""
    import torch
    from torch._dynamo.utils import counters

    from benchmarks.networks.running import images, network_of, set_precision

    set_precision(cell)
    network, x = network_of(cell), images(cell)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.no_grad():
        _callable(network, x, way, plan_file)(x)
        torch.cuda.synchronize()
    taken_s = time.perf_counter() - begin
    events = [name for kind in ("aot_autograd", "inductor") for name in counters[kind] if "cache" in name]
    return taken_s, ", ".join(events)


def _callable(network: Any, x: Any, way: str, plan_file: str | None) -> Callable[..., Any]:
    import torch

    if way == "eager":
        return network  # type: ignore[no-any-return]  # PyTorch is not followed
    if way.startswith("compile"):
        return torch.compile(network)  # type: ignore[no-any-return]  # PyTorch is not followed
    import conv_advisor.torch

    if way.startswith("optimize"):
        conv_advisor.torch.optimize(network, x, plan_file=plan_file)
        return network  # type: ignore[no-any-return]  # PyTorch is not followed
    options = {"plan_file": plan_file, "inductor": "without" not in way}
    compiled: Callable[..., Any] = torch.compile(network, backend=conv_advisor.torch.backend, options=options)
    return compiled


def _in_a_process(cell: Cell, way: str, folder: Path) -> tuple[float, str]:
    own = folder / way.partition(",")[0].replace(" ", "-")
    command = [sys.executable, "-m", "benchmarks.networks.first_call", cell.network, "--precision", cell.precision]
    command += ["--batch", str(cell.batch), "--way", way, "--plan-file", str(own / "plans.json")]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"), "CUPY_CACHE_DIR": str(own / "cupy")}
    caches["XDG_CACHE_HOME"] = str(own / "cache")
    done = subprocess.run(  # noqa: S603 - itself
        command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | caches
    )
    taken_s, cache = json.loads(done.stdout.splitlines()[-1])
    return float(taken_s), str(cache)


if __name__ == "__main__":
    sys.exit(main())
