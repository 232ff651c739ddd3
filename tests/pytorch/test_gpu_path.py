"""The way from a graph to the kernels of a GPU and back, with kernels in NumPy: bias and residual reach them."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from torch.nn import functional  # noqa: E402 - it needs PyTorch

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation, Epilogue  # noqa: E402 - it needs PyTorch
from conv_advisor.data.problem import ConvProblem  # noqa: E402 - it needs PyTorch
from conv_advisor.kernels.catalog import VARIANTS  # noqa: E402 - it needs PyTorch
from conv_advisor.kernels.variant import Ending, why_not  # noqa: E402 - it needs PyTorch
from conv_advisor.models.advice.advisor import Advisor  # noqa: E402 - it needs PyTorch
from conv_advisor.models.registry.on_disk import SHIPPED  # noqa: E402 - it needs PyTorch
from conv_advisor.models.tree.file import read  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls import loaded, running, timing  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.checking import Operands  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.own import ACTIVATE  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing.candidates import candidates  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing.choice import Choice  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.options import Options  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, random, watch  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import Endings, every_kind  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import CPU, FakeGpu, advisor, array_at, time_by  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
SMALL = "9-2-3-8-8"
pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


def small(epilogue: str | Epilogue = "", layout: str = "nhwc") -> ConvProblem:
    ends = Epilogue.parse(epilogue) if isinstance(epilogue, str) else epilogue
    return ConvProblem.parse(SMALL, dtype="float32", layout=layout, epilogue=ends)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("epilogue", EVERY_EPILOGUE, ids=str)
def test_a_trial_gives_a_variant_all_that_its_problem_has(epilogue: Epilogue, layout: str, fake_gpu: FakeGpu) -> None:
    problem = small(epilogue, layout)
    choice = fake_gpu.choose({problem: "conv"}, Options())[problem]
    assert choice.variant is not None, choice.reason
    assert choice.time_ms == 0.5
    assert choice.torch_ms == 1.0
    assert choice.max_error is not None
    assert choice.max_error <= 1e-6
    operands = Operands(problem, "cpu")
    run = loaded.LOADED[problem.key, operands.x.shape, CPU]
    assert run is not None
    assert_near(run(operands.x, operands.weight, *operands.ends), operands.own())


def test_a_model_runs_on_its_own_device_whichever_is_current(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, current = small("relu"), ["cuda:3"]
    fake_gpu.choose({problem: "conv"}, Options())
    operands = Operands(problem, "cpu")
    run = loaded.LOADED[problem.key, operands.x.shape, CPU]
    assert run is not None

    @contextmanager
    def made_current(index: int | None) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", made_current)
    seen: list[Any] = []
    monkeypatch.setattr(running, "_stream", lambda *_: seen.append(current[-1]) or nullcontext())
    assert_near(run(operands.x, operands.weight), operands.own())
    assert seen == [operands.x.device.index]
    assert current == ["cuda:3"]


@pytest.mark.parametrize("epilogue", ["bias", "relu", "bias-residual-silu"])
def test_a_wrong_result_is_found_with_an_epilogue_too(
    epilogue: str, fake_gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    fake_gpu.runner.off = 0.01
    with caplog.at_level(logging.WARNING, "conv_advisor.torch"):
        choice = fake_gpu.choose({small(epilogue): "conv"}, Options())[small(epilogue)]
    assert choice.variant is None
    assert not choice.is_settled
    assert "max error" in caplog.text


def test_what_failed_once_is_tried_again(fake_gpu: FakeGpu) -> None:
    problem = small("relu")
    fake_gpu.runner.off = 0.01
    assert fake_gpu.choose({problem: "conv"}, Options())[problem].variant is None
    fake_gpu.runner.off = 0.0
    for _ in range(2):  # in this process, and in the next, which reads the file
        choice = fake_gpu.choose({problem: "conv"}, Options())[problem]
        assert choice.variant is not None
        assert choice.is_settled
        fake_gpu._files.clear()


def test_operands_without_memory_leave_a_layer_to_pytorch(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory, on purpose")

    monkeypatch.setattr(Operands, "_random", fail)
    with caplog.at_level(logging.WARNING, "conv_advisor.torch"):
        choice = fake_gpu.choose({small("relu"): "conv"}, Options())[small("relu")]
    assert choice == Choice(None, reason="it cannot be timed")
    assert "no memory, on purpose" in caplog.text


@pytest.mark.parametrize("activation", Activation)
def test_every_activation_ends_in_its_convolution(
    activation: Activation, fake_gpu: FakeGpu, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = Endings(ACTIVATE[activation]).eval(), random(2, 16, 9, 10)
    seen = watch(monkeypatch)
    with torch.no_grad():
        assert_near(compiled(network)(x), network(x), tolerance=1e-4)
    assert sorted(seen) == sorted(network.operators(activation))


@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_run_by_fused_variants(name: str, is_channels_last: bool, fake_gpu: FakeGpu, quick: Any) -> None:
    network, shape = NETWORKS[name]
    memory_format = torch.channels_last if is_channels_last else torch.contiguous_format
    network, x = network.to(memory_format=memory_format), random(*shape).to(memory_format=memory_format)
    with torch.no_grad():
        expected = network(x.clone(memory_format=memory_format))
        call = compiled(network)
        call(x.clone(memory_format=memory_format))
        fake_gpu.runner.launches.clear()
        ours = call(x.clone(memory_format=memory_format))
    assert_near(ours, expected, tolerance=1e-4)
    assert ours.stride() == expected.stride()
    assert fake_gpu.runner.launches
    if name in ("resnet", "squeezenet", "mobilenet"):
        assert all(problem.epilogue for problem in fake_gpu.runner.launches)


def test_a_variant_keeps_no_more_than_names_of_memory(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[int] = []

    def array_of(shape: Any, dtype: Any, memory: Any) -> Any:
        addresses.append(memory.address)
        return array_at(shape, dtype, memory)

    monkeypatch.setattr(running, "cupy", SimpleNamespace(ndarray=array_of))
    problem = small("bias-relu")
    fake_gpu.choose({problem: "conv"}, Options())
    operands = Operands(problem, "cpu")
    run = loaded.LOADED[problem.key, operands.x.shape, CPU]
    assert run is not None
    tensors = (operands.x, operands.weight, torch.empty_like(operands.own()), *operands.ends)
    run.run_into(*tensors)
    addresses.clear()
    run.run_into(*tensors)
    assert addresses == []
    for _ in range(3):
        images = [torch.zeros_like(operands.x) for _ in range(running._MOST_KEPT)]
        for x in images:
            run.run_into(x, *tensors[1:])
    assert len(run._kept) <= running._MOST_KEPT


def test_a_stream_of_pytorch_is_one_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []

    def enter(device: int) -> AbstractContextManager[None]:
        entered.append(device)
        return nullcontext()

    monkeypatch.setattr(running, "Device", enter)
    running._stream.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streams = [running._stream(address, device) for address, device in ((4096, 0), (0, 0), (0, 1), (0, 1))]
    running._stream.cache_clear()
    assert [stream.ptr for stream in streams] == [4096, 0, 0, 0]
    assert entered == [0, 0, 1], "each made once, on its device"


def test_a_kept_plan_ends_as_it_did(fake_gpu: FakeGpu, quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = NETWORKS["resnet"]
    x = random(*shape)
    with torch.no_grad():
        expected = compiled(network)(x)
        torch.compiler.reset()
        loaded.LOADED.clear()
        fake_gpu._files.clear()
        monkeypatch.setattr(FakeGpu, "_pick", lambda *_: pytest.fail("measured again"))
        fake_gpu.runner.launches.clear()
        assert_near(compiled(network)(x), expected)
    assert "bias-residual-relu" in {str(problem.epilogue) for problem in fake_gpu.runner.launches}


def test_other_batches_take_what_is_kept_with_its_epilogue(fake_gpu: FakeGpu, quick: Any) -> None:
    network, (_, *shape) = NETWORKS["resnet"]
    call = compiled(network, dynamic=True)
    with torch.no_grad():
        for batch in (2, 5, 2):
            x = random(batch, *shape)
            fake_gpu.runner.launches.clear()
            assert_near(call(x), network(x), tolerance=1e-4)
    assert {problem.n for problem in fake_gpu.runner.launches} == {2}


def test_where_no_variant_takes_what_follows_the_convolution_alone_is_tried(
    fake_gpu: FakeGpu, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpu.runner.refuses = lambda problem: bool(problem.epilogue)
    network, shape = NETWORKS["resnet"]
    x = random(*shape)
    with torch.no_grad():
        expected = network(x)
        assert_near(compiled(network)(x), expected, tolerance=1e-4)
    assert fake_gpu.runner.launches
    assert not any(problem.epilogue for problem in fake_gpu.runner.launches)


def test_where_pytorch_is_as_fast_nothing_is_replaced(
    fake_gpu: FakeGpu, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_by(monkeypatch, lambda _name: 1.0)
    network, shape = NETWORKS["resnet"]
    seen = watch(monkeypatch)
    with torch.no_grad():
        compiled(network)(random(*shape))
    assert seen == ["conv2d"] * 8


def test_what_follows_may_be_left_to_inductor(fake_gpu: FakeGpu, quick: Any) -> None:
    network, shape = NETWORKS["resnet"]
    with torch.no_grad():
        compiled(network, options={"fuse": False})(random(*shape))
    assert not any(problem.epilogue for problem in fake_gpu.runner.launches)


def test_a_fused_variant_that_fails_while_it_runs_leaves_all_of_its_layer_to_pytorch(
    fake_gpu: FakeGpu, quick: Any, caplog: pytest.LogCaptureFixture
) -> None:
    conv = torch.nn.Conv2d(8, 8, 3, padding=1).eval()

    def function(x: Any) -> Any:
        return torch.relu(conv(x) + x)

    x = random(2, 8, 6, 6)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "conv_advisor.torch"):
        call = compiled(function)
        expected = call(x)
        for key in loaded.LOADED:
            loaded.LOADED[key] = lambda *_: 1 / 0
        for _ in range(2):
            assert_near(call(x), expected)
    (record,) = (record for record in caplog.records if record.name.startswith("conv_advisor"))
    assert "ZeroDivisionError" in record.getMessage()


@pytest.mark.parametrize("misplaced", ["bias", "residual"])
def test_operands_that_are_not_aligned_are_pytorchs(misplaced: str, fake_gpu: FakeGpu) -> None:
    problem = small("bias-residual-relu", "nchw")
    fake_gpu.choose({problem: "conv"}, Options())
    operands = Operands(problem, "cpu")
    bias, residual = operands.ends
    if misplaced == "bias":
        bias = torch.cat([torch.zeros(1), bias])[1:]
    else:
        residual = torch.cat([torch.zeros(1), residual.flatten()])[1:].view(residual.shape)
    fake_gpu.runner.launches.clear()
    arguments = ([1, 1], [1, 1], [1, 1], 1, "relu", problem.key)
    y = torch.ops.conv_advisor.conv2d_ending_v1(operands.x, operands.weight, bias, residual, *arguments)
    assert fake_gpu.runner.launches == []
    assert_near(y, operands.own())


def test_a_residual_in_another_layout_is_brought_into_the_plans(fake_gpu: FakeGpu) -> None:
    problem = small("bias-residual", "nhwc")
    fake_gpu.choose({problem: "conv"}, Options())
    operands = Operands(problem, "cpu")
    bias, residual = operands.ends
    fake_gpu.runner.launches.clear()
    arguments = ([1, 1], [1, 1], [1, 1], 1, "none", problem.key)
    y = torch.ops.conv_advisor.conv2d_ending_v1(operands.x, operands.weight, bias, residual.contiguous(), *arguments)
    assert fake_gpu.runner.launches == [problem]
    assert_near(y, operands.own())


@pytest.mark.parametrize("epilogue", EVERY_EPILOGUE, ids=str)
def test_errors_are_told_against_float64_of_the_whole_problem(epilogue: Epilogue) -> None:
    operands = Operands(small(epilogue), "cpu")
    assert 0 < operands.own_error < 1e-6


def test_pytorchs_time_is_of_the_convolution_and_one_elementwise_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("add", "relu"):
        inner = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *tensors, name=name, inner=inner: (called.append(name), inner(*tensors))[1]
        )
    for epilogue, operators in {"": [], "bias": ["relu"], "silu": ["relu"], "bias-residual-gelu": ["add"]}.items():
        called.clear()
        Operands(small(epilogue), "cpu").run_as_compiled()
        assert called == operators


@pytest.mark.parametrize(("launch_ms", "wanted"), [(0.003, 64), (0.02, 10), (0.15, 2), (3.0, 1)])
def test_a_region_is_as_long_as_it_must_be_however_slow_the_host_is(
    launch_ms: float, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = object.__new__(timing.Trial)
    captured: list[int] = []

    def capture(call: Any, launches: int) -> Any:
        captured.append(launches)
        return "replay"

    def regions_ms(call: Any, count: int) -> list[float]:
        return [launch_ms * captured[-1] if call == "replay" else max(launch_ms, 0.1)] * count

    monkeypatch.setattr(trial, "_capture", capture, raising=False)
    monkeypatch.setattr(trial, "_regions_ms", regions_ms, raising=False)
    assert trial._time_ms(lambda: None) == pytest.approx(launch_ms)
    assert captured[-1] == wanted


LAYER = ConvProblem.parse("56-1-3-64-64", dtype="float32", layout="nchw")
ENDED = ConvProblem.parse("56-1-3-64-64-bias-residual-relu", dtype="float32", layout="nchw")


@pytest.fixture
def uncounting(monkeypatch: pytest.MonkeyPatch) -> Advisor:
    """An advisor that does not know what epilogues add."""
    monkeypatch.setattr("conv_advisor.models.ranking.predictor.endings_of", lambda *_: None)
    return Advisor(read(SHIPPED / "nvidia-h200"))


def test_who_appends_a_kernel_is_predicted_to_take_it(uncounting: Advisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conv_advisor.torch.choosing.candidates.MOST_SLOWDOWN", inf)
    alone, with_it = (
        {choice.variant or "": choice for choice in candidates(uncounting, problem, Options(measure=99))}
        for problem in (LAYER, ENDED)
    )
    appends = {variant: VARIANTS[variant].ending_of(ENDED.epilogue) is Ending.APPENDED for variant in with_it}
    assert set(appends.values()) == {False, True}
    for variant, choice in with_it.items():
        before = alone[variant]
        assert (choice.time_ms or 0.0) - (before.time_ms or 0.0) == pytest.approx(
            (choice.torch_ms or 0.0) - (before.torch_ms or 0.0) if appends[variant] else 0.0
        )
        assert (choice.torch_ms or 0.0) > (before.torch_ms or 0.0)
    times = [choice.time_ms or 0.0 for choice in with_it.values()]
    assert times == sorted(times)


def test_no_candidate_refuses_what_follows(uncounting: Advisor) -> None:
    hardswish = ConvProblem.parse("56-1-3-64-64-hardswish", dtype="float16", layout="nhwc")
    chosen = candidates(uncounting, hardswish, Options(measure=99))
    assert chosen
    assert not any(why_not(VARIANTS[choice.variant or ""], hardswish, uncounting.device) for choice in chosen)


@pytest.mark.parametrize("measure", [0, 1, 3])
def test_plans_of_cudnn_leave_room_for_variants_that_are_certain_to_run(
    measure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conv_advisor.torch.choosing.candidates.MOST_SLOWDOWN", inf)
    problem = ConvProblem.parse("56-32-3-64-64-bias-relu", dtype="float16", layout="nhwc")
    chosen = candidates(advisor(), problem, Options(measure=measure))
    ranked = [VARIANTS[choice.variant or ""] for choice in chosen if choice.time_ms]
    may_refuse = [variant.ending is Ending.LIBRARY for variant in ranked]
    assert may_refuse.count(False) == max(1, measure)
    assert may_refuse.count(True) <= max(1, measure)


def test_who_may_run_cudnns_alone_gets_no_kernel_of_ours_appended() -> None:
    chosen = candidates(advisor(), ENDED, Options(measure=99, only_cudnn=True))
    assert chosen
    assert {VARIANTS[choice.variant or ""].ending_of(ENDED.epilogue) for choice in chosen} == {Ending.LIBRARY}


def test_a_plan_file_of_before_serves_the_convolution_alone(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    fake_gpu.choose({small(): "conv"}, Options())
    (path,) = tmp_path.iterdir()
    choices = json.loads(path.read_text())["choices"]
    assert list(choices) == [small().key]
    fake_gpu.runner.launches.clear()
    fake_gpu.choose({small("relu"): "conv"}, Options())
    assert set(fake_gpu.runner.launches) == {small("relu")}
    assert set(json.loads(path.read_text())["choices"]) == {small().key, small("relu").key}


def test_a_call_by_the_functional_form_ends_too(fake_gpu: FakeGpu, quick: Any) -> None:
    weight = torch.randn(8, 8, 3, 3)
    with torch.no_grad():
        call = compiled(lambda x: functional.hardswish(functional.conv2d(x, weight, padding=1)))
        call(random(2, 8, 6, 6))
    assert {str(problem.epilogue) for problem in fake_gpu.runner.launches} == {"hardswish"}
