"""The figures of the cuDNN study and of cuConv: every algorithm over the 602 configurations, in the papers' order."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from benchmarks.contest.choice import CUDNN, LIBRARIES, OURS
from benchmarks.guidelines.study import CUCONV, PRECOMPUTED
from benchmarks.measured import LEGACY, Column, Known, deviation_of, fastest_ms
from benchmarks.plots.configurations import NORMALISED, Line, Style, over_configurations
from benchmarks.plots.style import METHOD_COLOURS
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Algorithm
from conv_advisor.models.costs import Costs

MIB: Final = 2**20

_OF_ALGORITHM: Final = {
    Algorithm.DIRECT: "direct",
    Algorithm.TWO_STAGE: "two stages",
    Algorithm.GEMM: "explicit GEMM",
    Algorithm.IMPLICIT_GEMM: "implicit GEMM",
    Algorithm.WINOGRAD: "Winograd",
    Algorithm.FFT: "FFT",
    Algorithm.ENGINE: "graph engine",
}


def method_of(variant: str) -> str:
    """The method that a variant is drawn as; the study's two variants of implicit GEMM and of FFT are told apart."""
    if variant.removesuffix("_tc") == PRECOMPUTED:
        return "implicit GEMM, precomputed"
    if variant.startswith("cudnn.fft_tiling"):
        return "FFT, tiled"
    return _OF_ALGORITHM[VARIANTS[variant].algorithm]


def algorithms(costs: Costs, column: Column) -> Figure | None:
    """Figures 3 to 8 of the study: each legacy algorithm's time over that of the fastest, with bands."""
    best_ms = fastest_ms(costs, LEGACY)
    best_ms[np.isinf(best_ms)] = np.nan  # nothing is known of any of them
    lines = [
        replace(
            _algorithm(costs, variant, fastest_ms(costs, [variant]) / best_ms), deviation=deviation_of(costs, variant)
        )
        for variant in LEGACY
    ]
    title = "time of each of cuDNN's legacy algorithms over that of the fastest of them"
    return over_configurations(costs, column, lines, title, "time / fastest", NORMALISED)


def scatter(known: Known) -> str:
    """How wide the shaded bands are, in words: the deviations of all legacy algorithms, everywhere."""
    deviations = np.concatenate([deviation_of(costs, variant) for costs in known.values() for variant in LEGACY])
    percents = 100 * deviations[np.isfinite(deviations)]
    if not len(percents):
        return "How far samples scatter is not known."
    middle, nearly_all = np.quantile(percents, [0.5, 0.99])
    return (
        f"One standard deviation is shaded, as in the study. Over {len(percents):,} times it is {middle:.2f} % in the"
        f" median, at most {nearly_all:.1f} % in 99 of 100 and {percents.max():.1f} % in the worst: most bands are"
        " thinner than their lines."
    )


def methods(costs: Costs, column: Column) -> Figure | None:
    """Time of our kernels, by method, and of the best of cuDNN, over that of the fastest of all."""
    by_method: dict[str, list[str]] = {}
    for variant in OURS:
        by_method.setdefault(method_of(variant), []).append(variant)
    lines = [
        _line(f"ours, {name}", fastest_ms(costs, variants) / costs.best_ms, METHOD_COLOURS[name])
        for name, variants in by_method.items()
    ]
    if not any(np.isfinite(line.values).any() for line in lines):
        return None
    library = fastest_ms(costs, list(LIBRARIES)) / costs.best_ms
    lines.append(_line(" and ".join(LIBRARIES.values()), library, METHOD_COLOURS["explicit GEMM"]))
    lines.append(_line("best of cuDNN", fastest_ms(costs, CUDNN) / costs.best_ms, "black", width=1.4))
    title = "time of our kernels, by method, and of the best of cuDNN, over the fastest of all"
    return over_configurations(costs, column, lines, title, "time / fastest", NORMALISED)


def workspaces(costs: Costs, column: Column) -> Figure | None:
    """The workspace that each legacy algorithm needs where it runs."""
    lines = []
    for variant in LEGACY:
        times_ms = fastest_ms(costs, [variant])
        lines.append(_algorithm(costs, variant, np.where(np.isfinite(times_ms), workspace_of(costs, variant), np.nan)))
    lines = [Line(x.label, np.where(x.values > 0, x.values / MIB, np.nan), x.colour, x.style) for x in lines]
    title = "workspace of each of cuDNN's legacy algorithms; those that need none are left out"
    return over_configurations(costs, column, lines, title, "MiB", (5e-4, 2e3))


def cuconv(costs: Costs, column: Column) -> Figure | None:
    """Figures 5 to 7 of cuConv: the time of the best legacy algorithm over cuConv's, and over the best of ours."""
    best_ms = fastest_ms(costs, LEGACY)
    lines = [
        _line("cuConv (cuda.cuconv)", best_ms / fastest_ms(costs, [CUCONV]), "#cc79a7", is_zero_known=False),
        _line("the best of our kernels", best_ms / fastest_ms(costs, OURS), "#0072b2", is_zero_known=False),
    ]
    if not np.isfinite(lines[0].values).any():
        return None
    title = "time of the best of cuDNN's legacy algorithms over ours: above 1 ours is faster"
    return over_configurations(costs, column, lines, title, "cuDNN / ours", (1 / 16, 16))


def workspace_of(costs: Costs, variant: str) -> np.ndarray:
    """Bytes, float64 array of shape (P,); NaN where the variant never said."""
    if variant not in costs.variants:
        return np.full(len(costs.problems), np.nan)
    bytes_: np.ndarray = costs.workspace_bytes[:, costs.variants.index(variant)]
    return bytes_


def _algorithm(costs: Costs, variant: str, values: np.ndarray) -> Line:
    """A line of a legacy algorithm; dotted where it has a twin that may use tensor cores."""
    has_twin = f"{variant}_tc" in LEGACY and bool(np.isfinite(fastest_ms(costs, [f"{variant}_tc"])).any())
    colour = METHOD_COLOURS[method_of(variant)]
    return _line(variant.removeprefix("cudnn."), values, colour, ":" if has_twin else "-")


def _line(
    label: str, values: np.ndarray, colour: str, style: Style = "-", *, width: float = 0.9, is_zero_known: bool = True
) -> Line:
    known = np.isfinite(values) & (is_zero_known | (values > 0))
    return Line(label, np.where(known, values, np.nan), colour, style, width)
