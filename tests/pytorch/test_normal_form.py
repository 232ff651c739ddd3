"""Graphs in the form that all else reads: identities are gone, and core ATen is read as any other graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch
from torch.utils.checkpoint import checkpoint  # noqa: E402 - it needs PyTorch

from conv_advisor.torch.tracing import network_of  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


class Dropping(nn.Module):
    """A dropout stands between a convolution and the residual."""

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.conv, self.dropout = nn.Conv2d(8, 8, 3, padding=1), dropout

    def forward(self, x: Any) -> Any:
        return torch.relu(self.dropout(self.conv(x)) + x)


DROPOUTS = {
    "dropout": nn.Dropout(0.5),
    "in place": nn.Dropout(0.5, inplace=True),
    "of channels": nn.Dropout2d(0.5),
    "alpha": nn.AlphaDropout(0.5),
    "of channels, alpha": nn.FeatureAlphaDropout(0.5),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_a_dropout_in_evaluation_is_nothing(name: str, chooser: EverythingAdvised, quick: Any) -> None:
    chooser.takes_endings = True
    network, x = Dropping(DROPOUTS[name]).eval(), random(2, 8, 6, 6)
    with torch.no_grad():
        assert_near(compiled(network)(x), network(x))
    assert [str(problem.epilogue) for problem in chooser.layers] == ["bias-residual-relu"]
    (planned,) = network_of(network, x).convolutions
    assert str(planned.problem.epilogue) == "bias-residual-relu"


def test_a_dropout_that_drops_stays(chooser: EverythingAdvised, quick: Any) -> None:
    chooser.takes_endings = True
    network, x = Dropping(nn.Dropout(1.0)), random(2, 8, 6, 6)
    with torch.no_grad():
        assert torch.equal(compiled(network)(x), torch.relu(x))
    assert [str(problem.epilogue) for problem in chooser.layers] == ["bias"]


DECOMPOSED: dict[str, Callable[[Any], Any]] = {
    "core ATen": lambda program: program.run_decompositions(),
    "functional": lambda program: program.run_decompositions({}),
}


@pytest.mark.parametrize("how", DECOMPOSED)
def test_a_decomposed_program_is_read_as_its_model(how: str, chooser: EverythingAdvised, quick: Any) -> None:
    chooser.takes_endings = True
    network, shape = NETWORKS["resnet"]
    x = random(*shape)
    with torch.no_grad():
        program = DECOMPOSED[how](torch.export.export(network, (x,))).module()
        assert_near(compiled(program)(x), network(x))
    epilogues = sorted(["bias", *["bias-relu"] * 4, *["bias-residual-relu"] * 2])
    assert sorted(str(problem.epilogue) for problem in chooser.layers) == epilogues


def test_a_decomposed_convolution_that_is_none_of_ours_stays(chooser: EverythingAdvised, quick: Any) -> None:
    network, x = nn.Sequential(nn.ConvTranspose2d(8, 8, 3), nn.ReLU()).eval(), random(2, 8, 6, 6)
    with torch.no_grad():
        program = torch.export.export(network, (x,)).run_decompositions().module()
        assert_near(compiled(program)(x), network(x))
    assert chooser.layers == {}


class Checkpointed(nn.Module):
    """Its blocks are checkpointed, one of them within another, as in training."""

    def __init__(self) -> None:
        super().__init__()
        self.network = NETWORKS["resnet"][0]

    def inner(self, x: Any) -> Any:
        return checkpoint(self.network[3], self.network[2](x), use_reentrant=False)

    def forward(self, x: Any) -> Any:
        x = self.network[1](self.network[0](x))
        return self.network[4](checkpoint(self.inner, x, use_reentrant=False))


class WithoutGradients(nn.Module):
    """A part of it says itself that it needs no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.network = NETWORKS["resnet"][0]

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            y = self.network(x)
        return y + 1


@pytest.mark.parametrize("kind", ["checkpointed", "without gradients"])
def test_parts_that_are_wrapped_for_gradients_are_as_any_other(
    kind: str, chooser: EverythingAdvised, quick: Any
) -> None:
    chooser.takes_endings = True
    network, x = (Checkpointed() if kind == "checkpointed" else WithoutGradients()).eval(), random(2, 3, 33, 32)
    with torch.no_grad():
        expected = network(x)
        program = network if kind == "checkpointed" else torch.export.export(network, (x,)).module()
        assert_near(compiled(program)(x), expected)
    assert len(chooser.layers) == 7


def test_what_is_wrapped_otherwise_is_said(
    chooser: EverythingAdvised, quick: Any, caplog: pytest.LogCaptureFixture
) -> None:
    convs = nn.ModuleList(nn.Conv2d(8, 8, 3) for _ in range(2)).eval()

    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, convs[0], convs[1], (x,))

    with torch.no_grad(), caplog.at_level(logging.INFO, "conv_advisor.torch"):
        assert_near(compiled(function)(random(2, 8, 6, 6)), function(random(2, 8, 6, 6)))
    assert "it wraps a part of the model" in caplog.text
    assert chooser.layers == {}
