"""Networks by name: those whose layers ship, and torchvision's where it is installed."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from typing import Final

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType
from conv_advisor.models.planning.network import Network, Operator

TORCHVISION: Final = "torchvision:"
"""Prefix of the names of torchvision's models."""
_EVERYTHING: Final = "what all layers hand on"
_BOUNDLESS_BYTES: Final = 2**60
"""Size that makes converting a tensor too expensive for any plan."""
_IMAGE: Final = 224
"""Rows and columns of the input of a torchvision model."""


def known_network(name: str, *, batch: int, dtype: DType) -> Network:
    """A network whose layers ship.

    How the layers are connected is not known, so one hub connects them all, and they get one layout.

    Raises
    ------
    UnknownNetwork, InvalidProblem
    """
    layers = networks.whole(name)
    hub = Operator(_EVERYTHING, "", (), (_EVERYTHING,), takes_either=True)
    convolutions = [
        Operator(
            name=f"{layer.source}, {repetition + 1} of {layer.count}" if layer.count > 1 else layer.source,
            kind="Conv",
            reads=(_EVERYTHING,),
            writes=(),
            problem=replace(layer.problem, n=batch, dtype=dtype),
            weight=f"{number}.{repetition}",
        )
        for number, layer in enumerate(layers)
        for repetition in range(layer.count)
    ]
    remark = "only the layers of this network are known, not their connections, so all are planned in one layout"
    return Network(name, (hub, *convolutions), {_EVERYTHING: _BOUNDLESS_BYTES}, remarks=(remark,))


def exported(name: str) -> bytes:
    """A model of torchvision as ONNX, without trained weights.

    Raises
    ------
    InvalidInput
        It has no such model, or cannot be asked for one here.
    """
    missing = [package for package in ("torch", "torchvision") if find_spec(package) is None]
    if missing:
        # A network of the same name that ships may be another version of it: it is offered, and not planned instead.
        ships = f"; {name}, a network that ships, is planned without" if networks.is_network(name) else ""
        how = f"{TORCHVISION}<name> where PyTorch and torchvision are installed: pip install {' '.join(missing)}"
        raise InvalidInput("model", TORCHVISION + name, how + ships)
    import torch
    import torchvision

    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InvalidInput("model", TORCHVISION + name, "a name that torchvision.models.list_models() has")
    model = torchvision.models.get_model(name, weights=None).eval()
    buffer = BytesIO()
    image = torch.zeros(1, 3, _IMAGE, _IMAGE)
    axes = {"x": {0: "batch"}}
    torch.onnx.export(model, (image,), buffer, input_names=["x"], dynamic_axes=axes, dynamo=False)
    return buffer.getvalue()
