"""How the figures look: one style, and a colour for each variant that it keeps over all figures."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.contest.choice import LIBRARIES, OURS
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Algorithm

_OURS_COLOURS: Final = (
    *("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#6a3d9a", "#117733", "#b2182b"),
    *("#1b9e77", "#7570b3", "#a6761d", "#e7298a", "#66a61e", "#8c510a", "#01665e", "#5e3c99", "#c51b7d", "#35978f"),
    "#332288",
)
"""Colours of our variants, in the order of the catalogue."""
_CUDNN_GROUPS: Final = {
    "cuDNN, graph engine": "#4d4d4d",
    "cuDNN, GEMM": "#8c8c8c",
    "cuDNN, Winograd": "#b5b5b5",
    "cuDNN, FFT": "#d9d9d9",
}
_LIBRARY_COLOUR: Final = "#d8cfa0"

METHOD_COLOURS: Final = {
    "explicit GEMM": "#8c8c8c",
    "implicit GEMM": "#56b4e9",
    "implicit GEMM, precomputed": "#0072b2",
    "FFT": "#e69f00",
    "FFT, tiled": "#b2182b",
    "Winograd": "#009e73",
    "two stages": "#cc79a7",
    "direct": "#a6761d",
    "graph engine": "#4d4d4d",
}
"""Colours of methods, whoever implements them, where a figure is of methods."""

STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "conv-advisor",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def colour_of(variant: str) -> tuple[str, str]:
    """The colour of a variant, and what its legend says: cuDNN's go together by method."""
    if variant in LIBRARIES:
        return _LIBRARY_COLOUR, f"{variant} ({LIBRARIES[variant]})"
    if variant in OURS:
        return _OURS_COLOURS[OURS.index(variant) % len(_OURS_COLOURS)], variant
    method = {Algorithm.ENGINE: "graph engine", Algorithm.WINOGRAD: "Winograd", Algorithm.FFT: "FFT"}
    label = f"cuDNN, {method.get(VARIANTS[variant].algorithm, 'GEMM')}"
    return _CUDNN_GROUPS[label], label
