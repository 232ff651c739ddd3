"""Every CUDA source of ours: what is compiled to check all of them without a GPU."""

from __future__ import annotations

from typing import Final

from conv_advisor.kernels.cuda.catalog import FAMILIES
from conv_advisor.kernels.cuda.parts.source import Source

SOURCES: Final[dict[str, Source]] = {source.name: source for family in FAMILIES for source in family.kernel().sources}
"""By name."""
