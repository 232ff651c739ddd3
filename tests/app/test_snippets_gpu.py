"""Snippets on a GPU: every kind of program runs, and computes the layer.

The programs for PyTorch need torch, and those in C a compiler and the headers of cuDNN and of the CUDA runtime; where
one is missing the test is skipped with that reason. One of each kind runs in a process of its own, as its user would
run it, the others in this one.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conv_advisor.app.snippets.language import Language
from conv_advisor.app.snippets.writer import write_snippet
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import NotSupported
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import catalog, comparison, reference
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.runner import Runner
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import Variant

pytestmark = pytest.mark.gpu

LIMIT = 2**28
LAYER = "14-2-3-64-32"

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


def run_checked(code: str, problem: ConvProblem) -> None:
    """Run a program in this process, and compare what it leaves behind with float64."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "snippet.py", "exec"), names)  # noqa: S102 - the test is what it computes
    x, weight, y, *ends = (on_host(names.get(name), problem) for name in ("x", "weight", "y", "bias", "residual"))
    places = comparison.given_outputs(problem, x, weight)
    _, scale = reference.expected_at(problem, x, weight, places, *ends)
    error = comparison.max_error(y, reference.convolve(problem, x, weight, *ends), scale)
    assert error <= tolerance(problem)
    assert np.abs(y.astype(float)).max() > 0


def on_host(tensor: Any, problem: ConvProblem) -> np.ndarray | None:
    """A tensor of CuPy or PyTorch in the problem's memory order; None as it is."""
    if tensor is None:
        return None
    dtype = reference.HOST_DTYPE[problem.dtype]
    if type(tensor).__module__.startswith("torch"):
        is_turned = tensor.ndim == 4 and problem.layout is Layout.NHWC
        tensor = tensor.permute(0, 2, 3, 1) if is_turned else tensor
        return np.ascontiguousarray(tensor.float().cpu().numpy().astype(dtype))
    array: np.ndarray = tensor.get().view(dtype)
    return array


def measured_plan(runner: Runner, variant: Variant, problem: ConvProblem) -> dict[str, Any]:
    """The plan that is measured for this variant; skips where it does not run."""
    reason = variant.why_not(problem, runner.device)
    if reason:
        pytest.skip(reason)
    try:
        return runner.prepare(variant, problem, LIMIT).plan
    except NotSupported as error:
        pytest.skip(f"{variant.id}: {error}")


def needs(language: Language) -> None:
    if language is Language.TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


PYTHONS = pytest.mark.parametrize("language", [Language.PYTHON, Language.TORCH])
ENDED = (
    *(f"{LAYER}-bias-relu", f"{LAYER}-residual"),
    "13x12-2-3x3-64-32-stride2x2-pad0x1-end1x0-dilation1x1-groups1-bias-residual-silu",
)
"""Layers with epilogues, the last one with uneven padding."""
KINDS = (
    *((DType.FLOAT32, Layout.NCHW), (DType.FLOAT16, Layout.NCHW)),
    *((DType.FLOAT16, Layout.NHWC), (DType.BFLOAT16, Layout.NHWC)),
)


@PYTHONS
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_program_computes_the_layer(
    runner: Runner, variant: str, dtype: DType, layout: Layout, language: Language
) -> None:
    needs(language)
    problem = ConvProblem.parse(LAYER, dtype=dtype, layout=layout)
    measured_plan(runner, catalog.get(variant), problem)
    snippet = write_snippet(problem, catalog.get(variant), workspace_limit_bytes=LIMIT, language=language)
    run_checked(snippet.code, problem)


@PYTHONS
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_program_runs_by_itself(runner: Runner, variant: str, language: Language, tmp_path: Path) -> None:
    needs(language)
    problem = ConvProblem.parse(LAYER, dtype=DType.TF32)
    measured_plan(runner, catalog.get(variant), problem)
    file = tmp_path / "conv.py"
    snippet = write_snippet(problem, catalog.get(variant), workspace_limit_bytes=LIMIT, language=language)
    file.write_text(f"{snippet.code}print(abs(y).max() > 0)\n")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "True" in done.stdout


@PYTHONS
@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_program_computes_the_layer_with_its_epilogue(
    runner: Runner, variant: str, ended: str, dtype: DType, layout: Layout, language: Language
) -> None:
    """With uneven padding too."""
    needs(language)
    problem = ConvProblem.parse(ended, dtype=dtype, layout=layout)
    measured_plan(runner, catalog.get(variant), problem)
    snippet = write_snippet(problem, catalog.get(variant), workspace_limit_bytes=LIMIT, language=language)
    run_checked(snippet.code, problem)


@PYTHONS
@pytest.mark.parametrize("variant", ["cudnn.graph.eng0", "cudnn.graph.eng1", "cudnn.graph.eng3", "cudnn.graph.eng62"])
def test_a_program_rebuilds_the_plan_that_was_measured(runner: Runner, variant: str, language: Language) -> None:
    needs(language)
    problem = ConvProblem.parse(LAYER, dtype=DType.FLOAT16, layout=Layout.NHWC)
    plan = measured_plan(runner, catalog.get(variant), problem)
    snippet = write_snippet(problem, catalog.get(variant), plan=plan, workspace_limit_bytes=LIMIT, language=language)
    run_checked(snippet.code, problem)


def test_the_rule_of_a_program_finds_the_plan_that_is_measured(runner: Runner, tmp_path: Path) -> None:
    problem = ConvProblem.parse(LAYER, dtype=DType.FLOAT16, layout=Layout.NHWC)
    plan = measured_plan(runner, catalog.get("cudnn.graph.eng62"), problem)
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
@pytest.mark.parametrize("epilogue", ["", "bias", "bias-residual-relu"])
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "implicit_precomp_gemm_tc", "fft_tiling", "winograd_nonfused"])
def test_a_program_in_c_compiles_and_runs(
    runner: Runner, algorithm: str, epilogue: str, dtype: DType, tmp_path: Path
) -> None:
    """With the fused call where that takes the epilogue; a kernel behind the call is not C."""
    problem = ConvProblem.parse(LAYER, dtype=dtype, epilogue=Epilogue.parse(epilogue))
    variant = catalog.get(f"cudnn.{algorithm}")
    if problem.epilogue and problem.epilogue not in variant.in_library_call:
        pytest.skip("the fused call does not compute this epilogue")
    measured_plan(runner, variant, problem)
    source, program = tmp_path / "conv.c", tmp_path / "conv"
    source.write_text(write_snippet(problem, variant, workspace_limit_bytes=LIMIT).code)
    command = ["gcc", "-Wall", "-Werror", "-o", program, source, *_headers()]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert built.returncode == 0, built.stderr[-3000:]
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{variant.id}: done" in done.stdout
