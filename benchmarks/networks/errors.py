"""How far networks are from float64, ours and compiled PyTorch over eager PyTorch, over draws of weights and images.

One draw says little of a network that ends in an average: there PyTorch's errors may cancel by chance, or ours. So a
network is compiled once, and each draw gives it new weights, which are folded again, and new images. The first draw is
that of ``python -m benchmarks.networks``. Beside the errors stand mean biases, which a mean over pixels does not
cancel. Compiled PyTorch tells what Inductor adds around the convolutions. Needs a GPU, PyTorch and torchvision.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import mean
from typing import NamedTuple

import torch

from benchmarks.networks.cells import OURS, PRECISIONS, Cell
from benchmarks.networks.running import bias_of, error_of, images, in_float64, network_of, set_precision
from conv_advisor.torch import backend


class _Off(NamedTuple):
    error: float
    bias: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each network and batch."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.errors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", default="squeezenet1_1,resnet50")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--draws", type=int, default=16)
    chosen = parser.parse_args(arguments)
    print(f"On {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {chosen.precision}, {chosen.draws} draws\n")
    print("| network | batch | | error | over eager's | least | most | the first | bias |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for network in chosen.networks.split(","):
        for batch in map(int, chosen.batches.split(",")):
            draws = list(_draws(Cell(network, chosen.precision, batch), chosen.draws))
            for side in (OURS, "compile", "eager"):
                errors, biases = zip(*(draw[side] for draw in draws), strict=True)
                ratios = [draw[side].error / draw["eager"].error for draw in draws]
                spread = f"{_geometric(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} | {ratios[0]:.2f}"
                figures = f"{_geometric(errors):.1e} | {spread} | {mean(biases):+.1e}"
                print(f"| {network} | {batch} | {side} | {figures} |", flush=True)
    return 0


def _draws(cell: Cell, count: int) -> Iterator[dict[str, _Off]]:
    """How far each side is off, for each draw."""
    set_precision(cell)
    torch._dynamo.reset()
    network, x = network_of(cell), images(cell)
    calls = {OURS: torch.compile(network, backend=backend), "compile": torch.compile(network), "eager": network}
    with torch.no_grad():
        for draw in range(count):
            if draw:
                network.load_state_dict(network_of(cell, seed=draw).state_dict())
                x = images(cell, seed=draw)
            y64 = in_float64(copy.deepcopy(network), x)
            outputs = {side: call(x) for side, call in calls.items()}
            yield {side: _Off(error_of(y, y64), bias_of(y, y64)) for side, y in outputs.items()}


def _geometric(values: Sequence[float]) -> float:
    return exp(mean(map(log, values)))


if __name__ == "__main__":
    raise SystemExit(main())
