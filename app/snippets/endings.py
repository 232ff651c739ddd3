"""What follows a convolution, as programs write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from conv_advisor.data.epilogue import LEAKY_SLOPE, Activation, Epilogue
from conv_advisor.kernels.cudnn.epilogue import ended

C_ACTIVATIONS: Final[dict[Activation, str]] = {
    Activation.NONE: "value",
    Activation.RELU: "value < 0.0f ? 0.0f : value",
    Activation.RELU6: "value < 0.0f ? 0.0f : value > 6.0f ? 6.0f : value",
    Activation.LEAKY_RELU: f"value < 0.0f ? {LEAKY_SLOPE}f * value : value",
    Activation.SILU: "value / (1.0f + expf(-value))",
    Activation.GELU: "0.5f * value * (1.0f + erff(value * 0.70710678f))",
    Activation.GELU_TANH: "value / (1.0f + expf(-1.5957691f * (value + 0.044715f * value * value * value)))",
    Activation.HARDSWISH: "value * fminf(fmaxf(value + 3.0f, 0.0f), 6.0f) / 6.0f",
    Activation.SIGMOID: "1.0f / (1.0f + expf(-value))",
}
"""The activations of ``value`` in C, by the formulas of ``epilogue.cuh``."""


class _Listing:
    """Stands in for a graph of cuDNN's frontend and records each added node as a line of Python."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, node: str) -> Callable[..., str]:
        def add(**settings: str | float) -> str:
            target = f"after_{node}"
            arguments = ", ".join(f"{name}={value}" for name, value in settings.items())
            self.lines.append(f"{target} = graph.{node}({arguments})")
            return target

        return add


def nodes(epilogue: Epilogue) -> list[str]:
    """Lines that add to ``graph`` the nodes that a measurement has after ``sums``; the last one makes ``y``.

    Parameters
    ----------
    epilogue : Epilogue
        Its operands are called ``bias`` and ``residual``.

    Raises
    ------
    NotSupported
        The graph API has no node for the activation.
    """
    listing = _Listing()
    last = ended(listing, epilogue, "sums", "bias", "residual")
    return [*listing.lines[:-1], *(line.replace(f"{last} =", "y =") for line in listing.lines[-1:])]
