"""FFT convolution: cuFFT around our own product kernel."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.family import Family, Kernel, cuda_variant
from conv_advisor.kernels.cuda.fft import plan
from conv_advisor.kernels.cuda.parts.rules import PLAIN, on_any_device, under_the_default_limit
from conv_advisor.kernels.variant import Algorithm


def _kernel() -> Kernel:
    from conv_advisor.kernels.cuda.fft import launch

    return Kernel(
        sources=(plan.SOURCE,),
        prepare={"cuda.fft": launch.prepare},
    )


FAMILY: Final = Family(
    "fft",
    kernel=_kernel,
    variants=(
        cuda_variant(
            "cuda.fft",
            Algorithm.FFT,
            why_not=PLAIN,
            workspace_bytes=under_the_default_limit(on_any_device(plan.workspace_bytes)),
            source="Mathieu, Henaff, LeCun: Fast Training of Convolutional Networks through FFTs, arXiv:1312.5851",
            kernel=_kernel,
        ),
    ),
)
