"""The epilogue of our kernels: definitions they are compiled with, and operands they read (``epilogue.cuh``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from conv_advisor.data.epilogue import Activation, Epilogue

MACROS: Final = ("BIAS", "RESIDUAL", "ACTIVATION")
"""Macros that `defines_of` may define."""

_NUMBER_OF: Final = {activation: number for number, activation in enumerate(Activation)}


def defines_of(epilogue: Epilogue) -> dict[str, int]:
    """Definitions that a source is compiled with in addition to its own; empty for a convolution without epilogue."""
    values = (int(epilogue.bias), int(epilogue.residual), _NUMBER_OF[epilogue.activation])
    return {macro: value for macro, value in zip(MACROS, values, strict=True) if value}


def addresses(epilogue: Epilogue, ends: Sequence[Any], skipped_bytes: int = 0) -> tuple[int, ...]:
    """Device addresses of the operands of a kernel's epilogue, in the order of its parameters.

    Parameters
    ----------
    epilogue : Epilogue
    ends : sequence of array or None
        Bias and residual; one that the epilogue does not add is None or left out.
    skipped_bytes : int
        Offset of this launch's outputs in y, and so in the residual.
    """
    pointers = [end.data.ptr for end in ends if end is not None]
    if len(pointers) != epilogue.bias + epilogue.residual:
        raise ValueError(f"{len(pointers)} operands are given for {epilogue or 'no epilogue'}")
    if skipped_bytes and epilogue.residual:
        pointers[-1] += skipped_bytes
    return tuple(pointers)
