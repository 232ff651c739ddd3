"""Convolutions that write into the concatenation that reads them, and everything that stays a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.torch import backend  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.graph.concatenations import share_beginnings  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators import lowering  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import Dense, Expanding  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import FakeGpu  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inductor calls our functions for a CPU too, and takes nothing that it compiled before."""
    monkeypatch.setattr(lowering, "DEVICES", {"cpu"})
    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def compiled(network: Any, x: Any, **options: Any) -> tuple[Any, str]:
    """What a network returns in channels last, and the call that Inductor wrote."""
    from torch._inductor.utils import run_and_get_code

    network = network.eval().to(memory_format=torch.channels_last)
    with torch.no_grad():
        y, (code,) = run_and_get_code(torch.compile(network, backend=backend, options=options or None), x)
        assert_near(y, network(x))
        assert y.stride() == network(x).stride()
    return y, code.partition("def call(")[2]


def images(n: int = 2) -> Any:
    return torch.randn(n, 8, 6, 6).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dim", [1, -3])
@pytest.mark.parametrize("filters", [(8, 12), (4, 8, 16, 4)])
def test_convolutions_write_into_their_concatenation(filters: tuple[int, ...], dim: int, fake_gpu: FakeGpu) -> None:
    _, call = compiled(Expanding(filters, lambda parts: torch.cat(tensors=parts, dim=dim)), images())
    assert call.count(f"extern_kernels.{lowering.NAME_WITHIN}(") == len(filters)
    assert call.count(f"extern_kernels.{lowering.NAME}(") == 2
    assert "cpp_fused" not in call, "nothing is copied"
    assert [problem.k for problem in fake_gpu.runner.written_within] == [*filters]


def test_one_that_cannot_is_copied_alone(fake_gpu: FakeGpu) -> None:
    fake_gpu.runner.writes_within = lambda problem: problem.k != 12
    _, call = compiled(Expanding(), images())
    assert call.count(f"extern_kernels.{lowering.NAME_WITHIN}(") == 1
    assert call.count("cpp_fused") == 1
    assert [problem.k for problem in fake_gpu.runner.written_within] == [8]


def test_where_two_cannot_inductor_copies_all_at_once(fake_gpu: FakeGpu) -> None:
    fake_gpu.runner.writes_within = lambda problem: problem.k == 4
    _, call = compiled(Expanding((8, 12, 4)), images())
    assert lowering.NAME_WITHIN not in call
    assert call.count("cpp_fused") == 1


def test_a_reader_that_may_be_anything_does_not_matter(fake_gpu: FakeGpu) -> None:
    compiled(Expanding(joined=lambda parts: torch.cat(parts, 1).sin()), images())
    assert [problem.k for problem in fake_gpu.runner.written_within] == [8, 12]


@pytest.mark.parametrize(
    "joined",
    [
        lambda parts: torch.relu(torch.cat(parts, 1)),
        lambda parts: torch.cat([*parts, parts[0]], 1)[:, :20],
        lambda parts: torch.cat([part.repeat(1, 2, 1, 1) for part in parts], 1)[:, ::2],
    ],
    ids=["fused reader", "read twice", "no convolutions"],
)
def test_what_is_not_written_or_read_otherwise_stays_a_copy(joined: Any, fake_gpu: FakeGpu) -> None:
    _, call = compiled(Expanding((8, 12), joined), images())
    assert fake_gpu.runner.launches
    assert lowering.NAME_WITHIN not in call


def test_pixels_that_begin_anywhere_are_copied(fake_gpu: FakeGpu) -> None:
    for filters in ((6, 12), (8, 6)):
        _, call = compiled(Expanding(filters), images())
        assert lowering.NAME_WITHIN not in call


def test_other_dimensions_are_left(fake_gpu: FakeGpu) -> None:
    network = Expanding((20, 20), lambda parts: torch.cat(parts, 2))
    network.last = torch.nn.Conv2d(20, 4, 1)
    _, call = compiled(network, images())
    assert lowering.NAME_WITHIN not in call


def test_another_part_is_copied_into_its_place(fake_gpu: FakeGpu) -> None:
    class Skip(Expanding):
        def forward(self, x: Any) -> Any:
            up = torch.nn.functional.interpolate(self.expand[0](self.squeeze(x)), scale_factor=2.0)
            skip = torch.relu(self.expand[1](torch.nn.functional.interpolate(self.squeeze(x), scale_factor=2.0)))
            return self.last(torch.cat([up, skip], 1))

    _, call = compiled(Skip(), images())
    assert call.count(f"extern_kernels.{lowering.NAME_WITHIN}(") == 1
    assert [problem.k for problem in fake_gpu.runner.written_within] == [12]


@pytest.mark.parametrize("is_written", [True, False])
def test_what_pools_read_too_is_written_in_place_and_what_convolutions_read_is_not(
    is_written: bool, fake_gpu: FakeGpu
) -> None:
    class Skip(Expanding):
        def forward(self, x: Any) -> Any:
            left, right = (torch.relu(expand(self.squeeze(x))) for expand in self.expand)
            beside = torch.nn.functional.max_pool2d(left, 2) if is_written else self.other(left)
            return self.last(torch.cat([left, right], 1)), beside

    network = Skip()
    network.other = torch.nn.Conv2d(8, 4, 1)
    with torch.no_grad():
        network, x = network.eval().to(memory_format=torch.channels_last), images()
        for ours, own in zip(torch.compile(network, backend=backend)(x), network(x), strict=True):
            assert_near(ours, own)
            assert ours.stride() == own.stride()
    assert [problem.k for problem in fake_gpu.runner.written_within] == ([8, 12] if is_written else [12])


def test_what_fails_is_pytorchs_and_copied(fake_gpu: FakeGpu, caplog: pytest.LogCaptureFixture) -> None:
    network, x = Expanding().eval().to(memory_format=torch.channels_last), images()
    call = torch.compile(network, backend=backend)
    with torch.no_grad():
        expected = network(x)
        assert_near(call(x), expected)
        fake_gpu.runner.off = float("nan")
        fake_gpu.runner.written_within = None  # type: ignore[assignment]  # so that what runs next fails
        assert_near(call(x), expected)
        assert_near(call(x), expected)
    warnings = [record for record in caplog.records if "failed and are not used" in record.getMessage()]
    assert len(warnings) == 2, "one a layer"


def test_a_batch_that_nobody_chose_for_is_copied(fake_gpu: FakeGpu) -> None:
    network = Expanding().eval().to(memory_format=torch.channels_last)
    call = torch.compile(network, backend=backend, dynamic=True)
    with torch.no_grad():
        for batch in (2, 5, 2):
            fake_gpu.runner.written_within.clear()
            x = images(batch)
            assert_near(call(x), network(x), tolerance=1e-4)
            assert len(fake_gpu.runner.written_within) == (2 if batch == 2 else 0)


def test_without_inductor_it_is_left(fake_gpu: FakeGpu) -> None:
    network, x = Expanding().eval().to(memory_format=torch.channels_last), images()
    with torch.no_grad():
        assert_near(torch.compile(network, backend=backend, options={"inductor": False})(x), network(x))
    assert not fake_gpu.runner.written_within


def dense(layers: int) -> Any:
    """A block of so many layers, each of which reads all ahead of it."""
    return Dense(4, 4, layers).eval().to(memory_format=torch.channels_last)


def parts_of_each(graph: Any) -> list[int]:
    """How many tensors each concatenation of a graph takes."""
    return [len(node.args[0]) for node in graph.nodes if node.target is torch.cat]


@pytest.mark.parametrize("layers", [8, 9, 20, 50])
def test_what_many_begin_with_is_concatenated_once(layers: int, fake_gpu: FakeGpu) -> None:
    graphs, x = list[Any](), torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)

    def keep(gm: Any, inputs: Any, **options: Any) -> Any:
        call = backend(gm, inputs, **options)
        graphs.append(gm.graph)
        return call

    network = dense(layers)
    with torch.no_grad():
        assert_near(torch.compile(network, backend=keep)(x), network(x), tolerance=1e-4)
    (graph,) = graphs
    counts = parts_of_each(graph)
    if layers == 8:
        assert counts == [1, 2, 3, 4, 5, 6, 7, 8, 9], "one alone is as long"
    else:
        assert max(counts) <= 8
        assert sum(counts) < sum(range(layers + 2))
        n_ahead = len(counts) - (layers + 1)
        assert 1 <= n_ahead <= layers / 2


@pytest.mark.parametrize("is_written", [False, True])
def test_what_changes_in_between_is_not_shared(is_written: bool) -> None:
    class Changing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            parts = [x + number for number in range(9)]
            first = torch.cat(parts, dim=1)
            if is_written:
                parts[0].add_(1)
            return first, torch.cat(tensors=parts, dim=1)

    graphs = list[Any]()

    def keep(gm: Any, inputs: Any) -> Any:
        share_beginnings(gm.graph)
        gm.recompile()
        graphs.append(gm.graph)
        return gm.forward

    x = torch.randn(2, 4, 3, 3)
    for ours, own in zip(torch.compile(Changing(), backend=keep)(x), Changing()(x), strict=True):
        assert torch.equal(ours, own)
    names = [node for node in graphs[0].nodes if node.target is torch.cat]
    assert len(names) == (2 if is_written else 3)
