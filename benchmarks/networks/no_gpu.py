"""What a layer of ours costs the host, without a GPU: all but the driver, in whose place a C function does nothing.

CPU time of a call, the least of several rounds in which all take turns: by PyTorch's dispatcher, as a graph calls it
that Inductor did not compile; by the function that one calls which it did; and the parts of that. The plain
convolution by a module that `optimize` swapped, and by the operator, which that calls where others are told of it. On a
GPU the driver's own work comes beside it, 2 to 3 µs (`python -m benchmarks.networks.host`). Then what each call of
ResNet-50 takes to see that the weights which batch norms went into are as they were. Needs PyTorch and CuPy.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from conv_advisor.data.problem import ConvProblem

_ROUNDS: Final = 7
_CALLS: Final = 4_000
_LAYER: Final = "14-1-3-256-128-bias-residual-relu"
_FOLDED: Final = 53
"""Convolutions of ResNet-50, each with a batch norm."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a way."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.no_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layer", default=_LAYER, help=f"in short form (default {_LAYER})")
    chosen = parser.parse_args(arguments)
    problem = ConvProblem.parse(chosen.layer, dtype="float16", layout="nhwc")
    with _ways(problem) as ways:
        times = least_us(ways)
    print(f"{problem.key}, CPU time of a call without the driver\n\n| | µs |\n| --- | --- |")
    for name, taken_us in times.items():
        print(f"| {name} | {taken_us:.2f} |")
    print(f"\n{_FOLDED} batch norms, CPU time of a call\n\n| | µs |\n| --- | --- |")
    for name, taken_us in least_us(_looks(_FOLDED), _CALLS // 10).items():
        print(f"| {name} | {taken_us:.2f} |")
    return 0


def _looks(layers: int) -> dict[str, Callable[[], Any]]:
    """Calls of a compiled graph that does nothing itself, with its weights watched and not."""
    import torch

    from conv_advisor.torch.graph.constants import Given
    from conv_advisor.torch.graph.refreshing import Folded, Foldings
    from conv_advisor.torch.graph.scaling import Filters

    weights = [torch.zeros(8, 8, 1, 1) if place % 5 == 0 else torch.zeros(8) for place in range(5 * layers)]
    folded = []
    for first in range(1, len(weights), 5):
        weight, mean, variance, scale, shift = (Given(first + place) for place in range(5))
        filters = Filters(weight, None).shifted(mean, -1).scaled(variance).scaled(scale).shifted(shift)
        assert filters.bias is not None  # noqa: S101 - it was shifted
        folded.append(Folded(((torch.zeros(8, 8, 1, 1), filters.weight), (torch.zeros(8), filters.bias))))
    foldings, inputs = Foldings(folded), (torch.zeros(1), *weights)
    calls = {
        name: foldings.around(lambda *_: None, watch=watch, repeats=True)
        for name, watch in (("weights watched", True), ("not watched", False))
    }
    return {name: partial(call, *inputs) for name, call in calls.items()}


def least_us(ways: Mapping[str, Callable[[], Any]], calls: int = _CALLS) -> dict[str, float]:
    """Microseconds of CPU time of a call, by name."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):
        for name, call in ways.items():
            begin = time.process_time()
            for _ in range(calls):
                call()
            least[name] = min(least[name], 1e6 * (time.process_time() - begin) / calls)
    return least


@contextmanager
def _ways(problem: ConvProblem) -> Iterator[dict[str, Callable[[], Any]]]:
    """Ways to call one layer, on a CPU that stands in for a GPU."""
    import torch

    from conv_advisor.kernels.addresses import ASKED
    from conv_advisor.kernels.cuda.parts import launching
    from conv_advisor.torch import modules
    from conv_advisor.torch.calls.checking import Operands
    from conv_advisor.torch.calls.loaded import LOADED
    from conv_advisor.torch.calls.running import Prepared
    from conv_advisor.torch.operators import conv2d as operator
    from conv_advisor.torch.operators import conv2d_ending as ending_operator
    from conv_advisor.torch.operators.lowering import convolve_into

    nothing: Any = ctypes.CDLL(None).pthread_testcancel
    nothing.restype, nothing.argtypes = None, (ctypes.c_void_p,) * 4
    kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=1))
    start = launching.prepare_start(kernel, (8, 1, 1), 128, 0, range(16), overlaps=True)
    run = Prepared(problem, launching.launch_of(start, problem.epilogue), torch.device("cpu"))
    operands = Operands(problem, "cpu")
    y = torch.empty_like(operands.own())
    ends = [end for end in operands.ends if end is not None]
    inputs, key = (operands.x, operands.weight, *ends), problem.key
    bias, residual = operands.ends or (None, None)
    rest = ([1, 1], [1, 1], [1, 1], 1, problem.epilogue.activation.value, key)
    call, conv2d = ending_operator.conv2d_ending, operator.conv2d
    with (
        torch.library._scoped_library("conv_advisor", "IMPL") as library,
        patch.object(launching, "_driver", lambda: SimpleNamespace(cuLaunchKernelEx=nothing)),
        patch.object(torch._C, "_cuda_getCurrentRawStream", lambda _device: 0, create=True),
        patch.object(torch.cuda, "current_device", lambda: None),
        patch.object(modules, "LEAST_DEVICE", -1),
        patch.dict(LOADED, {(key, operands.x.shape, -1): run}),
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        library.impl("conv2d_v1", operator._on_cuda, "CPU", allow_override=True)
        library.impl(ending_operator.NAME, ending_operator._on_cuda, "CPU", allow_override=True)
        addresses = [tensor.data_ptr() for tensor in (operands.x, operands.weight, y, *ends)]

        def launch() -> None:
            ASKED.stream = 0
            start(*addresses)

        plain = problem.plain
        alone = Prepared(plain, launching.launch_of(start, plain.epilogue), torch.device("cpu"))
        LOADED[plain.key, operands.x.shape, -1] = alone
        yield {
            "by the dispatcher": lambda: call(operands.x, operands.weight, bias, residual, *rest),
            "by the function": lambda: convolve_into(*inputs, plan=key, out=y),
            "of it, by the variant": lambda: run.run_here(*inputs[:2], y, *ends),
            "of that, the launch": launch,
            "alone, by a swapped module": partial(_swapped(plain, operands.weight, operands.x), operands.x),
            "alone, by the dispatcher": lambda: conv2d(*inputs[:2], *rest[:4], plain.key),
        }


def _swapped(problem: ConvProblem, weight: Any, x: Any) -> Any:
    """A module without a bias that runs by the plan of a problem."""
    import torch

    from conv_advisor.torch.modules import advise_module, kind_of

    places = {"stride": (problem.stride_h, problem.stride_w), "padding": (problem.pad_h, problem.pad_w)}
    module = torch.nn.Conv2d(problem.c, problem.k, (problem.r, problem.s), bias=False, **places).eval()
    module.weight = torch.nn.Parameter(weight)
    advise_module(module, {kind_of(module.weight, x): problem.key})
    return module


if __name__ == "__main__":
    sys.exit(main())
