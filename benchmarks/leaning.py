"""Error and bias of our float32 and tf32 kernels on tensor cores, against float64 and beside PyTorch's own.

    python -m benchmarks.leaning [--dtype tf32] [--device cuda:0] [--layers 55-1-1-64-16 13-1-3-192-48]

Errors of either sign cancel from layer to layer and in averages over pixels; a bias accumulates. The bias (in the
code, leaning) is the signed error of all compared outputs together, relative to the sum of their magnitudes. Below
zero, errors are towards zero, as those of sums that tensor cores truncate. It needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean
from typing import Any, Final

import numpy as np

from benchmarks.rivals.pytorch import Peer, open_peer
from benchmarks.rivals.rows import DEFAULT
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import catalog, reference
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.comparison import max_error
from conv_advisor.kernels.runner import Operands, Runner
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Variant

LAYERS: Final = tuple(
    ConvProblem.parse(layer, layout=layout)
    for layer in (
        *(
            "56-32-1-64-256",
            "28-32-1-512-128",
            "14-32-1-1024-256",
            "7-32-1-512-2048",
            "55-1-1-16-64",
            "13-1-1-512-1000",
        ),
        *("56-32-3-64-64", "28-32-3-128-128", "14-32-3-256-256", "7-32-3-512-512", "14-1-3-512-512", "56-1-3-256-256"),
        *("28-32-5-16-32", "14-32-5-32-128", "27-1-5-96-256", "7-1-5-48-128"),
        *("56-32-3-128-128-groups32", "28-1-3-256-256-groups2", "14-32-3-512-512-groups8"),
    )
    for layout in ("nchw", "nhwc")
)
"""Layers of networks that classify, in batches of 1 and 32."""
FIRST_LAYERS: Final = tuple(
    ConvProblem.parse(layer, layout="nhwc")
    for layer in ("224-1-3-64-3", "224-8-3-32-3-stride2", "224-8-7-64-3-stride2", "224-4-11-64-3-stride4-pad2")
)
"""First layers of the same networks."""
VARIANTS: Final = {
    "cuda.pointwise": LAYERS,
    "cuda.implicit_gemm": LAYERS,
    "cuda.grouped": LAYERS,
    "cuda.implicit_gemm_tma": LAYERS,
    "cuda.few_inputs": FIRST_LAYERS,
    "cuda.winograd_nonfused_4x4_3x3": LAYERS,
    "cuda.winograd_nonfused_4x4_5x5": LAYERS,
    "cuda.implicit_gemm_nhwc": LAYERS,
    "cuda.implicit_gemm_transposed": LAYERS,
    "cudnn.implicit_precomp_gemm_tc": LAYERS,
}
"""Variants that use tensor cores in float32 or tf32, and the layers on which they are compared."""


@dataclass(frozen=True)
class Distance:
    """How far compared outputs are from float64.

    Parameters
    ----------
    error : float
        max |y - y64| / max |y64|.
    leaning : float
        sum (y - y64) sign(y64) / sum |y64|.
    """

    error: float
    leaning: float


def distance(y: np.ndarray, expected: np.ndarray) -> Distance:
    """The distance of outputs from float64 ones."""
    leaning = ((y - expected) * np.sign(expected)).sum() / np.abs(expected).sum()
    return Distance(max_error(y, expected), float(leaning))


def distances(
    runner: Runner, peer: Peer, variant: Variant, layers: Iterable[ConvProblem], dtype: DType = DType.FLOAT32
) -> list[tuple[Distance, Distance]]:
    """How far a variant and the peer are off, for each layer that the variant computes."""
    pairs = []
    for layer in layers:
        problem = replace(layer, dtype=dtype)
        if variant.why_not(problem, runner.device):
            continue
        operands = runner.make_operands(problem, seed=0)
        launch = runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
        runner.first_run(problem, launch, operands)
        ours = _distance(runner, problem, operands)
        peer.call(problem, operands, DEFAULT)
        pairs.append((ours, _distance(runner, problem, operands)))
        del operands, launch
        runner.release()
        peer.release()
    return pairs


def _distance(runner: Runner, problem: ConvProblem, operands: Operands) -> Distance:
    y: Any = runner.download(problem, operands)
    return distance(reference.take(problem, y, operands.outputs).astype(np.float64), operands.reference)


def row(name: str, pairs: list[tuple[Distance, Distance]]) -> str:
    """A line of the table: geometric means of errors, means of biases."""
    cells = [name, str(len(pairs))]
    for side in zip(*pairs, strict=True):
        cells += [f"{exp(fmean(log(off.error) for off in side)):.1e}", f"{fmean(off.leaning for off in side):+.0e}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "tf32"), default="float32", help="(default: %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="(default: %(default)s)")
    parser.add_argument("--layers", nargs="+", metavar="LAYER", help="a line for each of these, in both layouts")
    chosen = parser.parse_args()
    device = chosen.device
    runner = open_runner(device)
    peer = open_peer(runner, device)
    print(f"{runner.device.name}; {peer.version}")
    print("| variant | layers | error | bias | PyTorch's error | its bias |\n|---|---|---|---|---|---|")
    for name, id_, layers in _lines(chosen.layers):
        if pairs := distances(runner, peer, catalog.get(id_), layers, DType(chosen.dtype)):
            print(row(name, pairs), flush=True)


def _lines(names: Iterable[str] | None) -> Iterator[tuple[str, str, Iterable[ConvProblem]]]:
    """What each line is called, its variant, and its layers: one of those named, or all of the variant's."""
    for id_, layers in VARIANTS.items():
        if names is None:
            yield f"`{id_}`", id_, layers
            continue
        for name in names:
            for layout in ("nchw", "nhwc"):
                yield f"`{id_}` {name}-{layout}", id_, [ConvProblem.parse(name, layout=layout)]


if __name__ == "__main__":
    main()
