"""Which of CUDA's libraries are used: ``python -m deploy.image.libraries``, on a GPU host with the ``cuda`` extra.

Measures every variant and asks for every heuristic on layers of all kinds, then compares what this process has mapped
with what is installed. What no layer maps may be left out of the image: `unused-cuda.txt` says how.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from conv_advisor.data.errors import RunError
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import bench, catalog

LAYERS = ("14-1-3-256-128", "28-8-5-64-32", "7-1-1-832-256", "56-32-3-64-64", "13-2-3-6-4")


def installed() -> set[Path]:
    """NVIDIA's libraries of this environment."""
    spec = importlib.util.find_spec("nvidia")
    folders = (Path(folder) for folder in (spec.submodule_search_locations or ())) if spec else ()
    return {path.resolve() for folder in folders for path in folder.rglob("*.so*")}


def mapped() -> set[Path]:
    """The libraries that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]).resolve() for line in lines if ".so" in line}


def use_everything() -> int:
    """Measure every variant on every layer, precision and memory order; how many attempts that was.

    Raises
    ------
    LaunchFailed
        The context is unusable.
    """
    runner = bench.open_runner("cuda:0")
    variants = list(catalog.for_device_kind("cuda"))
    attempts = 0
    for layer in LAYERS:
        for dtype in DType:
            for layout in Layout:
                problem = ConvProblem.parse(layer, dtype=dtype, layout=layout)
                attempts += len(bench.measure(runner, problem, variants))
                bench.picks(runner, problem)
    return attempts


def main() -> int:
    """Print every library, its bytes, and whether it was mapped."""
    try:
        attempts = use_everything()
    except RunError as error:
        sys.stderr.write(f"not everything was measured: {error}\n")
        return 1
    used = mapped()
    sys.stdout.write(f"{attempts} attempts\n")
    for path in sorted(installed(), key=lambda path: -path.stat().st_size):
        sys.stdout.write(f"{path.stat().st_size / 1e6:8.1f} MB  {'mapped' if path in used else 'never'}  {path.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
