"""Every variant there is: pure Python, importable without any CUDA library."""

from __future__ import annotations

from collections.abc import Iterable

from conv_advisor.data.errors import UnknownVariant
from conv_advisor.kernels.cpu.variants import VARIANTS as CPU_VARIANTS
from conv_advisor.kernels.cuda.catalog import VARIANTS as CUDA_VARIANTS
from conv_advisor.kernels.cudnn.variants import VARIANTS as CUDNN_VARIANTS
from conv_advisor.kernels.variant import Variant

VARIANTS: dict[str, Variant] = {variant.id: variant for variant in (*CPU_VARIANTS, *CUDNN_VARIANTS, *CUDA_VARIANTS)}
"""In the order that a sweep tries them: cuDNN, fast nearly everywhere, sets the mark for pruning the others."""


def get(variant_id: str) -> Variant:
    """The variant of this id.

    Raises
    ------
    UnknownVariant
    """
    try:
        return VARIANTS[variant_id]
    except KeyError:
        raise UnknownVariant(variant_id, list(VARIANTS)) from None


def for_device_kind(kind: str) -> Iterable[Variant]:
    """The variants that run on devices of this kind, ``cpu`` or ``cuda``, in catalogue order."""
    return (variant for variant in VARIANTS.values() if variant.backend.device_kind == kind)
