"""The networks of the benchmark that are made here: the backend leaves what they compute as it is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from benchmarks.networks.cells import UNSEEN  # noqa: E402 - it needs PyTorch
from benchmarks.networks.unseen import MODELS, SHAPES  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


def test_those_that_are_made_here_are_among_the_unseen() -> None:
    assert set(MODELS) == set(SHAPES) < set(UNSEEN)


@pytest.mark.parametrize(("name", "convolutions"), [("latent_decoder", 39), ("unet", 19)])
def test_they_run_by_the_backend(name: str, convolutions: int, chooser: EverythingAdvised, quick: Any) -> None:
    network, (channels, *_) = MODELS[name]().eval(), SHAPES[name]
    n_convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in network.modules())
    assert n_convolutions == convolutions
    x = random(1, channels, 16, 16) if name == "unet" else random(1, channels, 4, 4)
    with torch.no_grad():
        expected = network(x)
        assert expected.shape[2:] == ((16, 16) if name == "unet" else (32, 32))
        assert_near(compiled(network)(x), expected, tolerance=1e-4)
    assert chooser.layers
