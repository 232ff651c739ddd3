"""Convolutions that load x through a batch norm and a ReLU, from concatenations that nobody copies; and all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.torch import backend  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing import gpu  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators import lowering  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import Bottlenecks, PreActivated  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import FakeGpu, time_by  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]
BEHIND = f"extern_kernels.{lowering.NAME_BEHIND}("


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor calls our functions for a CPU too, and a variant in float32 takes a prologue."""
    monkeypatch.setattr(lowering, "DEVICES", {"cpu"})
    monkeypatch.setattr(gpu, "BEHIND_PROLOGUE", "cuda.implicit_gemm_tma")
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def ran(network: Any, n: int = 2, **options: Any) -> Any:
    """A network, with batch norms that have run, in channels last and evaluation."""
    with torch.no_grad():
        network.train()(images(n))
        for norm in network.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.weight.uniform_(-1, 1), norm.bias.uniform_(-1, 1)
    return network.eval().to(memory_format=torch.channels_last)


def images(n: int = 2) -> Any:
    return torch.randn(n, 8, 12, 12).to(memory_format=torch.channels_last)


def compiled(network: Any, x: Any, **options: Any) -> tuple[Any, str]:
    """The compiled network, once it returned what the network does, and the call that Inductor wrote."""
    from torch._inductor.utils import run_and_get_code

    with torch.no_grad():
        call = torch.compile(network, backend=backend, options=options or None)
        y, (code,) = run_and_get_code(call, x)
        for got, expected in zip(leaves(y), leaves(network(x)), strict=True):
            assert_near(got, expected)
            assert got.stride() == expected.stride()
    return call, code.partition("def call(")[2]


def leaves(y: Any) -> tuple[Any, ...]:
    return y if isinstance(y, tuple) else (y,)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layers", [2, 9])
def test_no_channel_of_a_dense_block_is_copied(layers: int, stride: int, fake_gpu: FakeGpu) -> None:
    _, call = compiled(ran(Bottlenecks(8, 4, layers, stride)), images())
    assert call.count(BEHIND) == layers + 1
    assert call.count(f"extern_kernels.{lowering.NAME_WITHIN}(") == layers
    assert call.count("cpp_fused") == 2, "the pools ahead of it and behind it are all that Inductor computes"
    whole = 8 + 4 * layers
    assert fake_gpu.runner.behind_prologue[-layers - 1 :] == [
        (problem, whole) for problem, _ in fake_gpu.runner.behind_prologue[-layers - 1 :]
    ]
    assert [problem.c for problem, _ in fake_gpu.runner.behind_prologue[-layers - 1 :]] == [*range(8, whole + 1, 4)]


def test_two_convolutions_read_through_one_norm(fake_gpu: FakeGpu) -> None:
    _, call = compiled(ran(PreActivated(8, 12)), images())
    assert call.count(BEHIND) == 2
    assert {problem.c for problem, _ in fake_gpu.runner.behind_prologue} == {8}


def test_changed_statistics_are_loaded_through(fake_gpu: FakeGpu) -> None:
    network = ran(Bottlenecks(8, 4, 2))
    call, _ = compiled(network, images())
    with torch.no_grad():
        network.norms[1].running_mean += 1
        network.norms[2].weight *= -2
        x = images()
        count = len(fake_gpu.runner.behind_prologue)
        assert_near(call(x), network(x))
        assert len(fake_gpu.runner.behind_prologue) >= count + 3


def test_a_failure_falls_back_with_one_warning(fake_gpu: FakeGpu, caplog: pytest.LogCaptureFixture) -> None:
    network = ran(Bottlenecks(8, 4, 2))
    call, _ = compiled(network, images())
    fake_gpu.runner.fails_behind_prologue = True
    with torch.no_grad():
        for _ in range(2):
            x = images()
            assert_near(call(x), network(x))
    warnings = [record.getMessage() for record in caplog.records if "failed and are not used" in record.getMessage()]
    assert [warning.split(" (")[0].split()[-1] for warning in warnings] == [
        "squeezes.0.0",
        "squeezes.1.0",
        "transition",
    ]


def test_another_batch_is_answered(fake_gpu: FakeGpu) -> None:
    network = ran(Bottlenecks(8, 4, 2))
    call, _ = compiled(network, images())
    with torch.no_grad():
        for n in (3, 5):
            x = images(n)
            assert_near(call(x), network(x))


def test_where_convolutions_cannot_write_in_place_concatenations_stay(fake_gpu: FakeGpu) -> None:
    fake_gpu.runner.writes_within = lambda problem: False
    _, call = compiled(ran(Bottlenecks(8, 4, 3)), images())
    assert BEHIND not in call


def test_a_kernel_that_is_slower_by_more_than_it_spares_is_not_taken(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"run_as_compiled": 1.0, "behind_prologue": 0.9}
    time_by(monkeypatch, lambda name: times.get(name, 0.5))
    _, call = compiled(ran(Bottlenecks(8, 4, 2)), images())
    assert BEHIND not in call


@pytest.mark.parametrize("options", [{"fold": False}, {"only_cudnn": True}, {"measure": 0}], ids=str)
def test_options_may_rule_it_out(options: dict[str, Any], fake_gpu: FakeGpu) -> None:
    _, call = compiled(ran(Bottlenecks(8, 4, 2)), images(), **options)
    assert BEHIND not in call


class Otherwise(torch.nn.Module):
    """A batch norm and a ReLU that more reads than convolutions of one tap without padding."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.ahead, self.norm = kind, torch.nn.Conv2d(8, 8, 1), torch.nn.BatchNorm2d(8)
        taps, padding = {"taps": (3, 0), "padding": (1, 1)}.get(kind, (1, 0))
        self.conv = torch.nn.Conv2d(8, 8, taps, padding=padding)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.ahead(x).exp())
        z = torch.relu(y)
        if self.kind == "also read":
            return self.conv(z) + z
        if self.kind == "norm read":
            return self.conv(z) + y
        if self.kind == "another activation":
            return self.conv(torch.nn.functional.silu(y))
        return self.conv(z)


@pytest.mark.parametrize("kind", ["taps", "padding", "also read", "norm read", "another activation"])
def test_what_is_read_otherwise_is_computed_as_before(kind: str, fake_gpu: FakeGpu) -> None:
    _, call = compiled(ran(Otherwise(kind)), images())
    assert fake_gpu.runner.launches
    assert BEHIND not in call
    assert not fake_gpu.runner.behind_prologue


def test_what_is_kept_is_not_timed_again(fake_gpu: FakeGpu) -> None:
    network = ran(PreActivated(8, 12))
    compiled(network, images())
    torch.compiler.reset()
    count = len(fake_gpu.runner.behind_prologue)
    _, call = compiled(network, images())
    assert call.count(BEHIND) == 2
    assert len(fake_gpu.runner.behind_prologue) == count + 2
