"""What batch norms and activations ahead of convolutions take: the most that loading through them could save.

Pre-activation networks have a batch norm and a ReLU in front of a convolution, where neither folds into it. By our
backend Inductor computes them in the kernel that also concatenates (DenseNet) or adds (ResNetV2). Each network is
timed as it is and without them, by replayed graphs in turns; what it loses is their whole cost. Needs a GPU, PyTorch,
torchvision, and timm for ResNetV2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from benchmarks.networks.cells import Cell
from benchmarks.networks.running import images, network_of, replayed_ms, set_precision
from conv_advisor.torch import backend

_AHEAD: Final = {"densenet121": ("norm1", "relu1", "norm", "relu"), "resnetv2_50": ("norm1",)}
"""The modules that stand ahead of a convolution, by their names within a block, a transition or a layer."""
_OF_TIMM: Final = ("resnetv2_50",)
_ROUNDS: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each network, precision and batch."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.ahead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", default=",".join(_AHEAD), help=f"of {', '.join(_AHEAD)} (default: all)")
    parser.add_argument("--precisions", default="float16,float32")
    parser.add_argument("--batches", default="1,32")
    chosen = parser.parse_args(arguments)
    print(f"On {torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n")
    print("| network | precision | batch | as it is, ms | without them, ms | their share |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for network in chosen.networks.split(","):
        for precision in chosen.precisions.split(","):
            for batch in map(int, chosen.batches.split(",")):
                whole, without = _times(Cell(network, precision, batch))
                share = f"{100 * (1 - without / whole):.1f} %"
                print(f"| {network} | {precision} | {batch} | {whole:.3f} | {without:.3f} | {share} |", flush=True)
    return 0


def _times(cell: Cell) -> tuple[float, float]:
    """Milliseconds of one call of the whole network, and without what stands ahead: the least of the rounds."""
    set_precision(cell)
    x = images(cell)
    calls = [_compiled(cell, x, is_bare=is_bare) for is_bare in (False, True)]
    rounds = [[replayed_ms(call) for call in calls] for _ in range(_ROUNDS)]
    whole, without = (min(times) for times in zip(*rounds, strict=True))
    return whole, without


def _compiled(cell: Cell, x: Any, *, is_bare: bool) -> Callable[[], Any]:
    torch._dynamo.reset()
    network = _timms(cell) if cell.network in _OF_TIMM else network_of(cell)
    if is_bare:
        _remove(network, _AHEAD[cell.network])
    compiled = torch.compile(network, backend=backend, options={"graphs": True})

    def call() -> Any:
        with torch.inference_mode():
            return compiled(x)

    call()
    return call


def _timms(cell: Cell) -> Any:
    import timm

    torch.manual_seed(0)
    with torch.device("cuda"):
        network = timm.create_model(cell.network, pretrained=False)
    dtype = torch.float16 if cell.precision == "float16" else torch.float32
    return network.eval().to(dtype, memory_format=torch.channels_last if cell.is_nhwc else torch.contiguous_format)


def _remove(network: nn.Module, names: Sequence[str]) -> None:
    """Put nothing in the place of modules of these names that stand ahead of a convolution."""
    for module in list(network.modules()):
        children = dict(module.named_children())
        if any(isinstance(child, nn.Conv2d) for child in children.values()):
            for name in names:
                if name in children:
                    setattr(module, name, nn.Identity())


if __name__ == "__main__":
    raise SystemExit(main())
