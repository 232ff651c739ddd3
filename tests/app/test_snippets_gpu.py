"""Snippets on a GPU: every kind of program runs, and computes the layer.

The programs for PyTorch need torch, and those in C a compiler and the headers of cuDNN and of the CUDA runtime; where
one is missing the test is skipped with that reason. Each runs in a process of its own, as its user would run it.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conv_advisor.app.snippets.language import Language
from conv_advisor.app.snippets.writer import write_snippet
from conv_advisor.data.errors import NotSupported
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.runner import Runner

pytestmark = pytest.mark.gpu

LIMIT = 2**28
LAYER = "14-2-3-64-32"

CHECK = """
import numpy as np
import ml_dtypes
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import comparison, reference

of = ConvProblem.parse({layer!r}, dtype={dtype!r}, layout={layout!r})


def on_host(array):
    if type(array).__module__.startswith("torch"):
        array = array.permute(0, 2, 3, 1) if {layout!r} == "nhwc" else array
        return array.float().cpu().numpy().astype(reference.HOST_DTYPE[of.dtype])
    return array.get().view(reference.HOST_DTYPE[of.dtype])


x, weight, y = (np.ascontiguousarray(on_host(each)) for each in (x, weight, y))
error = comparison.max_error(y, reference.convolve(of, x, weight))
assert error <= comparison.tolerance(of), error
assert np.abs(y.astype(float)).max() > 0
"""

VARIANTS = (
    "cuda.implicit_gemm",
    "cuda.direct_naive",
    "cuda.gemm",
    "cudnn.implicit_precomp_gemm",
    "cudnn.graph.eng0",
    "cudnn.graph.eng1",
    "cudnn.graph.eng62",
)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return open_runner("cuda:0")


def run_checked(code: str, problem: ConvProblem, folder: Path) -> None:
    file = folder / "conv.py"
    check = CHECK.format(layer=LAYER, dtype=str(problem.dtype), layout=str(problem.layout))
    file.write_text(code + check)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


def measured_plan(runner: Runner, variant: str, problem: ConvProblem) -> dict[str, Any]:
    """The plan that is measured for this variant; skips where it does not run."""
    of = catalog.get(variant)
    reason = of.why_not(problem, runner.device)
    if reason:
        pytest.skip(reason)
    try:
        return runner.prepare(of, problem, LIMIT).plan
    except NotSupported as error:
        pytest.skip(f"{variant}: {error}")


def needs(language: Language) -> None:
    if language is Language.TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.mark.parametrize("language", [Language.PYTHON, Language.TORCH])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_program_computes_the_layer(
    runner: Runner, variant: str, dtype: DType, layout: Layout, language: Language, tmp_path: Path
) -> None:
    needs(language)
    problem = ConvProblem.parse(LAYER, dtype=dtype, layout=layout)
    measured_plan(runner, variant, problem)
    snippet = write_snippet(problem, catalog.get(variant), workspace_limit_bytes=LIMIT, language=language)
    run_checked(snippet.code, problem, tmp_path)


@pytest.mark.parametrize("language", [Language.PYTHON, Language.TORCH])
@pytest.mark.parametrize("variant", ["cudnn.graph.eng0", "cudnn.graph.eng1", "cudnn.graph.eng3", "cudnn.graph.eng62"])
def test_a_program_rebuilds_the_plan_that_was_measured(
    runner: Runner, variant: str, language: Language, tmp_path: Path
) -> None:
    needs(language)
    problem = ConvProblem.parse(LAYER, dtype=DType.FLOAT16, layout=Layout.NHWC)
    plan = measured_plan(runner, variant, problem)
    snippet = write_snippet(problem, catalog.get(variant), plan=plan, workspace_limit_bytes=LIMIT, language=language)
    run_checked(snippet.code, problem, tmp_path)


def test_the_rule_of_a_program_finds_the_plan_that_is_measured(runner: Runner, tmp_path: Path) -> None:
    problem = ConvProblem.parse(LAYER, dtype=DType.FLOAT16, layout=Layout.NHWC)
    plan = measured_plan(runner, "cudnn.graph.eng62", problem)
    code = write_snippet(problem, catalog.get("cudnn.graph.eng62"), workspace_limit_bytes=LIMIT).code
    file = tmp_path / "conv.py"
    file.write_text(code + "print(graph.get_plan_name_at_index(index))\n")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True, timeout=240)
    engine, *knobs = done.stdout.split()[-1].split("_")
    assert engine == "eng62"
    assert {knob: int(value) for knob, value in (each.split("=") for each in knobs)} == {
        f"k{knob}": value for knob, value in plan["knobs"].items()
    }


def _headers() -> list[str]:
    """Where the wheels, or else the toolkit, have the headers and libraries of cuDNN and of the CUDA runtime."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    roots.append(Path("/usr/local/cuda"))

    def found(name: str) -> Path:
        path = next((path for root in roots for path in sorted(root.glob(f"**/{name}"))), None)
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    headers = {found(name).parent for name in ("include/cudnn.h", "include/cuda_runtime_api.h")}
    headers.add(found("include/crt/host_defines.h").parent.parent)
    libraries = [found("libcudnn.so.9"), found("libcudart.so.*")]
    paths = [f"-I{folder}" for folder in sorted(headers)]
    return [*paths, *map(str, libraries), *(f"-Wl,-rpath,{library.parent}" for library in libraries)]


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no C compiler")
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "implicit_precomp_gemm_tc", "fft_tiling", "winograd_nonfused"])
def test_a_program_in_c_compiles_and_runs(runner: Runner, algorithm: str, dtype: DType, tmp_path: Path) -> None:
    problem = ConvProblem.parse(LAYER, dtype=dtype)
    variant = catalog.get(f"cudnn.{algorithm}")
    measured_plan(runner, variant.id, problem)
    source, program = tmp_path / "conv.c", tmp_path / "conv"
    source.write_text(write_snippet(problem, variant, workspace_limit_bytes=LIMIT).code)
    command = ["gcc", "-Wall", "-Werror", "-o", program, source, *_headers()]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert built.returncode == 0, built.stderr[-3000:]
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{variant.id}: done" in done.stdout
