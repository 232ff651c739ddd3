"""The house: imports flow one way, and nothing outside kernels needs the GPU stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GPU_STACK = ("cupy", "cudnn", "pynvml", "cuda")
ROOMS = ("data", "kernels", "models", "app")


def modules(room: str) -> list[str]:
    """Every module of a room, dotted."""
    paths = sorted((ROOT / room).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("room", ["data", "models", "app"])
def test_a_room_imports_without_the_gpu_stack(room: str) -> None:
    blocked = f"import sys\nfor name in {GPU_STACK!r}: sys.modules[name] = None\n"
    imports = "\n".join(f"import {name}" for name in modules(room))
    finished = run(blocked + imports)
    assert finished.returncode == 0, finished.stderr


NEED_DASK = ("app.cluster.node",)
"""What runs inside a Dask worker."""


def test_the_service_imports_without_dask() -> None:
    blocked = "import sys\nfor name in ('dask', 'distributed'): sys.modules[name] = None\n"
    imports = "\n".join(f"import {name}" for name in modules("app") if name not in NEED_DASK)
    finished = run(blocked + imports)
    assert finished.returncode == 0, finished.stderr


def test_nothing_imports_dask_before_it_is_asked_to() -> None:
    imports = "\n".join(f"import {name}" for name in modules("app") if name not in NEED_DASK)
    finished = run(imports + "\nimport sys; assert not {'dask', 'distributed'} & set(sys.modules)")
    assert finished.returncode == 0, finished.stderr


def test_the_catalogue_imports_without_the_gpu_stack_or_numba() -> None:
    blocked = f"import sys\nfor name in {(*GPU_STACK, 'numba', 'scipy')!r}: sys.modules[name] = None\n"
    finished = run(blocked + "import kernels.catalog, kernels.bench; assert kernels.catalog.VARIANTS")
    assert finished.returncode == 0, finished.stderr


def test_imports_flow_one_way() -> None:
    finished = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_module_says_what_it_is() -> None:
    silent = [
        path.relative_to(ROOT)
        for room in (*ROOMS, "benchmarks")
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.read_text().lstrip().startswith(('"""', "#!"))
    ]
    assert silent == []
