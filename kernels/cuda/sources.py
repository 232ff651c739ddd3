"""Every CUDA source of ours, so that all can be compiled and checked without a GPU."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.catalog import FAMILIES
from conv_advisor.kernels.cuda.parts.source import Source

SOURCES: Final[dict[str, Source]] = {source.name: source for family in FAMILIES for source in family.kernel().sources}
"""By name."""
