"""The house: imports flow one way, and nothing outside kernels needs the GPU stack."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ON_GPU

ROOT = Path(__file__).parent.parent
GPU_STACK = ("cupy", "cudnn", "pynvml", "cuda")
ROOMS = ("data", "kernels", "models", "app")


def modules(room: str) -> list[str]:
    """Every module of a room, dotted."""
    paths = sorted((ROOT / room).rglob("*.py"))
    names = [".".join(("conv_advisor", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths]
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


NEED_DASK = ("conv_advisor.app.workers.cluster.node",)
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
    finished = run(blocked + "from conv_advisor.kernels import bench, catalog; assert catalog.VARIANTS")
    assert finished.returncode == 0, finished.stderr


def test_imports_flow_one_way() -> None:
    finished = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_no_environment_is_kept() -> None:
    command = ["git", "ls-files", ".venv"]
    kept = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert kept.stdout == ""  # whoever fetches it would lose their own


def test_every_module_says_what_it_is() -> None:
    silent = [
        path.relative_to(ROOT)
        for room in (*ROOMS, "benchmarks")
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.read_text().lstrip().startswith(('"""', "#!"))
    ]
    assert silent == []


def test_what_needs_a_gpu_stands_in_modules_that_say_so() -> None:
    others = {path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)}
    marked = {path for path in others if "pytest.mark.gpu" in path.read_text()}
    assert marked == {path for path in others if path.name.endswith(ON_GPU)}


def test_modules_that_are_collected_on_a_gpu_alone_import_everywhere() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "tests").rglob(f"*{ON_GPU}")]
    assert names
    finished = run("\n".join(f"import {name}" for name in sorted(names)))
    assert finished.returncode == 0, finished.stderr


OFF = re.compile(
    r"#\s*(noqa(: [A-Z]+\d+(, ?[A-Z]+\d+)*)?|type: ignore(\[[\w-]+\])?|fmt: (off|skip)|pragma: no cover)(?P<reason>.*)"
)
"""A comment that keeps a checker from a line, the rule where it names one, and what is said after it."""

SKIPS = {f"pytest.{name}" for name in ("skip", "importorskip", "mark.skip", "mark.skipif", "mark.xfail")}


def unexplained(source: str) -> list[str]:
    """What a Python file switches off, tests or checks, without saying why; and checks without saying which."""
    # Taking a file apart takes long, and most have nothing of it anywhere.
    tokens = tokenize.generate_tokens(io.StringIO(source).readline) if OFF.search(source) else ()
    comments = [match for token in tokens if token.type == tokenize.COMMENT if (match := OFF.search(token.string))]
    silent = [
        match[0] for match in comments if match[1] in {"noqa", "type: ignore"} or not match["reason"].strip(" -#")
    ]
    nodes = list(ast.walk(ast.parse(source))) if any(name.rpartition(".")[2] in source for name in SKIPS) else []
    said = {
        id(node.func)
        for node in nodes
        if isinstance(node, ast.Call)
        if ast.unparse(node.func) == "pytest.skip" or any(keyword.arg == "reason" for keyword in node.keywords)
    }
    skips = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node) in SKIPS]
    return silent + [ast.unparse(node) for node in skips if id(node) not in said]


def test_what_is_switched_off_says_why() -> None:
    folders = (*ROOMS, "benchmarks", "deploy", "tests", ".ci")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): unexplained(path.read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1  # noqa: E741 - the field's own name", []),
        ("x = 1  # noqa: E741", ["# noqa: E741"]),
        ("x = 1  # noqa: E741, A001", ["# noqa: E741, A001"]),
        ("x = 1  # noqa", ["# noqa"]),
        ("x = f()  # type: ignore[arg-type]  # names", []),
        ("x = f()  # type: ignore[arg-type]", ["# type: ignore[arg-type]"]),
        ("x = [1]  # fmt: skip", ["# fmt: skip"]),
        ("pytest.skip('no compiler')", []),
        ("pytest.importorskip('torch', reason='who is compared with')", []),
        ("pytest.importorskip('torch')", ["pytest.importorskip"]),
        ("@pytest.mark.xfail\ndef f(): ...", ["pytest.mark.xfail"]),
        ("'# noqa'", []),
    ],
)
def test_a_reason_is_one_only_where_it_says_something(source: str, expected: list[str]) -> None:
    assert unexplained(source) == expected


def test_no_two_files_of_tests_have_one_name() -> None:
    """Pytest imports them by their names alone, and refuses the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
