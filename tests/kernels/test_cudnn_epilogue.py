"""What follows a convolution, as both of cuDNN's interfaces are asked for it; no GPU is needed."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation, Epilogue
from conv_advisor.data.errors import LaunchFailed, NotSupported
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cudnn import library
from conv_advisor.kernels.cudnn.epilogue import IMPLICIT_PRECOMP_GEMM, ended, in_fused_call
from conv_advisor.kernels.cudnn.variants import LEGACY_ALGORITHMS, VARIANTS, algorithm_of
from conv_advisor.kernels.variant import Backend, Ending, Variant

LEGACY = [variant for variant in VARIANTS if variant.backend is Backend.CUDNN_LEGACY]
H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0")


class Drawn:
    """A graph of the frontend that keeps what is added to it; a node's tensor is its name."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, node: str) -> Any:
        def add(**settings: Any) -> str:
            self.nodes.append((node, settings))
            return node

        return add


def test_a_residual_a_bias_and_an_activation_are_nodes_in_the_order_that_cudnn_fuses() -> None:
    graph = Drawn()
    y = ended(graph, Epilogue(bias=True, residual=True, activation=Activation.RELU6), "sums", "bias of K", "as y")
    assert graph.nodes == [
        ("add", {"a": "sums", "b": "as y"}),
        ("bias", {"input": "add", "bias": "bias of K"}),
        ("relu", {"input": "bias", "upper_clip": 6.0}),
    ]
    assert y == "relu"


def test_a_convolution_alone_is_what_it_was() -> None:
    graph = Drawn()
    assert ended(graph, Epilogue(), "sums") == "sums"
    assert graph.nodes == []


def test_silu_is_a_product_with_the_sigmoid_whatever_the_frontend_calls_its_own() -> None:
    graph = Drawn()
    assert ended(graph, Epilogue(bias=True, activation=Activation.SILU), "sums", "bias of K") == "mul"
    assert graph.nodes[1:] == [("sigmoid", {"input": "bias"}), ("mul", {"a": "bias", "b": "sigmoid"})]


def test_only_hardswish_has_no_node() -> None:
    counts = dict.fromkeys(Activation, 1) | {Activation.NONE: 0, Activation.SILU: 2}
    for epilogue in EVERY_EPILOGUE[1:]:
        graph = Drawn()
        if epilogue.activation is Activation.HARDSWISH:
            with pytest.raises(NotSupported, match="hardswish"):
                ended(graph, epilogue, "sums")
        else:
            ended(graph, epilogue, "sums")
            assert len(graph.nodes) == epilogue.bias + epilogue.residual + counts[epilogue.activation]


def test_the_graph_api_fuses_and_the_legacy_api_has_a_kernel_appended_or_one_call() -> None:
    endings = {variant.backend: variant.ending for variant in VARIANTS}
    assert endings == {Backend.CUDNN_GRAPH: Ending.LIBRARY, Backend.CUDNN_LEGACY: Ending.APPENDED}
    for variant in LEGACY:
        assert variant.in_library_call == in_fused_call(algorithm_of(variant.id)[0])
        assert variant.ending_of(Epilogue(bias=True, activation=Activation.RELU)) is Ending.LIBRARY
        assert variant.ending_of(Epilogue(residual=True)) is Ending.APPENDED


def test_the_fused_call_adds_a_bias_and_has_the_identity_for_one_algorithm_alone() -> None:
    for algorithm, name in enumerate(LEGACY_ALGORITHMS):
        texts = {str(epilogue) for epilogue in in_fused_call(algorithm)}
        identity = {"bias", "bias-residual"} if name == "implicit_precomp_gemm" else set()
        assert texts == {"bias-relu", "bias-residual-relu"} | identity
    assert LEGACY_ALGORITHMS.index("implicit_precomp_gemm") == IMPLICIT_PRECOMP_GEMM


@pytest.mark.parametrize("variant", LEGACY, ids=lambda variant: variant.id)
def test_the_legacy_api_refuses_uneven_padding_by_name(variant: Variant) -> None:
    problem = ConvProblem.parse("14-1-3-8-8", dtype=DType.FLOAT16, pad_w_end=0)
    reason = variant.why_not(problem, H200)
    assert reason == "padding is 1x1 and 1x0, and the legacy API has one number for opposite sides"
    assert "padding" not in (variant.why_not(replace(problem, pad_w_end=1), H200) or "")


@contextmanager
def imported(child: str) -> Iterator[ModuleType]:
    """A module of ``kernels.cudnn`` that imports CuPy, with a stand-in for it; nobody else sees either."""
    package = importlib.import_module("conv_advisor.kernels.cudnn")
    name = f"{package.__name__}.{child}"
    before = {each: sys.modules.pop(each) for each in ("cupy", name) if each in sys.modules}
    sys.modules["cupy"] = MagicMock()
    with patch.dict(vars(package)):
        try:
            yield importlib.import_module(name)
        finally:
            for each in ("cupy", name):
                sys.modules.pop(each, None)
            sys.modules.update(before)


class Calls:
    """Stands for the library: keeps the calls whose arguments have the declared types, and numbers descriptors."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[Any]]] = []

    def __call__(self, function: str, *arguments: Any) -> None:
        declared: tuple[Any, ...] = library._ARGUMENTS[function]
        for kind, argument in zip(declared, arguments, strict=True):
            kind.from_param(argument)
        if function.startswith("cudnnCreate"):
            arguments[0]._obj.value = 100 + len(self.made)
        self.made.append((function, [_value(each) for each in arguments]))

    def of(self, function: str) -> list[Any]:
        """The arguments of its only call."""
        (arguments,) = (given for name, given in self.made if name == function)
        return arguments


def _value(argument: Any) -> Any:
    argument = getattr(argument, "_obj", argument)  # of byref
    return getattr(argument, "value", argument)


@pytest.fixture
def calls() -> Calls:
    return Calls()


Prepare = Callable[[Variant, ConvProblem, int], Any]


@pytest.fixture
def prepare(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepare]:
    """`legacy.prepare` without a library; what is appended is said by a call of that name."""
    with imported("legacy") as legacy:
        monkeypatch.setattr(legacy, "call", calls)
        monkeypatch.setattr(legacy, "handle", lambda: 7)
        monkeypatch.setattr(legacy, "append", lambda launch, problem: ("appended", launch, problem))
        monkeypatch.setattr(legacy, "current_stream", lambda: 9)
        monkeypatch.setattr(library, "_told", {})
        monkeypatch.setattr(library, "call", calls)
        monkeypatch.setattr(library, "handle", lambda: 7)
        yield legacy.prepare


def tensor(address: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def of_algorithm(algorithm: str) -> Variant:
    (variant,) = (each for each in LEGACY if each.id == f"cudnn.{algorithm}")
    return variant


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("text", ["bias", "bias-relu", "bias-residual", "bias-residual-relu"])
def test_the_fused_call_is_given_every_part_in_its_place(
    prepare: Prepare, calls: Calls, text: str, layout: Layout, dtype: DType
) -> None:
    problem = ConvProblem.parse(f"8-2-3-16-8-{text}", dtype=dtype, layout=layout)
    launch = prepare(of_algorithm("implicit_precomp_gemm"), problem, 2**20)
    x, weight, y, bias, residual = (tensor(address) for address in (10, 11, 12, 13, 14))
    for _ in range(2):
        launch.run(x, weight, y, bias, residual if problem.epilogue.residual else None)
    first, second = (given for name, given in calls.made if name == "cudnnConvolutionBiasActivationForward")
    assert first == second
    calls.made.pop()
    created = {
        function: [given[0] for name, given in calls.made if name == function]
        for function in ("cudnnCreateTensorDescriptor", "cudnnCreateActivationDescriptor")
    }
    x_shape, y_shape, bias_shape = created["cudnnCreateTensorDescriptor"]
    (activation,) = created["cudnnCreateActivationDescriptor"]
    kind = {DType.FLOAT16: 2, DType.BFLOAT16: 9}.get(dtype, 0)
    shapes = [given for name, given in calls.made if name == "cudnnSetTensor4dDescriptor"]
    assert shapes[-1] == [bias_shape, 0, kind, 1, 16, 1, 1]
    relu = 1 if "relu" in text else 5
    assert calls.of("cudnnSetActivationDescriptor") == [activation, relu, 0, 0.0]
    given = calls.of("cudnnConvolutionBiasActivationForward")
    assert (given[:4], given[5]) == ([7, 1.0, x_shape, 10], 11)
    assert given[7:10] == [IMPLICIT_PRECOMP_GEMM, 0, 0]
    assert given[10:13] == ([1.0, y_shape, 14] if "residual" in text else [0.0, y_shape, 12])
    assert given[13:] == [bias_shape, 13, activation, y_shape, 12]
    assert calls.of("cudnnSetStream") == [7, 9]


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [("implicit_precomp_gemm", "bias-silu"), ("implicit_precomp_gemm", "relu"), ("fft", "bias"), ("gemm", "residual")],
)
def test_what_the_fused_call_does_not_compute_is_appended(
    prepare: Prepare, calls: Calls, algorithm: str, text: str
) -> None:
    problem = ConvProblem.parse(f"8-2-3-16-8-{text}")
    appended, launch, given = prepare(of_algorithm(algorithm), problem, 2**20)
    launch.run(tensor(10), tensor(11), tensor(12))
    assert (appended, given) == ("appended", problem)
    assert calls.of("cudnnConvolutionForward")[-1] == 12


def test_descriptors_are_destroyed_with_their_launch(prepare: Prepare, calls: Calls) -> None:
    launch = prepare(of_algorithm("gemm"), ConvProblem.parse("8-2-3-16-8-bias-relu"), 2**20)
    created = sorted(given[0] for name, given in calls.made if name.startswith("cudnnCreate"))
    del launch
    assert sorted(given[0] for name, given in calls.made if name.startswith("cudnnDestroy")) == created


def test_each_side_is_padded_as_the_problem_says(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = MagicMock(cudnnGraphNotSupportedError=type("cudnnGraphNotSupportedError", (Exception,), {}))
    problem = ConvProblem.parse("14-1-3-8-8", pad_h=0, pad_w=2, pad_h_end=3, pad_w_end=1)
    with imported("graph") as graph:
        monkeypatch.setattr(graph, "_frontend", lambda: frontend)
        monkeypatch.setattr(graph.library, "handle", lambda: ctypes.c_void_p(7))
        made = graph._new_graph(problem)
    settings = made.conv_fprop.call_args.kwargs
    assert (settings["pre_padding"], settings["post_padding"]) == ([0, 2], [3, 1])


@pytest.mark.parametrize(
    ("broken", "refused"),
    [(ImportError("no module"), NotSupported), (AttributeError("partially initialized module"), LaunchFailed)],
    ids=["missing", "half imported"],
)
def test_a_process_that_half_imported_the_frontend_is_given_up(
    broken: Exception, refused: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with imported("graph") as graph:
        monkeypatch.setattr(graph.library, "load", lambda: None)
        monkeypatch.setattr(graph.importlib, "import_module", MagicMock(side_effect=broken))
        with pytest.raises(refused, match=str(broken)):
            graph._frontend()
