"""Where the host's time of one call of a compiled network goes, layer by layer while the network runs.

A layer that is called again and again finds everything in place; in a network others come between. So each call of a
variant, of a library's function and of a Triton kernel is timed where it stands, by PyTorch's compiler alone and by
ours. The clock costs some 0.2 µs a call. Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

from benchmarks.networks.cells import PRECISIONS, Cell

_CALLS: Final = 60
Spent = dict[str, list[float]]
"""Seconds of each call, by what was called."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for PyTorch's compiler, and one for ours."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.shares",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("network", nargs="?", default="resnet50", help="a name of benchmarks.networks")
    parser.add_argument("--dtype", default="float16", choices=PRECISIONS)
    parser.add_argument("--batch", type=int, default=32)
    chosen = parser.parse_args(arguments)
    cell = Cell(chosen.network, chosen.dtype, chosen.batch)
    import torch

    from benchmarks.networks.running import images, network_of, outcomes, quieten, set_precision
    from conv_advisor.torch import backend

    set_precision(cell)
    network, x = network_of(cell), images(cell)
    with torch.no_grad(), TemporaryDirectory() as folder:
        with outcomes() as messages:
            ours = torch.compile(network, backend=backend, options={"plan_file": f"{folder}/plans.json"})
            ours(x)
        compiled = torch.compile(network)
        compiled(x)
        quieten()
        for name, call in (("ours", ours), ("compile", compiled)):
            print(f"{name}, {cell.network} {cell.precision} batch {cell.batch}\n")
            print("\n".join(table(*measured(partial(call, x), variants_of(messages)))), "\n", flush=True)
    return 0


def variants_of(outcomes: Sequence[str]) -> dict[str, str]:
    """The variant of each plan, from what our backend says of layers."""
    parts = [outcome.partition(" by ") for outcome in outcomes]
    return {named.rpartition(": ")[2]: by.partition(",")[0] for named, _, by in parts}


def measured(call: Callable[[], Any], variants: dict[str, str]) -> tuple[float, Spent]:
    """Seconds of the host for a call, and those of everything that `_CALLS` calls called."""
    import torch

    for _ in range(10):
        call()
    torch.cuda.synchronize()
    plain_s = median(_host_s(call) for _ in range(_CALLS))
    spent: Spent = {}
    with _watched(spent, variants):
        for _ in range(_CALLS):
            _host_s(call)
    return plain_s, spent


def _host_s(call: Callable[[], Any]) -> float:
    import torch

    begin = time.perf_counter()
    call()
    taken_s = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken_s


@contextmanager
def _watched(spent: Spent, variants: dict[str, str]) -> Iterator[None]:
    """Time, meanwhile, what a compiled network calls."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import extern_kernels

    from conv_advisor.torch.calls.loaded import LOADED
    from conv_advisor.torch.calls.running import Prepared
    from conv_advisor.torch.graph.refreshing import Foldings
    from conv_advisor.torch.operators.lowering import NAME

    names = {id(run): variants.get(plan, plan) for (plan, *_), run in LOADED.items()}
    with ExitStack() as patches:
        for owner, attribute, name in (
            (Prepared, "run_here", lambda run, *_: names.get(id(run), "?")),
            (CachingAutotuner, "run", lambda *_: "Triton"),
            (Foldings, "update", lambda *_: "weights looked at"),
        ):
            patches.enter_context(patch.object(owner, attribute, _timed(getattr(owner, attribute), name, spent)))
        for attribute, function in list(vars(extern_kernels).items()):
            if callable(function) and attribute != NAME:
                timed = _timed(function, lambda *_, name=attribute: f"extern_kernels.{name}", spent)
                patches.enter_context(patch.object(extern_kernels, attribute, timed))
        yield


def _timed(function: Callable[..., Any], name: Callable[..., str], spent: Spent) -> Callable[..., Any]:
    def timed(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = function(*arguments, **options)
        spent.setdefault(name(*arguments), []).append(time.perf_counter() - begin)
        return result

    return timed


def table(plain_s: float, spent: Spent) -> list[str]:
    """Lines: what was called, how often in one call of the network, microseconds each, and milliseconds of all."""
    lines = ["| | calls | µs, median | µs, most | ms of a call |", "| --- | --- | --- | --- | --- |"]
    known_ms = 0.0
    for name, seconds in sorted(spent.items(), key=lambda item: -sum(item[1])):
        # The mean of the middle half: an interrupted call must not count for all.
        middle = sorted(seconds)[len(seconds) // 4 : -(len(seconds) // 4) or None]
        count = len(seconds) / _CALLS
        all_ms = 1e3 * count * sum(middle) / len(middle)
        known_ms += all_ms
        per_call = f"{1e6 * median(seconds):.1f} | {1e6 * sorted(seconds)[int(0.99 * len(seconds))]:.1f}"
        lines.append(f"| {name} | {count:.0f} | {per_call} | {all_ms:.3f} |")
    lines.append(f"| all else | | | | {1e3 * plain_s - known_ms:.3f} |")
    lines.append(f"| a call, unwatched | | | | {1e3 * plain_s:.3f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
