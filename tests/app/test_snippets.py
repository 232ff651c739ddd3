"""Snippets: they run what they say, exactly; on the CPU for real, on a GPU where there is one."""

from __future__ import annotations

import ast
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from conv_advisor.app.snippets.language import Language
from conv_advisor.app.snippets.writer import RULE, languages_of, write_snippet
from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels import bench, catalog, comparison, reference
from conv_advisor.kernels.cuda.compile import _include_path
from conv_advisor.kernels.cudnn.epilogue import IMPLICIT_PRECOMP_GEMM, in_fused_call
from conv_advisor.kernels.cudnn.plans import KNOB_TYPES, MOST_BUILDS
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import Backend, Launch, Variant

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
    assert comparison.max_error(names["y"], expected) <= tolerance(of)


def catalog_device() -> Any:
    from conv_advisor.kernels.cpu.runner import CpuRunner

    return CpuRunner().device


def test_a_cpu_snippet_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "conv.py"
    of = problem(**STRIDED)
    file.write_text(code_of(catalog.get("cpu.gemm"), of) + "print(y.shape)\n")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split("\n")[0] == str(of.y_shape)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("plan", [None, NAMED, UNNAMED], ids=["rule", "named", "offered"])
@pytest.mark.parametrize("language", ["python", "torch"])
def test_python_for_a_gpu_is_python_and_tidy(language: str, plan: Any, dtype: str, layout: str, tmp_path: Path) -> None:
    plain = problem(dtype, layout, groups=2, **STRIDED)
    for epilogue in ("", "residual", "bias-silu", "bias-residual-relu6"):
        of = replace(plain, epilogue=Epilogue.parse(epilogue), pad_w_end=2 if epilogue else plain.pad_w_end)
        for variant in (GRAPH, catalog.get("cuda.implicit_gemm"), catalog.get("cudnn.implicit_gemm_tc")):
            code = code_of(variant, of, plan, language)
            compile(code, "snippet.py", "exec")
            (tmp_path / f"{variant.id}_{epilogue}.py".replace(".", "_", 2).replace("-", "_")).write_text(code)
            assert "Needs: a GPU of NVIDIA's, and pip install" in code
            assert ("'torch>=2.11'" in code) is (language == "torch" and variant is not GRAPH)
    checked = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=160", "--select=E,F,W,I", tmp_path]
    done = subprocess.run(checked, capture_output=True, text=True, check=False, timeout=600)
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
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.pointers: dict[int, int] = {}

    def create_handle(self) -> int:
        return 1

    def set_stream(self, **_: Any) -> None:
        return

    def pygraph(self, **_: Any) -> Frontend.Graph:
        return Frontend.Graph(self)

    class Graph:
        def __init__(self, frontend: Frontend) -> None:
            self.frontend, self.plans = frontend, []

        def __getattr__(self, name: str) -> Any:  # validate, set_uid and their like
            def call(*_: Any, **settings: Any) -> Frontend.Graph:
                self.frontend.calls.append((name, settings))
                return self

            return call

        def execute_plan_at_index(self, pointers: dict[int, int], *_: Any, **__: Any) -> None:
            self.frontend.pointers = pointers

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


def test_a_graph_has_every_side_and_node_of_the_problem() -> None:
    frontend = Frontend({"a": ["eng62_k2=1"]}, {"eng62_k2=1": 0})
    of = problem("float16", pad_h=0, pad_w_end=2, epilogue=Epilogue.parse("bias-residual-relu6"))
    searched(code_of(GRAPH, of), frontend)
    called = [name for name, _ in frontend.calls]
    settings = dict(frontend.calls)
    assert called[:8] == ["tensor"] * 4 + ["conv_fprop", "add", "bias", "relu"]
    assert (settings["conv_fprop"]["pre_padding"], settings["conv_fprop"]["post_padding"]) == ([0, 1], [0, 2])
    assert settings["relu"]["upper_clip"] == 6.0
    tensors = [given for name, given in frontend.calls if name == "tensor"]
    assert [(given["uid"], given["dim"]) for given in tensors] == [
        (1, [2, 8, 8, 8]),
        (2, [16, 8, 3, 3]),
        (4, [1, 16, 1, 1]),
        (5, [2, 16, 6, 9]),
    ]


class OnDevice(np.ndarray):
    """A host array with the address that an array of CuPy has."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def cupy_on_a_host() -> Any:
    """As much of CuPy as programs use, on a host."""
    device = SimpleNamespace(synchronize=lambda: None)
    cuda = SimpleNamespace(Device=lambda: device, get_current_stream=lambda: SimpleNamespace(ptr=0))
    random = SimpleNamespace(rand=lambda *shape: np.random.default_rng(0).random(shape).view(OnDevice))
    types = {name: getattr(np, name) for name in ("uint8", "uint16", "uint32", "float16", "float32")}
    return SimpleNamespace(
        **types,
        ndarray=OnDevice,
        asarray=lambda array: array.copy().view(OnDevice),
        empty=lambda shape, dtype: np.empty(shape, dtype).view(OnDevice),
        cuda=cuda,
        random=random,
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("text", "uids"), [("", ()), ("bias", (4,)), ("residual", (5,)), ("bias-residual-relu", (4, 5))]
)
def test_a_graph_is_given_the_address_of_each_operand(
    text: str, uids: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend = Frontend({"a": ["eng62_k2=1"]}, {"eng62_k2=1": 0})
    frontend.data_type.BFLOAT16 = "bfloat16"
    monkeypatch.setitem(sys.modules, "cudnn", frontend)
    monkeypatch.setitem(sys.modules, "cupy", cupy_on_a_host())
    of = problem(dtype, "nhwc", epilogue=Epilogue.parse(text))
    names = run(code_of(GRAPH, of))
    operands = {1: "x", 2: "weight", 3: "y"} | {uid: {4: "bias", 5: "residual"}[uid] for uid in uids}
    assert frontend.pointers == {uid: names[name].data.ptr for uid, name in operands.items()}
    for name in operands.values():
        assert names[name].shape == of.shapes.get(name, of.y_shape)
        assert names[name].dtype.itemsize == 2


class ReferenceRunner:
    """A device on which every launch computes by the reference, from arrays as they lie on a GPU."""

    def prepare(self, variant: Variant, of: ConvProblem, *, workspace_limit_bytes: int) -> Launch:
        assert (variant.id, workspace_limit_bytes) == ("cuda.implicit_gemm", LIMIT)
        dtype = reference.HOST_DTYPE[of.dtype]

        def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
            operands = (None if each is None else np.asarray(each).view(dtype) for each in (x, weight, *ends))
            y.view(dtype)[...] = reference.convolve(of, *operands)

        return Launch(run)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("text", ["", "bias", "residual-gelu", "bias-residual-relu"])
def test_a_program_for_cupy_hands_over_each_operand(
    text: str, dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy_on_a_host())
    monkeypatch.setattr(bench, "open_runner", lambda device: ReferenceRunner())
    of = problem(dtype, layout, pad_h_end=2, epilogue=Epilogue.parse(text))
    names = run(code_of(catalog.get("cuda.implicit_gemm"), of))
    kind = reference.HOST_DTYPE[of.dtype]
    x, weight, y, *ends = (
        None if names.get(name) is None else np.asarray(names[name]).view(kind)
        for name in ("x", "weight", "y", "bias", "residual")
    )
    assert [end is not None for end in ends] == [of.epilogue.bias, of.epilogue.residual]
    assert np.array_equal(y, reference.convolve(of, x, weight, *ends).astype(kind))


@pytest.mark.parametrize("text", ["", "bias-residual-relu"])
def test_a_program_for_pytorch_runs_on_its_stream(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the protocol of streams: CuPy warns of who hands over an address."""
    torch, cupy = MagicMock(), MagicMock()
    stream = cupy.cuda.Stream.from_external.return_value
    runs_within: list[bool] = []
    launch = Launch(lambda *_operands: runs_within.append(stream.__enter__.called and not stream.__exit__.called))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(bench, "open_runner", lambda _device: SimpleNamespace(prepare=lambda *_, **__: launch))
    of = problem("float16", "nhwc", epilogue=Epilogue.parse(text))
    run(code_of(catalog.get("cuda.implicit_gemm_nhwc"), of, language="torch"))
    cupy.cuda.Stream.from_external.assert_called_once_with(torch.cuda.current_stream.return_value)
    assert runs_within == [True]


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
    done = subprocess.run([*command, tmp_path / "conv.c"], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no C compiler")
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("epilogue", sorted(in_fused_call(IMPLICIT_PRECOMP_GEMM), key=str), ids=str)
def test_a_legacy_snippet_of_the_fused_call_is_c(epilogue: Epilogue, dtype: str, layout: str, tmp_path: Path) -> None:
    variant = catalog.get("cudnn.implicit_precomp_gemm")
    snippet = write_snippet(problem(dtype, layout, epilogue=epilogue), variant, workspace_limit_bytes=LIMIT)
    assert "finish" not in snippet.code
    assert snippet.requires == ("libcudnn 9", "libcudart")
    (tmp_path / "conv.c").write_text(snippet.code)
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{HERE / 'cudnn_stub'}"]
    done = subprocess.run([*command, tmp_path / "conv.c"], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr


def finished(code: str, folder: Path, y: np.ndarray, *ends: np.ndarray | None) -> None:
    """Run the kernel of a program in CUDA C++ on a host, in place of y."""
    source, built = folder / "conv.cpp", folder / "conv.so"
    source.write_text(code)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{HERE / 'cudnn_stub'}"]
    done = subprocess.run([*command, "-o", built, source], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    program = ctypes.CDLL(str(built), mode=os.RTLD_LAZY)  # it has no cuDNN to call
    block, width, thread = (ctypes.c_uint.in_dll(program, f"{each}") for each in ("blockIdx", "blockDim", "threadIdx"))
    width.value = 256
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (y, *ends) if each is not None]
    for element in range(-(-y.size // 256) * 256):
        block.value, thread.value = divmod(element, 256)
        program.finish(*pointers)


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
@pytest.mark.parametrize("activation", Activation)
def test_what_follows_the_legacy_call_is_a_kernel_that_computes_it(activation: Activation, tmp_path: Path) -> None:
    takes_turns = list(Activation).index(activation)
    epilogue = Epilogue(bias=takes_turns % 3 != 1, residual=takes_turns % 3 != 0, activation=activation)
    of = ConvProblem.parse("5-2-3-3-2", layout=list(Layout)[takes_turns % 2], epilogue=epilogue)
    x, weight = reference.random_operands(of, 0)
    ends = reference.random_ends(of, 0)
    y = np.ascontiguousarray(reference.convolve(of.plain, x, weight).astype(np.float32))
    snippet = write_snippet(of, catalog.get("cudnn.gemm"), workspace_limit_bytes=LIMIT)
    assert "nvcc" in snippet.requires
    finished(snippet.code, tmp_path, y, *ends)
    assert comparison.max_error(y, reference.convolve(of, x, weight, *ends)) < 1e-6


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_that_kernel_compiles_for_a_gpu(dtype: str, arch: str) -> None:
    core = pytest.importorskip("cuda.core", reason="cuda-core compiles without a GPU", exc_type=ImportError)
    code = code_of(catalog.get("cudnn.gemm"), problem(dtype, epilogue=Epilogue.parse("bias-residual-gelu")))
    headers = [line for line in code.splitlines() if line.startswith("#include <cuda_") and "runtime" not in line]
    kernel = code[code.index("enum {") : code.index("static const size_t")]
    options = core.ProgramOptions(arch=arch, std="c++17", include_path=_include_path())
    assert core.Program("\n".join([*headers, kernel]), "c++", options).compile("cubin").code


def test_a_language_that_a_variant_has_no_program_in_is_refused() -> None:
    with pytest.raises(InvalidInput, match="language is 'c'; allowed: python, torch"):
        code_of(GRAPH, problem(), language="c")
    for variant in catalog.VARIANTS.values():
        assert all(code_of(variant, problem("float16"), language=each) for each in languages_of(variant))


def test_equal_questions_get_equal_programs() -> None:
    assert code_of(GRAPH, problem()) == code_of(GRAPH, problem())
    assert np.unique([code_of(GRAPH, problem(layout=each)) for each in Layout]).size == 2
