"""Graphs that the backend leaves to PyTorch as they are: gradients, transforms, and those of no single GPU."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

from conv_advisor.torch.choosing.chooser import chooser_for  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


def test_a_graph_that_turns_gradients_on_is_left_alone(chooser: EverythingAdvised, quick: Any) -> None:
    network, shape = every_kind()["resnet"]
    original, x = copy.deepcopy(network), random(*shape)

    def record(x: Any) -> Any:
        with torch.enable_grad():
            return network(x)

    with torch.no_grad():
        y = compiled(record)(x)
    y.square().mean().backward()
    original(x).square().mean().backward()
    assert chooser.layers == {}
    for parameter, own_parameter in zip(network.parameters(), original.parameters(), strict=True):
        assert_near(parameter.grad, own_parameter.grad)


CONV = nn.Conv2d(8, 8, 3, padding=1).requires_grad_(False).eval()
TRANSFORMED = {
    "vmap": (torch.vmap(CONV), (3, 2, 8, 6, 6)),
    "vmap of weights": (lambda x: torch.vmap(torch.conv2d, (None, 0))(x, x.reshape(1, 8, 8, 3, 3)), (1, 8, 8, 9)),
    "grad": (torch.func.grad(lambda x: CONV(x).square().mean()), (2, 8, 6, 6)),
    "jacfwd": (torch.func.jacfwd(lambda x: torch.relu(CONV(x))), (1, 8, 3, 3)),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_what_torch_func_transforms_is_left_alone(name: str, chooser: EverythingAdvised, quick: Any) -> None:
    function, shape = TRANSFORMED[name]
    x = random(*shape)
    with torch.no_grad():
        assert_near(compiled(function)(x), function(x))
    assert chooser.layers == {}


def test_tensors_of_the_host_leave_a_graph_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    if torch.cuda.device_count() == 1:
        pytest.skip("a fake tensor on a second GPU needs one, unless there is none at all")
    opened = SimpleNamespace(open_gpu=lambda index: f"cuda:{index}")
    monkeypatch.setitem(sys.modules, "conv_advisor.torch.choosing.gpu", opened)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with FakeTensorMode():
        first, second = (torch.empty(1, 8, 6, 6, device=f"cuda:{index}") for index in range(2))
        scale = torch.empty(())
    assert chooser_for([first, 3, scale]) == "cuda:0"
    assert chooser_for([scale, 3]) is None
    assert chooser_for([first, second]) is None
