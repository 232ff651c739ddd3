"""What a convolution ends with, as a kernel of its own: for variants that cannot do it in their own output stage."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.family import Family, Kernel


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.appended.launch import SOURCE

    return Kernel(sources=(SOURCE,))


FAMILY: Final = Family("appended", kernel=_kernel)
