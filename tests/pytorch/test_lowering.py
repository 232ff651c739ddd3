"""How a graph that Inductor compiled calls a convolution: past the dispatcher, on a y that Inductor allocated."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.data.epilogue import Epilogue  # noqa: E402 - it needs PyTorch
from conv_advisor.data.problem import ConvProblem  # noqa: E402 - it needs PyTorch
from conv_advisor.torch import backend  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls import loaded  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.checking import Operands  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators import lowering  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.options import Options  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import FrozenBatchNorm  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import FakeGpu  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


def layer(epilogue: str, layout: str = "nhwc") -> ConvProblem:
    ends = Epilogue.parse(epilogue) if epilogue else Epilogue()
    return ConvProblem.parse("9-2-3-8-8-stride2", dtype="float32", layout=layout, epilogue=ends)


def call(operands: Operands, problem: ConvProblem) -> Any:
    """y by the function that graphs call."""
    y = torch.full_like(operands.own(), torch.nan)
    ends = (end for end in operands.ends if end is not None)
    lowering.convolve_into(operands.x, operands.weight, *ends, plan=problem.key, out=y)
    return y


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("epilogue", ["", "bias", "relu", "residual", "bias-residual-silu"])
def test_a_graph_runs_what_is_loaded(epilogue: str, layout: str, fake_gpu: FakeGpu) -> None:
    problem = layer(epilogue, layout)
    fake_gpu.choose({problem: "conv"}, Options())
    operands = Operands(problem, "cpu")
    fake_gpu.runner.launches.clear()
    assert_near(call(operands, problem), operands.own())
    assert fake_gpu.runner.launches == [problem]


def test_a_shape_of_which_nothing_is_kept_is_pytorchs(fake_gpu: FakeGpu) -> None:
    problem = layer("bias-residual-relu")
    operands = Operands(problem, "cpu")
    assert_near(call(operands, problem), operands.own())
    assert fake_gpu.runner.launches == []


@pytest.mark.parametrize("misplaced", [0, 1])
def test_an_operand_that_is_not_aligned_leaves_the_layer_to_pytorch(misplaced: int, fake_gpu: FakeGpu) -> None:
    problem = layer("bias-residual-relu", "nchw")
    fake_gpu.choose({problem: "conv"}, Options())
    operands = Operands(problem, "cpu")
    ends = list(operands.ends)
    ends[misplaced] = torch.cat([torch.zeros(1), ends[misplaced].flatten()])[1:].view(ends[misplaced].shape)
    operands.ends = tuple(ends)
    fake_gpu.runner.launches.clear()
    assert_near(call(operands, problem), operands.own())
    assert fake_gpu.runner.launches == []


def test_what_fails_is_told_once_and_pytorchs_from_then_on(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = layer("bias")
    fake_gpu.choose({problem: "conv"}, Options())
    (run,) = loaded.LOADED.values()
    monkeypatch.setattr(run, "_run", lambda *_: 1 / 0)
    operands = Operands(problem, "cpu")
    with caplog.at_level(logging.WARNING, "conv_advisor.torch"):
        for _ in range(2):
            assert_near(call(operands, problem), operands.own())
    (record,) = (record for record in caplog.records if record.name.startswith("conv_advisor"))
    assert "ZeroDivisionError" in record.getMessage()
    assert list(loaded.LOADED.values()) == [None]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor calls the function for a CPU too, and takes nothing that it compiled before."""
    monkeypatch.setattr(lowering, "DEVICES", {"cpu"})
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


class Block(torch.nn.Module):
    """Two convolutions, the second with all that may end in one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.nn.functional.silu(self.first(x))) + x)


def compiled(network: Any, x: Any, **options: Any) -> tuple[Any, str]:
    """What a network returns, compiled by Inductor, and the code that it wrote."""
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        y, (code,) = run_and_get_code(torch.compile(network, backend=backend, options=options or None), x)
    return y, code


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_inductor_calls_the_function_and_no_operator(memory_format: Any, fake_gpu: FakeGpu, on_cpu: None) -> None:
    network, x = Block().eval(), torch.randn(2, 8, 6, 6).to(memory_format=memory_format)
    network = network.to(memory_format=memory_format)
    y, code = compiled(network, x)
    assert code.count(f"extern_kernels.{lowering.NAME}(") == 2
    assert "torch.ops.conv_advisor" not in code
    with torch.no_grad():
        assert_near(y, network(x))
        assert y.stride() == network(x).stride()
    assert {str(problem.epilogue) for problem in fake_gpu.runner.launches} >= {"bias-silu", "bias-residual-relu"}


def test_another_layout_takes_one_copy_on_either_end(
    fake_gpu: FakeGpu, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_gpu, "predicted_ms", lambda problem, _: 1.0 if problem.layout == "nchw" else 0.5)
    monkeypatch.setattr(fake_gpu, "conversion_ms", lambda n_bytes, options: 0.1)
    network, x = torch.nn.Sequential(Block(), Block()).eval(), torch.randn(2, 8, 6, 6)
    y, code = compiled(network, x)
    assert code.count(f"extern_kernels.{lowering.NAME}(") == 4
    _, _, graph = code.partition("def call(")
    assert graph.count("cpp_fused") == 2, "x is laid out anew, and y; no weight is, and nothing between"
    with torch.no_grad():
        assert_near(y, network(x))
        assert y.stride() == network(x).stride()
    assert {problem.layout for problem in fake_gpu.runner.launches} == {"nhwc"}


def test_what_is_folded_is_not_in_what_inductor_writes(fake_gpu: FakeGpu, on_cpu: None) -> None:
    conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(8, 8, 3, 2))
    network = torch.nn.Sequential(torch.nn.ZeroPad2d((0, 1, 0, 1)), conv, FrozenBatchNorm(8), torch.nn.ReLU()).eval()
    x = torch.randn(2, 8, 6, 6)
    y, code = compiled(network, x)
    _, _, graph = code.partition("def call(")
    assert graph.count(f"extern_kernels.{lowering.NAME}(") == 1
    assert "cpp_fused" not in graph
    with torch.no_grad():
        assert_near(y, network(x))
    assert {problem.pad_h_end for problem in fake_gpu.runner.launches} == {1}


def test_an_input_with_gaps_is_made_dense_first(fake_gpu: FakeGpu, on_cpu: None) -> None:
    network, x = Block().eval(), torch.randn(2, 8, 6, 12)[..., ::2]
    y, code = compiled(network, x)
    assert f"extern_kernels.{lowering.NAME}(" in code
    with torch.no_grad():
        assert_near(y, network(x))
    assert fake_gpu.runner.launches


def test_one_graph_serves_other_batches(fake_gpu: FakeGpu, on_cpu: None) -> None:
    network = Block().eval()
    call_ = torch.compile(network, backend=backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 5, 2):
            x = torch.randn(batch, 8, 6, 6)
            fake_gpu.runner.launches.clear()
            assert_near(call_(x), network(x), tolerance=1e-4)
            assert {problem.n for problem in fake_gpu.runner.launches} == ({2} if batch == 2 else set())


def test_elsewhere_inductor_calls_the_operator(
    fake_gpu: FakeGpu, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "DEVICES", {"cuda"})
    _, code = compiled(Block().eval(), torch.randn(2, 8, 6, 6))
    assert lowering.NAME not in code
    assert "torch.ops.conv_advisor.conv2d_ending_v1" in code


def test_the_next_process_finds_what_inductor_compiled(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    monkeypatch.setattr(lowering, "DEVICES", {"cpu"})
    network = torch.nn.Sequential(
        Block(), torch.nn.BatchNorm2d(8), torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8)
    ).eval()
    x = torch.randn(2, 8, 6, 6)
    hits = []
    with fresh_cache(), torch.no_grad():
        for _ in range(2):
            torch.compiler.reset()
            loaded.LOADED.clear()
            counters.clear()
            call_ = torch.compile(network, backend=backend)
            call_(x)
            fake_gpu.runner.launches.clear()
            assert_near(call_(x), network(x))
            hits.append((counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]))
            assert len(fake_gpu.runner.launches) == 3, "what was found runs what is loaded"
    assert hits == [(0, 0), (1, 1)]
