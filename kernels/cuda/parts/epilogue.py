"""What a convolution ends with: what kernels are compiled with for it, and what they read of it (``epilogue.cuh``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from conv_advisor.data.epilogue import Activation, Epilogue

MACROS: Final = ("BIAS", "RESIDUAL", "ACTIVATION")
"""What `defines_of` may define."""

_NUMBER_OF: Final = {activation: number for number, activation in enumerate(Activation)}


def defines_of(epilogue: Epilogue) -> dict[str, int]:
    """What a source is compiled with beside its own definitions; nothing for a convolution alone."""
    values = (int(epilogue.bias), int(epilogue.residual), _NUMBER_OF[epilogue.activation])
    return {macro: value for macro, value in zip(MACROS, values, strict=True) if value}


def addresses(epilogue: Epilogue, ends: Sequence[Any], skipped_bytes: int = 0) -> tuple[int, ...]:
    """Device addresses of what a kernel reads of its epilogue, in the order of its parameters.

    Parameters
    ----------
    epilogue : Epilogue
    ends : sequence of array or None
        Bias and residual; None, or left out, where the epilogue does not add it.
    skipped_bytes : int
        Where the outputs of this launch begin in y, and so in the residual.
    """
    given = [end.data.ptr for end in ends if end is not None]
    if len(given) != epilogue.bias + epilogue.residual:
        raise ValueError(f"{len(given)} operands are given for {epilogue or 'no epilogue'}")
    if skipped_bytes and epilogue.residual:
        given[-1] += skipped_bytes
    return tuple(given)
