"""The first call with a kept plan: nothing is predicted, timed or prepared twice, and `optimize` runs by it at once."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("cupy", reason="CuPy is not installed")

from conv_advisor.data.problem import ConvProblem  # noqa: E402 - it needs PyTorch
from conv_advisor.torch import optimize  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls import loaded  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing.choice import Choice  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch
from tests.pytorch.stand_in import FakeGpu  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts


def test_a_kept_plan_runs_from_the_first_call_of_a_model_on(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = NETWORKS["resnet"]
    x = torch.rand(shape)
    first = optimize(copy.deepcopy(network), x)
    assert first.n_swapped
    loaded.LOADED.clear()
    fake_gpu._loaded.clear()
    fake_gpu.runner.prepared.clear()
    fake_gpu.runner.launches.clear()
    own = torch.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", lambda *_: pytest.fail("PyTorch's own convolution ran"))
    again = copy.deepcopy(network)
    report = optimize(again, x)
    monkeypatch.setattr(torch.nn.functional, "conv2d", own)
    assert [str(layer) for layer in report.layers] == [str(layer) for layer in first.layers]
    assert len(fake_gpu.runner.launches) == sum(layer.count for layer in report.layers)
    assert len(fake_gpu.runner.prepared) == len({layer.problem for layer in report.layers}), "each is prepared once"
    with torch.no_grad():
        assert_near(again(x), network(x))


def test_what_is_kept_but_gains_too_little_is_pytorchs_in_the_first_call_too(fake_gpu: FakeGpu) -> None:
    network, shape = NETWORKS["resnet"]
    optimize(copy.deepcopy(network), torch.rand(shape))
    fake_gpu.runner.launches.clear()
    assert optimize(copy.deepcopy(network), torch.rand(shape), min_gain=100).n_swapped == 0
    assert fake_gpu.runner.launches == []


def test_a_model_whose_run_fails_is_as_it_was(fake_gpu: FakeGpu) -> None:
    network, shape = copy.deepcopy(NETWORKS["resnet"][0]), NETWORKS["resnet"][1]
    types = [type(module) for module in network.modules()]
    with pytest.raises(RuntimeError):
        optimize(network, torch.rand(shape)[:, :2])
    assert [type(module) for module in network.modules()] == types
    assert not any(name.startswith("conv_advisor") for module in network.modules() for name in vars(module))


def test_a_kept_graph_is_laid_out_as_before_and_nothing_is_asked(
    fake_gpu: FakeGpu, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, shape = NETWORKS["resnet"]
    x = torch.rand(shape)
    times = {"nchw": 1.0, "nhwc": 0.95}
    monkeypatch.setattr(fake_gpu, "predicted_ms", lambda problem, _: times[problem.layout])
    timed_by_layout(fake_gpu, monkeypatch, {"nchw": 0.5, "nhwc": 0.3})
    with torch.no_grad():
        compiled(network)(x)
    first = {plan for plan, *_ in loaded.LOADED}
    assert {plan.rpartition("-")[2] for plan in first} == {"nchw", "nhwc"}, "both were close enough to be timed"
    assert {problem.layout for problem in fake_gpu.runner.launches[-3:]} == {"nhwc"}
    torch.compiler.reset()
    loaded.LOADED.clear()
    fake_gpu._loaded.clear()
    fake_gpu._files.clear()
    for method in ("predicted_ms", "_pick"):
        monkeypatch.setattr(fake_gpu, method, lambda *_, name=method: pytest.fail(name))
    with torch.no_grad():
        assert_near(compiled(network)(x), network(x))
    assert {plan.rpartition("-")[2] for plan, *_ in loaded.LOADED} == {"nhwc"}


def test_predictions_alone_are_kept_for_nobody(fake_gpu: FakeGpu, quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = NETWORKS["resnet"]
    monkeypatch.setattr(fake_gpu, "predicted_ms", lambda problem, _: 1.0 if problem.layout == "nchw" else 0.1)
    with torch.no_grad():
        compiled(network, options={"measure": 0})(torch.rand(shape))
    assert {plan.rpartition("-")[2] for plan, *_ in loaded.LOADED} == {"nhwc"}
    (file,) = fake_gpu._files.values()
    content = json.loads(file.path.read_text())
    assert (content["choices"], content["layouts"]) == ({}, {})


def timed_by_layout(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, times: dict[str, float]) -> None:
    """Let every variant take so long, by the layout of its problem."""
    pick = fake_gpu._pick

    def picked(problem: ConvProblem, *rest: Any) -> Choice:
        return replace(pick(problem, *rest), time_ms=times[problem.layout])

    monkeypatch.setattr(fake_gpu, "_pick", picked)
