"""The operator on a CPU: what PyTorch asks of one, its gradients, and what it does where no plan is loaded."""

from __future__ import annotations

import logging
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from conv_advisor.torch import log  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls import loaded  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators import conv2d as operator  # noqa: E402 - it needs PyTorch

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts


def operands(
    layout: str, *, requires_grad: bool = False, dtype: Any = torch.float32
) -> tuple[Any, Any, list[int], list[int], list[int], int, str]:
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 7, 8, generator=generator, dtype=dtype).to(memory_format=memory_format)
    weight = torch.randn(6, 2, 3, 3, generator=generator, dtype=dtype).to(memory_format=memory_format)
    plan = loaded.plan_name(f"7x8-2-3x3-6-4-stride2x1-pad1x1-dilation1x2-groups2-float32-{layout}")
    return x.requires_grad_(requires_grad), weight.requires_grad_(requires_grad), [2, 1], [1, 1], [1, 2], 2, plan


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_is_what_pytorch_asks_of_an_operator(layout: str, requires_grad: bool) -> None:
    torch.library.opcheck(operator.conv2d, operands(layout, requires_grad=requires_grad))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_it_is_the_convolution(layout: str) -> None:
    x, weight, *geometry, plan = operands(layout)
    y = operator.conv2d(x, weight, *geometry, plan)
    stride, padding, dilation, groups = geometry
    assert torch.allclose(y, torch.conv2d(x, weight, None, stride, padding, dilation, groups), atol=1e-5)
    assert y.is_contiguous(memory_format=torch.channels_last) is (layout == "nhwc")


def test_its_gradients_are_those_of_pytorchs_own() -> None:
    x, weight, *geometry, plan = operands("nchw", requires_grad=True, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, weight: operator.conv2d(x, weight, *geometry, plan), (x, weight))


def test_the_layout_of_a_plan_is_told_by_its_name() -> None:
    assert loaded.layout_of_plan(loaded.plan_name("14-1-3-256-128-tf32-nhwc")) == "nhwc"
    assert loaded.layout_of_plan(loaded.plan_name("14-1-3-256-128-tf32-nchw", "deterministic")) == "nchw"


def test_a_failure_is_told_once_and_names_its_layer(caplog: pytest.LogCaptureFixture) -> None:
    log.remember_layer("some plan", "layer1.0.conv1")
    with caplog.at_level(logging.WARNING, "conv_advisor.torch"):
        for _ in range(2):
            log.warn_of_failure("some plan", ValueError("broken"))
    (record,) = caplog.records
    assert "layer1.0.conv1 (some plan)" in record.getMessage()
    assert "ValueError: broken" in record.getMessage()


def test_the_entry_point_leads_to_the_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["conv_advisor"].partition(":")
    import conv_advisor.torch

    assert getattr(import_module(module), name) is conv_advisor.torch.backend


SERVICE = ("fastapi", "pydantic", "sqlalchemy", "numba", "scipy", "sklearn", "uvicorn", "typer")


def test_it_imports_without_the_service_and_without_a_gpu() -> None:
    code = (
        f"import sys\nfor name in {(*SERVICE, 'cupy', 'cudnn', 'pynvml')!r}: sys.modules[name] = None\n"
        "import conv_advisor.torch.choosing.plans\n"
        "import conv_advisor.models.advice.advisor, conv_advisor.models.registry.on_disk\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def most_faults(call: Any) -> float:
    """Page faults of a call, the most over the depths of Python's stack at which it may stand."""

    def at(depth: int) -> float:
        if depth:
            return at(depth - 1)
        call()
        before = getrusage(RUSAGE_SELF).ru_minflt
        for _ in range(5):
            call()
        return (getrusage(RUSAGE_SELF).ru_minflt - before) / 5

    return max(at(depth) for depth in range(250))


def test_no_layer_maps_memory_for_pythons_own_stack() -> None:
    layers = 100

    def run(level: int = 4) -> None:
        if level:
            run(level - 1)

    def graph() -> None:
        for _ in range(layers):
            run()

    if most_faults(graph) < layers:
        pytest.skip("this interpreter keeps its frames in another way")
    assert most_faults(operator.below_autograd(graph)) < layers / 2
