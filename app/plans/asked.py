"""The network of a request: by its name, or as an ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conv_advisor.app.plans.known import TORCHVISION, exported, known_network
from conv_advisor.app.plans.onnx_network import network_of
from conv_advisor.app.plans.reading import MAX_MODEL_BYTES, read_outline
from conv_advisor.data.errors import InvalidInput, UnknownNetwork
from conv_advisor.data.networks import is_network, names
from conv_advisor.data.problem import DType
from conv_advisor.models.planning.network import Network


def network_from(model: str, *, batch: int, dtype: DType | None, dims: Mapping[str, int]) -> Network:
    """A network by its name, or of an ONNX file.

    Parameters
    ----------
    model : str
        ``resnet50`` and others whose layers ship; ``torchvision:<name>``, which PyTorch and torchvision export; or
        the path of a file.
    batch : int
    dtype : DType or None
        None: a model's own; float32 for a network whose layers ship.
    dims : mapping of str to int
        Sizes of symbolic dimensions of a file, by name.

    Raises
    ------
    InvalidInput, UnknownNetwork, NotInstalled
    """
    name = model.removeprefix(TORCHVISION)
    if dims and (name != model or is_network(model)):
        raise InvalidInput("dims", ",".join(f"{name}={size}" for name, size in dims.items()), "only with an ONNX file")
    if name != model:
        return network_of(read_outline(exported(name), batch=batch), model, dtype)
    if is_network(name):
        return known_network(name, batch=batch, dtype=dtype or DType.FLOAT32)
    return network_of(read_outline(_file(model), batch=batch, dims=dims), Path(model).name, dtype)


def _file(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            body = file.read(MAX_MODEL_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and Path(path).name.isidentifier():  # a name, not a path
            raise UnknownNetwork(path, [name for name in names() if is_network(name)]) from None
        why = getattr(error, "strerror", None) or error
        allowed = f"an ONNX file, torchvision:<name>, or a network that `conv-advisor networks` lists ({why})"
        raise InvalidInput("model", path, allowed) from None
    return body
