"""Whole models held against float64 by `optimize`, and what it refuses to look at."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.data.errors import InvalidInput  # noqa: E402 - it needs PyTorch
from conv_advisor.torch import modules  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.modules import AdvisedConv2d  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts


def test_the_check_tells_a_wrong_variant(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, shape = every_kind()["resnet"]
    x = random(*shape)
    right = conv_advisor.torch.optimize(network, x, check=True).errors
    assert right is not None
    assert 0 < right.now <= 2 * right.before < 1e-5
    original = torch.ops.conv_advisor.conv2d_v1.default
    monkeypatch.setattr(modules, "conv2d", lambda *arguments: 1.1 * original(*arguments))
    wrong = conv_advisor.torch.optimize(network, x, check=True).errors
    assert wrong is not None
    assert wrong.before == right.before
    assert wrong.now > 1e-3


class Returning(nn.Module):
    """Returns what a function makes of x and of its convolution of x."""

    def __init__(self, returned: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.conv, self.returned = nn.Conv2d(8, 8, 3), returned
        self.eval()

    def forward(self, x: Any) -> Any:
        return self.returned(x, self.conv(x))


def test_a_check_runs_on_what_it_was_given(chooser: EverythingAdvised) -> None:
    network = Returning(lambda x, y: (x.mul_(2), y)[1])
    errors = conv_advisor.torch.optimize(network, random(2, 8, 6, 6), check=True).errors
    assert errors is not None
    assert errors.now < 1e-5


def test_a_check_tells_what_is_not_a_number(chooser: EverythingAdvised) -> None:
    network = Returning(lambda _, y: (y, y / 0 - y / 0, y))
    errors = conv_advisor.torch.optimize(network, random(2, 8, 6, 6), check=True).errors
    assert errors is not None
    assert isnan(errors.now)
    assert isnan(errors.before)


UNCHECKABLE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no tensor": (lambda _, y: SimpleNamespace(y=y), "returns tensors of floats"),
    "no floats": (lambda _, y: y.argmax(1), "returns tensors of floats"),
    "one precision": (lambda _, y: y.flatten(1) @ torch.ones(128, 1), r"runs in float64 \(RuntimeError: "),
}


@pytest.mark.parametrize("name", UNCHECKABLE)
def test_what_cannot_be_checked_is_said_and_left_as_it_was(name: str, chooser: EverythingAdvised) -> None:
    returned, reason = UNCHECKABLE[name]
    network = Returning(returned)
    with pytest.raises(InvalidInput, match=f"check is True; allowed: True for a model that {reason}"):
        conv_advisor.torch.optimize(network, random(2, 8, 6, 6), check=True)
    assert not any(type(module) is AdvisedConv2d for module in network.modules())
    assert conv_advisor.torch.optimize(network, random(2, 8, 6, 6)).n_swapped == 1


@pytest.mark.parametrize("is_scripted", [True, False])
def test_what_is_no_module_is_refused_by_name(is_scripted: bool) -> None:
    model = torch.jit.script(nn.Conv2d(8, 8, 3)) if is_scripted else torch.relu
    x = random(2, 8, 6, 6)
    for call in (conv_advisor.torch.optimize, conv_advisor.torch.plan):
        with pytest.raises(InvalidInput, match=rf"model is '{type(model).__name__}'; allowed: a torch\.nn\.Module"):
            call(model, x)


def test_no_module_can_be_restored() -> None:
    with pytest.raises(InvalidInput, match="model is 'int'"):
        conv_advisor.torch.restore(3)
