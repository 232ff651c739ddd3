"""What of cuDNN needs no GPU: ids, rules, plan names, and how its statuses are read."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import CompileFailed, LaunchFailed, NotSupported, OutOfMemory
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cudnn import library, plans
from conv_advisor.kernels.cudnn.variants import (
    ENGINES,
    FUSED_PRODUCTS,
    LEGACY_ALGORITHMS,
    TENSOR_CORE_ENGINES,
    VARIANTS,
    algorithm_of,
    engine_of,
    graph_engine_variant,
    legacy_id,
)
from conv_advisor.kernels.variant import Algorithm, Backend, left_to_ask

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0")
A100 = Device(id="nvidia-a100", name="NVIDIA A100", kind="cuda", capability="8.0")
NEVER_IMPLEMENTED = ("cudnn.direct", "cudnn.direct_tc")
BY_ID = {variant.id: variant for variant in VARIANTS}
ROOT = Path(__file__).parents[2]


def reason(variant_id: str, layer: str, **changes: object) -> str | None:
    return BY_ID[variant_id].why_not(ConvProblem.parse(layer, **changes), H200)


def test_the_ids_of_the_legacy_variants_never_change() -> None:
    assert [variant.id for variant in VARIANTS if variant.backend is Backend.CUDNN_LEGACY] == [
        "cudnn.implicit_gemm",
        "cudnn.implicit_gemm_tc",
        "cudnn.implicit_precomp_gemm",
        "cudnn.implicit_precomp_gemm_tc",
        "cudnn.gemm",
        "cudnn.gemm_tc",
        "cudnn.direct",
        "cudnn.direct_tc",
        "cudnn.fft",
        "cudnn.fft_tc",
        "cudnn.fft_tiling",
        "cudnn.fft_tiling_tc",
        "cudnn.winograd",
        "cudnn.winograd_tc",
        "cudnn.winograd_nonfused",
        "cudnn.winograd_nonfused_tc",
    ]


def test_ids_are_unique_and_every_engine_has_one() -> None:
    assert len(BY_ID) == len(VARIANTS) == 16 + len(ENGINES)
    assert {engine_of(variant.id) for variant in VARIANTS if variant.algorithm is Algorithm.ENGINE} == set(ENGINES)
    assert BY_ID["cudnn.graph.eng62"].backend is Backend.CUDNN_GRAPH


@pytest.mark.parametrize("value", range(8))
@pytest.mark.parametrize("is_tensor_core", [False, True])
def test_an_id_leads_back_to_its_algorithm(value: int, is_tensor_core: bool) -> None:
    assert algorithm_of(legacy_id(value, is_tensor_core)) == (value, is_tensor_core)


def test_algorithms_stand_where_the_header_numbers_them() -> None:
    assert LEGACY_ALGORITHMS.index("implicit_precomp_gemm") == 1
    assert LEGACY_ALGORITHMS.index("direct") == 3
    assert LEGACY_ALGORITHMS.index("winograd_nonfused") == 7


@pytest.mark.parametrize("dtype", DType)
def test_fma_variants_take_every_dtype_and_tensor_cores_all_but_float32(dtype: DType) -> None:
    for variant in VARIANTS:
        if variant.backend is Backend.CUDNN_LEGACY and variant.id not in NEVER_IMPLEMENTED:
            is_refused = variant.id.endswith("_tc") and dtype is DType.FLOAT32
            why = variant.why_not(ConvProblem.parse("14-1-3-256-128", dtype=dtype), A100)
            assert (why is not None) is is_refused, variant.id


def test_an_engine_of_tensor_cores_does_not_take_float32_and_an_unknown_one_is_asked() -> None:
    for engine in set(TENSOR_CORE_ENGINES) - {FUSED_PRODUCTS}:
        assert "dtype is float32" in (reason(f"cudnn.graph.eng{engine}", "14-1-3-256-128") or "")
        assert reason(f"cudnn.graph.eng{engine}", "14-1-3-256-128", dtype="tf32") is None
    unknown = graph_engine_variant(999)
    assert unknown.why_not(ConvProblem.parse("14-1-3-256-128"), H200) is None
    assert not unknown.is_deterministic


def test_the_engine_of_fused_products_ends_1x1_filters_and_no_others() -> None:
    engine = f"cudnn.graph.eng{FUSED_PRODUCTS}"
    ends = {"dtype": "float16", "layout": "nhwc", "epilogue": Epilogue(bias=True)}
    assert reason(engine, "14-1-1-256-128", **ends) is None
    assert "nothing follows" in (reason(engine, "14-1-1-256-128", dtype="float16", layout="nhwc") or "")
    assert "filter is 3x3" in (reason(engine, "14-1-3-256-128", **ends) or "")
    assert "dtype is float32" in (reason(engine, "14-1-1-256-128", **(ends | {"dtype": "float32"})) or "")


@pytest.mark.parametrize(
    ("variant_id", "layer", "changes", "said"),
    [
        ("cudnn.fft", "256-1-1-8-8", {}, None),
        ("cudnn.fft", "256-1-3-8-8", {}, "258x258"),
        ("cudnn.fft", "14-1-3-8-8", {"stride_w": 2}, "stride"),
        ("cudnn.fft", "14-1-3-8-8", {"dilation_h": 2}, "dilation"),
        ("cudnn.fft", "14-1-3-8-8", {"layout": "nhwc"}, "layout"),
        ("cudnn.fft", "14-1-3-8-8", {"pad_h": 3}, "padding is 3x1"),
        ("cudnn.fft_tiling", "512-1-32-1-1", {}, None),
        ("cudnn.fft_tiling", "512-1-33-1-1", {}, "longer than 32"),
        ("cudnn.fft_tiling", "512-1-1-1-1", {"s": 256}, None),
        ("cudnn.fft_tiling", "512-1-1-1-1", {"s": 257}, "longer than 256"),
        ("cudnn.winograd", "14-1-5-8-8", {}, "filter is 5x5"),
        ("cudnn.winograd_nonfused", "14-1-5-8-8", {}, "not accurate"),
        ("cudnn.graph.eng6", "14-1-5-8-8", {"dtype": "bfloat16"}, "not accurate"),
        ("cudnn.graph.eng6", "14-1-3-8-8", {"dtype": "float16"}, None),
        ("cudnn.winograd_nonfused", "14-1-7-8-8", {}, "filter is 7x7"),
        ("cudnn.winograd_nonfused", "14-1-3-8-8", {"stride_h": 2}, "stride"),
        ("cudnn.gemm", "14-1-3-8-8", {"stride_h": 2}, None),
        ("cudnn.gemm", "14-1-3-8-8", {"layout": "nhwc"}, "layout"),
        ("cudnn.implicit_gemm", "14-1-3-8-8", {"layout": "nhwc", "stride_h": 2, "dilation_w": 2, "groups": 4}, None),
    ],
)
def test_documented_limits(variant_id: str, layer: str, changes: dict[str, object], said: str | None) -> None:
    why = reason(variant_id, layer, **changes)
    assert why is None if said is None else said in (why or "")


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("layout", Layout)
def test_what_runs_nowhere_on_a_device_says_so_of_every_layer(dtype: DType, layout: Layout) -> None:
    problem = ConvProblem.parse("14-1-3-8-8", dtype=dtype, layout=layout)
    for variant_id in NEVER_IMPLEMENTED:
        for device in (H200, A100):
            assert BY_ID[variant_id].why_not(problem, device) is not None
            assert left_to_ask(BY_ID[variant_id].why_not, problem, device) is None
    for variant_id in ("cudnn.winograd", "cudnn.winograd_tc"):
        assert BY_ID[variant_id].why_not(problem, H200) is not None
        assert left_to_ask(BY_ID[variant_id].why_not, problem, H200) is None
        assert left_to_ask(BY_ID[variant_id].why_not, problem, A100) is not None
    assert "implements it for no device" in (reason("cudnn.direct", "14-1-3-8-8") or "")
    assert "cuDNN refuses it for every layer" in (reason("cudnn.winograd", "14-1-3-8-8") or "")
    assert BY_ID["cudnn.winograd"].why_not(ConvProblem.parse("14-1-3-8-8"), A100) is None


def test_a_plan_name_is_read_and_written() -> None:
    name = "eng41_k2=8_k12=-1_k13=1_k14=4_k15=0_k17=128_k18=0_k22=0_k23=0"
    ref = plans.parse_plan_name(name, "b", 7)
    assert ref is not None
    assert (ref.engine, ref.heuristic, ref.index) == (41, "b", 7)
    assert dict(ref.knobs) == {2: 8, 12: -1, 13: 1, 14: 4, 15: 0, 17: 128, 18: 0, 22: 0, 23: 0}
    assert ref.name == name


def test_a_plan_without_knobs_is_read() -> None:
    assert plans.parse_plan_name("eng0") == plans.PlanRef(0, ())


@pytest.mark.parametrize("name", ["", "INVALID_ENGINE_NAME_KNOB_COUNT", "eng", "eng1_k2", "eng1_k2=x", "xeng1_k2=0"])
def test_what_names_no_engine_is_no_plan(name: str) -> None:
    assert plans.parse_plan_name(name) is None


def test_a_stored_plan_is_read_back() -> None:
    ref = plans.parse_plan_name("eng62_k2=5_k13=1_k18=0", "a", 3)
    assert ref is not None
    stored = ref.to_json()
    assert stored == {"engine": 62, "knobs": {"2": 5, "13": 1, "18": 0}, "heuristic": "a", "index": 3}
    assert plans.PlanRef.from_json(stored) == ref


def test_a_plan_is_the_same_whoever_offers_it_and_however_its_knobs_are_ordered() -> None:
    ref = plans.PlanRef(62, ((2, 5), (13, 1)), "a", 0)
    assert ref.is_same_plan(plans.PlanRef(62, ((13, 1), (2, 5)), "fallback", 4))
    assert not ref.is_same_plan(plans.PlanRef(62, ((2, 5), (13, 2)), "a", 0))
    assert not ref.is_same_plan(plans.PlanRef(67, ((2, 5), (13, 1)), "a", 0))


def test_plans_are_grouped_in_order_of_appearance_and_each_once() -> None:
    engines = plans.group_by_engine(
        {
            "a": ["eng67_k2=5", "eng38_k2=8", "eng67_k2=1"],
            "b": ["eng67_k2=5", "bad", "eng0"],
            "fallback": ["eng1", "eng0"],
        }
    )
    assert list(engines) == [67, 38, 0, 1]
    assert [(ref.name, ref.heuristic, ref.index) for ref in engines[67]] == [
        ("eng67_k2=5", "a", 0),
        ("eng67_k2=1", "a", 2),
    ]
    assert [(ref.heuristic, ref.index) for ref in engines[0]] == [("b", 2)]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (1001, LaunchFailed),  # NOT_INITIALIZED
        (1004, NotSupported),  # DEPRECATED
        (2000, NotSupported),  # BAD_PARAM
        (2003, NotSupported),  # BAD_PARAM_MISALIGNED_POINTER
        (3000, NotSupported),  # NOT_SUPPORTED
        (3014, NotSupported),  # NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE
        (4000, LaunchFailed),  # INTERNAL_ERROR
        (4001, CompileFailed),  # INTERNAL_ERROR_COMPILATION_FAILED
        (4003, OutOfMemory),  # INTERNAL_ERROR_HOST_ALLOCATION_FAILED
        (4004, OutOfMemory),  # INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
        (4005, LaunchFailed),  # INTERNAL_ERROR_BAD_LAUNCH_PARAM
        (5000, LaunchFailed),  # EXECUTION_FAILED
        (5003, LaunchFailed),  # EXECUTION_FAILED_CUDART
    ],
)
def test_every_kind_of_status_is_one_of_our_errors(status: int, error: type[Exception]) -> None:
    assert library.error_of(status) is error


def test_the_performance_entry_is_laid_out_as_the_header_has_it() -> None:
    assert ctypes.sizeof(library.ForwardPerformance) == 48
    offsets = [getattr(library.ForwardPerformance, name).offset for name, _ in library.ForwardPerformance._fields_]
    assert offsets == [0, 4, 8, 16, 24, 28, 32]


def test_a_library_that_is_not_there_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_path", lambda: "/nowhere/libcudnn.so.9")
    with pytest.raises(NotSupported, match=r"libcudnn\.so\.9"):
        library.load.__wrapped__()


def test_the_library_of_the_wheel_is_found_before_that_of_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert library._path() == str(wheel)


def test_the_pure_modules_import_without_the_gpu_stack() -> None:
    code = (
        "import sys\nfor name in ('cupy', 'cudnn', 'numpy'): sys.modules[name] = None\n"
        "from conv_advisor.kernels.cudnn import library, plans, variants\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
