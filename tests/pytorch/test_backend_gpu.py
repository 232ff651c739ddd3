"""The backend on a GPU: right answers by every kind of variant, under capture, on several streams, after failures."""

from __future__ import annotations

import copy
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.catalog import VARIANTS

MISSING = ""
try:
    import torch
    from torch._inductor.utils import run_and_get_code

    from conv_advisor.torch.calls import loaded
    from conv_advisor.torch.calls.layers import MEMORY_FORMATS, TORCH_DTYPES
    from conv_advisor.torch.calls.own import ACTIVATE
    from conv_advisor.torch.calls.running import Prepared
    from conv_advisor.torch.calls.timing import Trial
    from conv_advisor.torch.choosing import gpu as gpus
    from conv_advisor.torch.choosing.choice import Choice
    from conv_advisor.torch.operators.lowering import NAME, NAME_BEHIND, NAME_WITHIN
    from conv_advisor.torch.options import Options
    from conv_advisor.torch.swapping import optimize
    from tests.pytorch.comparing import compiled, watch
    from tests.pytorch.networks import Bottlenecks, Endings, Expanding, every_kind
except ImportError as error:
    MISSING = str(error)

NETWORKS = {} if MISSING else every_kind()
ACTIVATIONS = [] if MISSING else list(ACTIVATE)
NAMES = ("resnet", "densenet", "squeezenet", "mobilenet", "shared weight", "two readers", "mutating")
KINDS = [("float32", "nchw"), ("float16", "nhwc"), ("bfloat16", "nhwc"), ("float32", "nhwc")]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING) and os.environ.get("REQUIRE_TORCH") != "1", reason=f"not installed: {MISSING}"),
]


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Choices of this test alone, and float32 as it is."""
    monkeypatch.setenv("CONV_ADVISOR_PLANS", str(tmp_path))
    forget()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield tmp_path
    forget()


def forget() -> None:
    """Start as a new process does, but with the GPU open."""
    torch.compiler.reset()
    loaded.LOADED.clear()
    gpu = gpus.open_gpu(0)
    assert gpu is not None
    gpu._files.clear()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own convolution never wins, so that the variants run on layers as small as these."""
    monkeypatch.setattr("conv_advisor.torch.choosing.fastest.LEAST_GAIN", 0.0)


def on_gpu(name: str, dtype: str = "float32", layout: str = "nchw") -> tuple[Any, Any]:
    return placed(*NETWORKS[name], dtype, layout)


def placed(network: Any, shape: tuple[int, ...], dtype: str, layout: str) -> tuple[Any, Any]:
    """A copy of a network and an input of a shape, on the GPU."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    place = {"device": "cuda", "dtype": getattr(torch, dtype), "memory_format": MEMORY_FORMATS[Layout(layout)]}
    return copy.deepcopy(network).to(**place), x.to(**place)


def assert_near_float64(network: Any, x: Any, ours: Any, eager: Any) -> None:
    """As near to float64 as PyTorch's own in the same precision, and a little for chance on so few outputs."""
    expected = copy.deepcopy(network).double()(x.double())
    scale = float(expected.abs().max())
    error, eagers = (float((y.double() - expected).abs().max()) / scale for y in (ours, eager))
    assert error <= 3 * eagers + 2e-5


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_as_near_to_float64_as_pytorchs(
    name: str, dtype: str, layout: str, always: None, plans: Path, quick: Any
) -> None:
    network, x = on_gpu(name, dtype, layout)
    with torch.no_grad():
        eager, ours = (call(x.clone(memory_format=torch.preserve_format)) for call in (network, compiled(network)))
        assert ours.stride() == eager.stride()
        if name != "mutating":
            assert_near_float64(network, x, ours, eager)
    (path,) = plans.iterdir()
    choices = json.loads(path.read_text())["choices"].values()
    assert any(choice["variant"] for choice in choices)
    assert any(run is not None for run in loaded.LOADED.values())


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("name", ["resnet", "squeezenet", "mobilenet"])
def test_another_layout_changes_no_output(
    name: str, dtype: str, layout: str, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus.Gpu, "predicted_ms", lambda _, problem, __: 1.0 if problem.layout == layout else 1e-3)
    network, x = on_gpu(name, dtype, layout)
    with torch.no_grad():
        eager, call = network(x), compiled(network)
        for _ in range(2):
            ours = call(x)
            assert_near_float64(network, x, ours, eager)
            assert ours.stride() == eager.stride()
    assert {plan.partition("/")[0].rpartition("-")[2] for plan, *_ in loaded.LOADED} == {"nchw", "nhwc"} - {layout}


@pytest.mark.parametrize(("dtype", "layout"), KINDS[:2])
def test_inductor_takes_what_the_backend_leaves_it(dtype: str, layout: str, always: None) -> None:
    network, x = on_gpu("resnet", dtype, layout)
    with torch.no_grad():
        ours, (code,) = run_and_get_code(compiled(network), x)
        assert_near_float64(network, x, ours, network(x))
    assert f"extern_kernels.{NAME}(" in code, "a variant is called as a function"
    assert "torch.ops.conv_advisor" not in code


@pytest.mark.parametrize(("dtype", "layout"), [*KINDS, ("float16", "nchw")])
def test_convolutions_write_into_their_concatenation(dtype: str, layout: str, always: None) -> None:
    """Where the fastest variants can, also in a captured graph; the answer is right in either layout."""
    network, x = placed(Expanding((64, 96, 32), channels=128).eval(), (8, 128, 28, 28), dtype, layout)
    with torch.no_grad():
        call = compiled(network)
        ours, (code,) = run_and_get_code(call, x)
        assert_near_float64(network, x, ours, network(x))
        readers = {
            plan.partition("/")[0]: run for (plan, *_), run in loaded.LOADED.items() if "-3x3" in plan or "-3-" in plan
        }
        can = [run is not None and run.writes_within for run in readers.values()]
        assert (NAME_WITHIN in code) == (can.count(False) <= 1), readers
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x)
        for _ in range(2):
            x.copy_(torch.randn_like(x))
            graph.replay()
            assert_near_float64(network, x, y, network(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_dense_block_is_loaded_through_its_norms(dtype: str, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No channel of it is copied, also in a captured graph, where whatever is spared is worth it."""
    monkeypatch.setattr("conv_advisor.torch.choosing.gpu.Gpu.conversion_ms", lambda *_, **__: 1.0)
    network = Bottlenecks(64, 32, 9)
    with torch.no_grad():
        network.train()(torch.randn(4, 64, 56, 56))
    network, x = placed(network.eval(), (4, 64, 56, 56), dtype, "nhwc")
    with torch.no_grad():
        call = compiled(network)
        ours, (code,) = run_and_get_code(call, x)
        assert_near_float64(network, x, ours, network(x))
        within = [run for (plan, *_), run in loaded.LOADED.items() if "-3-32-64" in plan]
        assert (NAME_BEHIND in code) == all(run is not None and run.writes_within for run in within), within
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x)
        for _ in range(2):
            x.copy_(torch.randn_like(x))
            graph.replay()
            assert_near_float64(network, x, y, network(x))


@pytest.mark.parametrize(("dtype", "layout"), KINDS[:3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_follows_ends_in_the_convolution(
    activation: str, dtype: str, layout: str, always: None, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_all_is_fused(Endings(ACTIVATE[activation]), activation, dtype, layout, monkeypatch)


@pytest.mark.parametrize(
    "geometry", [{"padding": (0, 2)}, {"padding": (2, 1), "stride": (1, 2)}, {"dilation": 2}], ids=str
)
@pytest.mark.parametrize(("dtype", "layout"), KINDS[:2])
def test_it_does_so_however_the_filter_goes(
    geometry: dict[str, Any], dtype: str, layout: str, always: None, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_all_is_fused(Endings(torch.relu, **geometry), "relu", dtype, layout, monkeypatch)


def assert_all_is_fused(
    network: Any, activation: str, dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = placed(network.eval(), (2, 16, 14, 15), dtype, layout)
    seen = watch(monkeypatch)
    with torch.no_grad():
        eager, ours = network(x), compiled(network)(x)
        assert ours.stride() == eager.stride()
        assert_near_float64(network, x, ours, eager)
    assert sorted(seen) == sorted(network.operators(activation))
    assert all(run is not None for run in loaded.LOADED.values())


@pytest.mark.parametrize(("dtype", "layout"), KINDS[:2])
def test_padding_of_one_side_more_is_the_convolutions_own(
    dtype: str, layout: str, always: None, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 4, padding="same"), torch.nn.ReLU())
    network, x = placed(network.eval(), (2, 16, 14, 15), dtype, layout)
    seen = watch(monkeypatch)
    with torch.no_grad():
        eager, ours = network(x), compiled(network)(x)
        assert_near_float64(network, x, ours, eager)
    assert len(seen) == 1
    assert [run is not None for run in loaded.LOADED.values()] == [True]


def test_a_fused_network_keeps_to_pytorch_where_that_is_as_fast(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conv_advisor.torch.choosing.fastest.LEAST_GAIN", float("inf"))
    network, x = on_gpu("resnet", "float16", "nhwc")
    seen = watch(monkeypatch)
    with torch.no_grad():
        compiled(network)(x)
    assert seen == ["conv2d"] * 8


def test_a_kept_plan_is_neither_measured_nor_ranked_again(
    always: None, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = on_gpu("resnet")
    with torch.no_grad():
        expected = compiled(network)(x)
        forget()
        monkeypatch.setattr(gpus.Gpu, "_pick", lambda *_: pytest.fail("measured again"))
        monkeypatch.setattr(gpus, "candidates", lambda *_: pytest.fail("ranked again"))
        assert torch.allclose(compiled(network)(x), expected, rtol=1e-4, atol=1e-4)
    assert any(run is not None for run in loaded.LOADED.values())


def test_the_first_of_the_ranking_needs_no_measurement(monkeypatch: pytest.MonkeyPatch, quick: Any) -> None:
    monkeypatch.setattr(gpus, "Trial", lambda *_: pytest.fail("measured"))
    network, x = on_gpu("resnet")
    seen = watch(monkeypatch)
    with torch.no_grad():
        eager, ours = network(x), compiled(network, options={"measure": 0})(x)
        assert_near_float64(network, x, ours, eager)
    assert set(seen) == {"conv2d_ending_v1"}


@pytest.mark.parametrize("is_kept", [False, True])
def test_it_is_captured_as_it_is(is_kept: bool, always: None) -> None:
    network, x = on_gpu("resnet", "float16", "nhwc")
    with torch.no_grad():
        compiled(network)(x)
        if is_kept:
            forget()
        call = compiled(network)
        call(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x)
        x.mul_(2)
        graph.replay()
        expected = call(x)
    assert torch.allclose(y, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


def test_reduce_overhead(always: None) -> None:
    network, x = on_gpu("resnet")
    call = compiled(network, mode="reduce-overhead")
    with torch.no_grad():
        for factor in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
            if factor > 3.0:  # the graph is replayed by now
                network[0][0].weight.mul_(1.5)
            y, expected = call(x * factor).clone(), network(x * factor)
            assert torch.allclose(y, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_several_threads_each_on_its_stream(always: None, quick: Any) -> None:
    network, x = on_gpu("resnet")
    call = compiled(network)
    outputs: dict[int, Any] = {}
    with torch.no_grad():
        call(x)
        inputs = [x * (index + 1) for index in range(4)]
        expected = [network(images) for images in inputs]
    torch.cuda.synchronize()

    def run(index: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                outputs[index] = call(inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for index, y in enumerate(expected):
        assert torch.allclose(outputs[index], y, rtol=1e-3, atol=1e-3 * float(y.abs().max()))


def test_a_variant_that_fails_leaves_its_layer_to_pytorch(
    always: None, quick: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network, x = on_gpu("two readers")
    with torch.no_grad():
        call = compiled(network)
        expected = call(x)

        def fail(*_: Any) -> None:
            raise RuntimeError("broken on purpose")

        monkeypatch.setattr(Prepared, "__call__", fail)
        with caplog.at_level(logging.WARNING, "conv_advisor.torch"):
            for _ in range(2):
                assert torch.allclose(call(x), expected, rtol=1e-4, atol=1e-4)
    (record,) = (record for record in caplog.records if record.name.startswith("conv_advisor"))
    assert "conv" in record.getMessage()
    assert "broken on purpose" in record.getMessage()


def test_other_batches_run_by_what_is_kept_of_them_or_by_pytorch(always: None, quick: Any) -> None:
    network, x = on_gpu("squeezenet")
    call = compiled(network, dynamic=True)
    with torch.no_grad():
        for batch in (2, 5, 3, 2):
            images = x[:1].expand(batch, -1, -1, -1).contiguous()
            expected = network(images)
            assert torch.allclose(call(images), expected, rtol=1e-3, atol=1e-3)


def test_pytorchs_own_stays_where_it_is_faster(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conv_advisor.torch.choosing.fastest.LEAST_GAIN", float("inf"))
    network, x = on_gpu("resnet")
    with torch.no_grad():
        compiled(network)(x)
    assert set(loaded.LOADED.values()) == {None}


RUN = [
    ("cuda.gemm", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cuda.gemm", "14-2-1-32-16", {"dtype": "float16", "layout": "nhwc"}),
    ("cuda.winograd_fused", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cuda.winograd_nonfused", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cuda.winograd_nonfused_4x4_3x3", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cuda.cuconv", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cuda.implicit_gemm", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cuda.implicit_gemm_nhwc", "14-2-3-32-16", {"dtype": "float16", "layout": "nhwc"}),
    ("cuda.implicit_gemm_nhwc", "14-2-3-32-3", {"dtype": "float16", "layout": "nhwc"}),
    ("cuda.implicit_gemm_tma", "14-2-3-32-16", {"dtype": "bfloat16", "layout": "nhwc"}),
    ("cuda.implicit_gemm_transposed", "14-2-3-32-16", {"dtype": "float16", "layout": "nchw"}),
    ("cuda.pointwise", "14-2-1-64-64", {"dtype": "float16", "layout": "nchw"}),
    ("cuda.depthwise", "14-2-3-16-16", {"dtype": "float32", "layout": "nchw", "groups": 16}),
    ("cuda.grouped", "14-2-3-64-64", {"dtype": "bfloat16", "layout": "nhwc", "groups": 4}),
    ("cuda.direct_naive", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cudnn.implicit_precomp_gemm", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cudnn.winograd_nonfused", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
    ("cudnn.fft_tiling", "14-2-3-32-16", {"dtype": "float32", "layout": "nchw"}),
]


def prepared(variant: str, problem: ConvProblem) -> Prepared | Exception:
    gpu = gpus.open_gpu(0)
    assert gpu is not None
    return gpu._preparer.prepare(problem, Choice(variant), Options())


@pytest.mark.parametrize("epilogue", ["", "bias", "relu", "residual-hardswish", "bias-residual-relu"])
@pytest.mark.parametrize(("variant", "layer", "fields"), RUN)
def test_every_kind_of_variant_runs_on_pytorchs_tensors(
    variant: str, layer: str, fields: dict[str, Any], epilogue: str
) -> None:
    problem = ConvProblem.parse(layer, **fields, epilogue=Epilogue.parse(epilogue))
    run = prepared(variant, problem)
    assert isinstance(run, Prepared), run
    run.warm()
    with torch.no_grad(), Trial(problem, "cuda:0", torch.cuda.Stream()) as trial:
        timed, own = trial.of(run), trial.own()
    assert trial.failures == []
    assert timed is not None
    assert timed.time_ms > 0
    assert own.time_ms > 0
    assert 0 <= own.max_error < 1e-2


@pytest.mark.parametrize("epilogue", ["", "bias-relu"])  # a residual is refused by every engine that is offered here
@pytest.mark.parametrize(("dtype", "layout"), [("float16", "nhwc"), ("tf32", "nchw"), ("float32", "nchw")])
def test_engines_of_cudnns_graph_api_run_too(dtype: str, layout: str, epilogue: str) -> None:
    problem = ConvProblem.parse("14-2-3-32-16", dtype=dtype, layout=layout, epilogue=Epilogue.parse(epilogue))
    runs = [prepared(name, problem) for name in VARIANTS if name.startswith("cudnn.graph.")]
    ready = [run for run in runs if isinstance(run, Prepared)]
    assert ready
    with torch.no_grad(), Trial(problem, "cuda:0", torch.cuda.Stream()) as trial:
        assert all(trial.of(run) for run in ready), trial.failures


@pytest.mark.parametrize("epilogue", ["", "bias-residual-relu"])
@pytest.mark.parametrize("variant", ["cuda.winograd_nonfused", "cuda.winograd_nonfused_4x4_3x3", "cuda.gemm"])
def test_scratch_memory_is_of_each_call(variant: str, epilogue: str) -> None:
    problem = ConvProblem.parse("28-8-3-64-64", dtype="float32", layout="nchw", epilogue=Epilogue.parse(epilogue))
    run = prepared(variant, problem)
    assert isinstance(run, Prepared)
    dtype, memory_format = TORCH_DTYPES[problem.dtype], MEMORY_FORMATS[problem.layout]
    inputs = [torch.rand(8, 64, 28, 28, device="cuda", dtype=dtype).to(memory_format=memory_format) for _ in range(4)]
    weight = torch.rand(64, 64, 3, 3, device="cuda", dtype=dtype)
    ends = (torch.rand(64, device="cuda"), torch.rand(8, 64, 28, 28, device="cuda")) if epilogue else ()
    expected = [run(x, weight, *ends) for x in inputs]
    torch.cuda.synchronize()
    graphs, outputs = [], []
    for x in inputs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outputs.append(run(x, weight, *ends))
    streams = [torch.cuda.Stream() for _ in inputs]
    for _ in range(50):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for ours, y in zip(outputs, expected, strict=True):
        assert torch.equal(ours, y)


@pytest.mark.parametrize("epilogue", ["", "bias-relu"])
def test_a_wrong_result_is_not_timed(epilogue: str) -> None:
    problem = ConvProblem.parse("14-2-3-32-16", dtype="float32", layout="nchw", epilogue=Epilogue.parse(epilogue))
    run = prepared("cuda.implicit_gemm", problem)
    assert isinstance(run, Prepared)
    inner = run._run
    run._run = lambda x, weight, y, *ends: inner(x, x, y, *ends)
    with torch.no_grad(), Trial(problem, "cuda:0", torch.cuda.Stream()) as trial:
        assert trial.of(run) is None
    assert "max error" in str(trial.failures[0])


@pytest.mark.parametrize(("dtype", "layout"), KINDS)
@pytest.mark.parametrize("name", ["resnet", "squeezenet", "mobilenet"])
def test_swapped_modules_are_as_near_to_float64_as_pytorchs(name: str, dtype: str, layout: str, always: None) -> None:
    network, x = on_gpu(name, dtype, layout)
    with torch.no_grad():
        eager = network(x)
        swapped = copy.deepcopy(network)
        report = optimize(swapped, x, min_gain=1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            ours = swapped(x)
        assert ours.stride() == eager.stride()
        assert_near_float64(network, x, ours, eager)
    assert report.n_swapped
    assert any(event.key.startswith("aten::") for event in profile.key_averages())
    assert not any(event.key.startswith("conv_advisor") for event in profile.key_averages())
