"""Snippets: they run what they say, exactly; on the CPU for real, on a GPU where there is one."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conv_advisor.app.snippets.language import Language
from conv_advisor.app.snippets.writer import RULE, languages_of, write_snippet
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import catalog, comparison, reference
from conv_advisor.kernels.cudnn.plans import KNOB_TYPES, MOST_BUILDS
from conv_advisor.kernels.variant import Backend, Variant

HERE = Path(__file__).parent
LIMIT = 2**28
LAYER = "8-2-3-16-8"
STRIDED = {"stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 0}
NAMED = {"engine": 62, "knobs": {"2": 3, "13": 1}, "heuristic": "a", "index": 2}
UNNAMED = {"engine": 62, "knobs": {"2": 3, "99": 1}, "heuristic": "a", "index": 2}
GRAPH = catalog.get("cudnn.graph.eng62")


def problem(dtype: str = "float32", layout: str = "nchw", **changes: Any) -> ConvProblem:
    return ConvProblem.parse(LAYER, dtype=dtype, layout=layout, **changes)


def code_of(variant: Variant, of: ConvProblem, plan: Mapping[str, Any] | None = None, language: str = "") -> str:
    chosen = Language(language) if language else None
    return write_snippet(of, variant, plan=plan, workspace_limit_bytes=LIMIT, language=chosen).code


def run(code: str) -> dict[str, Any]:
    """The names that a snippet leaves behind."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "snippet.py", "exec"), names)  # noqa: S102 - the test is whether it runs
    return names


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("variant", [each for each in catalog.VARIANTS.values() if each.backend is Backend.CPU])
def test_a_cpu_snippet_computes_the_layer(variant: Variant, dtype: str, layout: str) -> None:
    of = problem(dtype, layout)
    if reason := variant.why_not(of, catalog_device()):
        pytest.skip(reason)
    names = run(code_of(variant, of))
    expected = reference.convolve(of, names["x"], names["weight"])
    assert names["launch"].plan == {}
    assert comparison.max_error(names["y"], expected) <= comparison.tolerance(of)


def catalog_device() -> Any:
    from conv_advisor.kernels.cpu.runner import CpuRunner

    return CpuRunner().device


def test_a_cpu_snippet_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "conv.py"
    of = problem(**STRIDED)
    file.write_text(code_of(catalog.get("cpu.gemm"), of) + "print(y.shape)\n")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[0] == str(of.y_shape)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("plan", [None, NAMED, UNNAMED], ids=["rule", "named", "offered"])
@pytest.mark.parametrize("language", ["python", "torch"])
def test_python_for_a_gpu_is_python_and_tidy(language: str, plan: Any, dtype: str, layout: str, tmp_path: Path) -> None:
    of = problem(dtype, layout, groups=2, **STRIDED)
    for variant in (GRAPH, catalog.get("cuda.implicit_gemm"), catalog.get("cudnn.implicit_gemm_tc")):
        code = code_of(variant, of, plan, language)
        compile(code, "snippet.py", "exec")
        (tmp_path / f"{variant.id}.py".replace(".", "_", 2)).write_text(code)
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=160", "--select=E,F,W,I", tmp_path]
    done = subprocess.run(checked, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_a_measured_plan_is_rebuilt_from_engine_and_knobs() -> None:
    snippet = write_snippet(problem("float16"), GRAPH, plan=NAMED, workspace_limit_bytes=LIMIT)
    calls = [node for node in ast.walk(ast.parse(snippet.code)) if isinstance(node, ast.Call)]
    (created,) = [call for call in calls if ast.unparse(call.func) == "graph.create_execution_plan"]
    assert ast.unparse(created.args[0]) == "62"
    names = {number: name for name, number in KNOB_TYPES.items()}
    for knob, value in ((2, 3), (13, 1)):
        assert f"cudnn.knob_type.{names[knob]}: {value}," in snippet.code
    assert snippet.plan == {"engine": 62, "knobs": {"2": 3, "13": 1}}
    assert snippet.rule is None


def test_knobs_without_a_name_are_looked_for_among_the_plans_that_are_offered() -> None:
    code = code_of(GRAPH, problem("float16"), UNNAMED)
    assert 'KNOBS = {"k2": "3", "k99": "1"}' in code
    assert "create_execution_plan(" not in code


class Frontend:
    """Stands in for cuDNN's frontend: its heuristics offer these plans, of which some do not build or take too much."""

    def __init__(self, offers: dict[str, list[str]], workspace: dict[str, int]) -> None:
        self.heur_mode = type("heur_mode", (), {"A": "a", "B": "b", "FALLBACK": "fallback"})
        self.data_type = type("data_type", (), {"HALF": "half", "FLOAT": "float"})
        self.numerical_note = type("note", (), {"DOWN_CONVERT_INPUTS": 1, "REDUCED_PRECISION_REDUCTION": 2})
        self.cudnnGraphNotSupportedError = type("cudnnGraphNotSupportedError", (Exception,), {})
        self.offers, self.workspace, self.tried = offers, workspace, []

    def create_handle(self) -> int:
        return 1

    def pygraph(self, **_: Any) -> Frontend.Graph:
        return Frontend.Graph(self)

    class Graph:
        def __init__(self, frontend: Frontend) -> None:
            self.frontend, self.plans = frontend, []

        def tensor(self, **_: Any) -> str:
            return "tensor"

        def conv_fprop(self, **_: Any) -> Frontend.Graph:
            return self

        def __getattr__(self, name: str) -> Any:  # validate, set_uid and their like
            return lambda *_: self

        def create_execution_plans(self, modes: list[str]) -> None:
            self.plans = self.frontend.offers.get(modes[0], [])
            if not self.plans:
                raise self.frontend.cudnnGraphNotSupportedError

        def get_execution_plan_count(self) -> int:
            return len(self.plans)

        def get_plan_name_at_index(self, index: int) -> str:
            return self.plans[index]

        def build_plan_at_index(self, index: int) -> None:
            self.frontend.tried.append(self.plans[index])
            if self.plans[index] not in self.frontend.workspace:
                raise self.frontend.cudnnGraphNotSupportedError

        def get_workspace_size_plan_at_index(self, index: int) -> int:
            return self.frontend.workspace[self.plans[index]]


def searched(code: str, frontend: Frontend) -> dict[str, Any]:
    names: dict[str, Any] = {"cudnn": frontend}
    body = code.split("workspace = cupy.empty", maxsplit=1)[0].replace("import cudnn\nimport cupy\n", "")
    exec(compile(body, "snippet.py", "exec"), names)  # noqa: S102 - the test is what it chooses
    return names


def test_the_rule_takes_the_first_plan_of_the_engine_that_builds_and_fits() -> None:
    offers = {"a": ["eng6_k2=1", "eng62_k2=1"], "b": ["eng62_k2=1", "eng62_k2=2", "eng62_k2=3"], "fallback": ["eng0"]}
    frontend = Frontend(offers, {"eng6_k2=1": 0, "eng62_k2=2": LIMIT + 1, "eng62_k2=3": LIMIT, "eng0": 0})
    names = searched(code_of(GRAPH, problem("float16")), frontend)
    assert frontend.tried == ["eng62_k2=1", "eng62_k2=2", "eng62_k2=3"]
    assert (names["index"], names["workspace_bytes"]) == (2, LIMIT)


def test_the_rule_tries_no_more_plans_than_the_measurements_did() -> None:
    plans = [f"eng62_k2={place}" for place in range(9)]
    frontend = Frontend({"a": plans}, {})
    with pytest.raises(RuntimeError, match="no plan of engine 62"):
        searched(code_of(GRAPH, problem("float16")), frontend)
    assert frontend.tried == plans[:MOST_BUILDS]


def test_a_plan_with_nameless_knobs_is_found_whatever_their_order() -> None:
    frontend = Frontend({"fallback": ["eng62_k2=3", "eng62_k99=1_k2=3"]}, {"eng62_k99=1_k2=3": 8})
    names = searched(code_of(GRAPH, problem("float16"), UNNAMED), frontend)
    assert (names["index"], names["workspace_bytes"]) == (1, 8)


def test_what_is_not_measured_says_by_which_rule_it_is_built() -> None:
    snippet = write_snippet(problem(), catalog.get("cudnn.graph.eng0"), workspace_limit_bytes=LIMIT)
    assert snippet.rule == RULE
    assert snippet.plan == {"engine": 0, "knobs": None}
    assert write_snippet(problem(), catalog.get("cuda.gemm"), workspace_limit_bytes=LIMIT).rule is None


@pytest.mark.parametrize(
    ("variant", "dtype", "algorithm", "math_type"),
    [
        ("cudnn.implicit_gemm", "float32", "IMPLICIT_GEMM", "CUDNN_FMA_MATH"),
        ("cudnn.fft_tiling_tc", "tf32", "FFT_TILING", "CUDNN_DEFAULT_MATH"),
        ("cudnn.winograd_nonfused_tc", "float16", "WINOGRAD_NONFUSED", "CUDNN_TENSOR_OP_MATH"),
    ],
)
def test_a_legacy_snippet_names_algorithm_and_math_type(variant, dtype, algorithm, math_type) -> None:
    snippet = write_snippet(problem(dtype), catalog.get(variant), workspace_limit_bytes=LIMIT)
    name = f"CUDNN_CONVOLUTION_FWD_ALGO_{algorithm}"
    assert snippet.language is Language.C
    assert snippet.plan == {"algorithm": name, "math_type": math_type}
    assert f"algorithm = {name};" in snippet.code
    assert f"cudnnSetConvolutionMathType(conv, {math_type})" in snippet.code


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no C compiler")
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
def test_a_legacy_snippet_is_c(dtype: str, layout: str, tmp_path: Path) -> None:
    code = code_of(catalog.get("cudnn.implicit_gemm"), problem(dtype, layout, **STRIDED))
    (tmp_path / "conv.c").write_text(code)
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{HERE / 'cudnn_stub'}"]
    done = subprocess.run([*command, tmp_path / "conv.c"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_language_that_a_variant_has_no_program_in_is_refused() -> None:
    with pytest.raises(InvalidInput, match="language is 'c'; allowed: python, torch"):
        code_of(GRAPH, problem(), language="c")
    for variant in catalog.VARIANTS.values():
        assert all(code_of(variant, problem("float16"), language=each) for each in languages_of(variant))


def test_equal_questions_get_equal_programs() -> None:
    assert code_of(GRAPH, problem()) == code_of(GRAPH, problem())
    assert np.unique([code_of(GRAPH, problem(layout=each)) for each in Layout]).size == 2
