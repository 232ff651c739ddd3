"""What follows a convolution before its one rounding: a bias, a residual and an activation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from conv_advisor.data.errors import InvalidProblem

LEAKY_SLOPE: Final = 0.01
"""Factor of negative values in `Activation.LEAKY_RELU`: PyTorch's default, and ONNX's."""


class Activation(StrEnum):
    """A function of one value, the last step before the rounding to y's dtype.

    ``gelu`` is the exact one, by the error function; ``gelu_tanh`` its approximation. ``hardswish`` is
    x · min(max(x + 3, 0), 6) / 6.
    """

    NONE = "none"
    RELU = "relu"
    RELU6 = "relu6"
    LEAKY_RELU = "leaky_relu"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    HARDSWISH = "hardswish"
    SIGMOID = "sigmoid"


@dataclass(frozen=True)
class Epilogue:
    """How ``y = activation(conv(x, weight) + bias + residual)`` ends; all of it in float32, rounded once.

    Parameters
    ----------
    bias : bool
        Whether a bias of shape (K,) is added.
    residual : bool
        Whether a residual is added, in y's shape, dtype and layout.
    activation : Activation or str

    Raises
    ------
    InvalidProblem
        Naming the field, its value and what is allowed.

    Notes
    -----
    Its text ends the `short` and `key` of a problem: its parts joined by hyphens, ``bias-residual-relu``, which
    neither a shell nor a URL reads differently. It is empty where nothing follows.
    """

    bias: bool = False
    residual: bool = False
    activation: Activation = Activation.NONE

    def __post_init__(self) -> None:
        for name in ("bias", "residual"):
            if type(getattr(self, name)) is not bool:
                raise InvalidProblem(name, getattr(self, name), "true or false")
        if type(self.activation) is not Activation:
            object.__setattr__(self, "activation", _activation(self.activation))

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """Read what `str` gives.

        Raises
        ------
        InvalidProblem
        """
        try:
            return _BY_TEXT[text]
        except KeyError:
            raise InvalidProblem("epilogue", text, f"in this order, by hyphens: {PARTS}") from None

    def __bool__(self) -> bool:
        """Whether anything follows the convolution."""
        return self.bias or self.residual or self.activation is not Activation.NONE

    def __str__(self) -> str:
        parts = ["bias"] * self.bias + ["residual"] * self.residual
        return "-".join(parts if self.activation is Activation.NONE else [*parts, self.activation])


ACTIVATIONS: Final = ", ".join(Activation)
"""The activations, as an error lists them."""

EVERY_EPILOGUE: Final = tuple(
    Epilogue(bias, residual, activation)
    for activation in Activation
    for bias, residual in ((False, False), (True, False), (False, True), (True, True))
)
"""All epilogues; `PLAIN` is the first."""

PLAIN: Final = EVERY_EPILOGUE[0]
"""The convolution alone."""

_BY_TEXT: Final = {str(epilogue): epilogue for epilogue in EVERY_EPILOGUE}

PARTS: Final = f"bias, residual, an activation ({', '.join(tuple(Activation)[1:])})"
"""The parts of an epilogue, as an error lists them."""


def _activation(value: object) -> Activation:
    try:
        return Activation(str(value))
    except ValueError:
        raise InvalidProblem("activation", value, ACTIVATIONS) from None
