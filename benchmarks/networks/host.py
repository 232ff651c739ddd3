"""What a compiled network costs the host: a call by PyTorch's modes and by ours, a layer by each kind of variant.

Where the host is slower than the GPU, a call without CUDA graphs takes what the host takes. Printed are, taken in turns
on the same weights and images: wall time of a call, waited for; the host's part, until the call returns; the device's
part, by a replayed graph. Then microseconds of the host for one layer, by what runs it, PyTorch's own convolution
beside it; then where the host's time of a call goes (cProfile, which slows small functions most: an order, no times).

Needs a GPU, PyTorch and torchvision, which this project does not install.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.networks.cells import OURS, PRECISIONS, Cell

_LAYER_CALLS: Final = 200
_PROFILED: Final = 20
_SHOWN: Final = 25
_FIRST_FILES: Final = (
    r"^(backend|gpu|timing|checking|running|candidates|folding|graph|runner|legacy|compile_fx|aot_autograd|convert_frame"
    r"|lowering|scheduler|async_compile|triton_heuristics|conv|graphs|__init__)\.py|built-in method torch|conv2d",
)
"""Functions that are shown of a first call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all of it for one network."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("network", nargs="?", default="resnet50", help="a name of benchmarks.networks")
    parser.add_argument("--dtype", default="float16", choices=PRECISIONS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--no-profile", action="store_true", help="leave out where the time of a call goes")
    parser.add_argument("--first", action="store_true", help="where the time of the first call goes, and nothing else")
    chosen = parser.parse_args(arguments)
    cell = Cell(chosen.network, chosen.dtype, chosen.batch)
    import torch

    with torch.no_grad(), TemporaryDirectory() as folder:
        if chosen.first:
            print(profile_of_first(cell, f"{folder}/plans.json"))
        else:
            measure(cell, f"{folder}/plans.json", is_profiled=not chosen.no_profile)
    return 0


def profile_of_first(cell: Cell, plan_file: str) -> str:
    """Where the main thread's time goes from ``torch.compile`` to the first answer, in our functions and PyTorch's.

    Other threads compile kernels meanwhile; the line that begins "prepared" says how long that took.
    """
    import torch

    from benchmarks.networks.running import images, network_of, outcomes, set_precision
    from conv_advisor.torch import backend

    set_precision(cell)
    network, x = network_of(cell), images(cell)
    torch.cuda.synchronize()
    profile, begin = cProfile.Profile(), time.perf_counter()
    with outcomes(), profile:
        torch.compile(network, backend=backend, options={"plan_file": plan_file})(x)
        torch.cuda.synchronize()
    taken_s, text = time.perf_counter() - begin, io.StringIO()
    stats = pstats.Stats(profile, stream=text).strip_dirs().sort_stats("cumulative")
    stats.print_stats(*_FIRST_FILES, 60)
    return f"{cell.network} {cell.precision} batch {cell.batch}: {taken_s:.1f} s under cProfile\n{text.getvalue()}"


def measure(cell: Cell, plan_file: str, *, is_profiled: bool) -> None:
    """Compile a network both ways and print what it costs the host."""
    import torch

    from benchmarks.networks.running import (
        images,
        in_turns,
        network_of,
        outcomes,
        quieten,
        replayed_ms,
        set_precision,
    )
    from conv_advisor.torch import backend

    set_precision(cell)
    network, x = network_of(cell), images(cell)
    with outcomes() as messages:
        begin = time.perf_counter()
        ours = torch.compile(network, backend=backend, options={"plan_file": plan_file})
        ours(x)
        torch.cuda.synchronize()
        first_s = time.perf_counter() - begin
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: network(x), OURS: lambda: ours(x)}
    compiled = torch.compile(network)
    compiled(x)
    calls["compile"] = lambda: compiled(x)
    quieten()
    device = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    print(f"{cell.network} {cell.precision} batch {cell.batch}, {device}")
    print(f"first call of ours {first_s:.1f} s\n")
    times = in_turns(calls, torch.cuda.synchronize)
    print("| | wall ms | host ms | device ms |\n| --- | --- | --- | --- |")
    for name, (wall_ms, host_ms) in times.items():
        print(f"| {name} | {wall_ms:.3f} | {host_ms:.3f} | {replayed_ms(calls[name]):.3f} |")
    print(f"\nwall of compile ÷ ours {times['compile'][0] / times[OURS][0]:.2f}\n", flush=True)
    for line in _by_variant(cell, messages):
        print(line, flush=True)
    if is_profiled:
        print(_profile(calls[OURS]))


def _by_variant(cell: Cell, outcomes: Sequence[str]) -> list[str]:
    """Lines of a table: layers that a variant runs, and the host's time for one."""
    variants: dict[str, tuple[str, int]] = {}
    for outcome in outcomes:
        named, _, by = outcome.partition(" by ")
        key = named.rpartition(": ")[2]
        if by.startswith(("cuda.", "cudnn.")):
            variants[key] = (by.partition(",")[0], variants.get(key, ("", 0))[1] + 1)
    taken: dict[str, list[tuple[float, float, int]]] = {}
    for key, (variant, count) in variants.items():
        run_us, own_us = _layer_us(cell, key)
        taken.setdefault(variant, []).append((run_us, own_us, count))
    lines = ["| | layers | host us, median | most | PyTorch's own convolution |", "| --- | --- | --- | --- | --- |"]
    for variant, rows in sorted(taken.items()):
        ours = [run_us for run_us, _, _ in rows]
        own = median(own_us for _, own_us, _ in rows)
        layers = sum(count for _, _, count in rows)
        lines.append(f"| {variant} | {layers} | {median(ours):.1f} | {max(ours):.1f} | {own:.1f} |")
    return [*lines, ""]


def _layer_us(cell: Cell, key: str) -> tuple[float, float]:
    """The host's time for one layer as a compiled graph calls it, and for PyTorch's own convolution alone."""
    import torch

    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.torch.calls.checking import Operands
    from conv_advisor.torch.operators.lowering import convolve_into

    short, dtype, layout = key.rsplit("-", 2)
    problem = ConvProblem.parse(short, dtype=dtype, layout=layout)
    operands = Operands(problem, "cuda")
    y = torch.empty_like(operands.own())
    inputs = (operands.x, operands.weight, *(end for end in operands.ends if end is not None))
    geometry = ([problem.stride_h, problem.stride_w], [problem.pad_h, problem.pad_w])
    rest = (*geometry, [problem.dilation_h, problem.dilation_w], False, [0, 0], problem.groups)
    convolution = torch.ops.aten.convolution.default
    return (
        _host_us(lambda: convolve_into(*inputs, plan=key, out=y)),
        _host_us(lambda: convolution(operands.x, operands.weight, None, *rest)),
    )


def _host_us(call: Callable[[], Any]) -> float:
    """Microseconds until a call returns, timed over a few at a time: a full queue would make the host wait."""
    import torch

    few, samples = 10, []
    for _ in range(_LAYER_CALLS // few):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(few):
            call()
        samples.append((time.perf_counter() - begin) / few)
    torch.cuda.synchronize()
    return 1e6 * median(samples)


def _profile(call: Callable[[], Any]) -> str:
    import torch

    profile = cProfile.Profile()
    for _ in range(_PROFILED):
        profile.enable()
        call()
        profile.disable()
        torch.cuda.synchronize()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(_SHOWN)
    return f"cProfile of {_PROFILED} calls of ours\n{text.getvalue()}"


if __name__ == "__main__":
    sys.exit(main())
