"""The kernels whose cut a fitted model chooses, as the catalogue lists them, and what a cut is called."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.cuda.catalog import FAMILIES
from conv_advisor.kernels.cuda.family import Family, Tuning

KERNELS: Final[dict[str, Tuning]] = {family.name: tuning for family in FAMILIES if (tuning := family.kernel().tuning)}
"""By the names of their families."""

_FAMILIES: Final[dict[str, Family]] = {family.name: family for family in FAMILIES}


def applies(name: str, problem: ConvProblem, device: Device) -> bool:
    """Whether a variant that launches the kernel's cuts computes the problem."""
    own = tuple(variant.id for variant in _FAMILIES[name].variants)
    return any(VARIANTS[variant_id].why_not(problem, device) is None for variant_id in own + KERNELS[name].serves)


def sources_of(name: str) -> tuple[str, ...]:
    """The sources that a kernel's launches compile."""
    return tuple(source.name for source in _FAMILIES[name].kernel().sources)


def name_of(cut: Any) -> str:
    """The name of a cut: all its fields but the fitted times, which a refit changes."""
    if is_dataclass(cut):
        values = " ".join(text for field in fields(cut) if (text := name_of(getattr(cut, field.name))))
        kind = type(cut).__name__
        return f"({values})" if kind in ("Cut", "Tile") else f"{kind}({values})"
    if isinstance(cut, float):
        return ""
    return str(cut.value if isinstance(cut, Enum) else int(cut) if isinstance(cut, bool) else cut)
