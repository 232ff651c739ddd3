"""The epilogue as a kernel of its own, for variants that cannot fuse it."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.family import Family, Kernel


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.appended.launch import SOURCE

    return Kernel(sources=(SOURCE,))


FAMILY: Final = Family("appended", kernel=_kernel)
