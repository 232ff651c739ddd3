"""What a plan of ResNet-50 costs in CPU time once the model is read: advice, layouts, and all of it.

Run it as ``python -m benchmarks.planning``; it needs no GPU. The package onnx has such a model, without weights.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.advice.local import Local
from conv_advisor.app.plans.onnx_network import network_of
from conv_advisor.app.plans.planning import plan_network
from conv_advisor.app.plans.reading import read_outline
from conv_advisor.app.settings import load_settings
from conv_advisor.data.extras import require
from conv_advisor.data.problem import DType

MOST_MS: Final = 50.0
"""A plan of ResNet-50 takes at most so long."""
DEVICE: Final = "nvidia-h200"


def main(arguments: Sequence[str] | None = None) -> int:
    """Time, and print a line for each precision; the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.planning", description=__doc__)
    parser.add_argument("--model", type=Path, help="an ONNX file; default: the ResNet-50 that onnx has for its tests")
    parser.add_argument("--repeats", type=int, default=20)
    chosen = parser.parse_args(arguments)
    body = (chosen.model or light_resnet50()).read_bytes()
    began = time.perf_counter()
    outline = read_outline(body, batch=32)
    print(f"read in {time.perf_counter() - began:.2f} s, of another process")
    with tempfile.TemporaryDirectory() as home:
        local = Local(load_settings(home=Path(home)))
        limits = Limits(DEVICE, local.settings.workspace_limit_bytes, is_deterministic=False)
        for dtype in DType:
            network_ms = _cpu_ms(partial(network_of, outline, "ResNet-50", dtype), chosen.repeats)
            network = network_of(outline, "ResNet-50", dtype)
            plan_ms = _cpu_ms(partial(plan_network, local, network, limits), chosen.repeats)
            total_ms = network_ms + plan_ms
            text = f"{len(network.convolutions)} convolutions, {network_ms:.1f} + {plan_ms:.1f} ms"
            print(f"{dtype}: {text}, wanted at most {MOST_MS:.0f}: {'yes' if total_ms <= MOST_MS else 'no'}")
    return 0


def light_resnet50() -> Path:
    """The model that onnx has for its tests, whose weights are a number each."""
    require("onnx")
    import onnx

    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"


def _cpu_ms(act: Callable[[], object], repeats: int) -> float:
    """The median CPU time, the first time left aside."""
    act()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        act()
        times.append((time.process_time() - began) * 1e3)
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
