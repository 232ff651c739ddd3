"""The tables of what was timed stage by stage, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from benchmarks.plots.pages import number, table
from benchmarks.stages.papers import PRINTED, V100_MHZ, Printed
from conv_advisor.data.problem import ConvProblem

Row = Mapping[str, Any]

_FLOAT_BYTES: Final = 4
_TILE: Final = (32, 8)
"""Width and height of the output tile of the tiled kernels."""


def everything(document: Mapping[str, Any]) -> str:
    """All tables, each with a heading."""
    return "\n\n".join(f"### {name}\n\n{text}" for name, text in parts(document).items())


def parts(document: Mapping[str, Any]) -> dict[str, str]:
    """The tables by their headings, as docs/kernels.md and docs/guidelines.md show them."""
    rows, mhz = document["rows"], document["device"]["max_clock_mhz"]
    return {
        "cuConv's tables 3 to 5": papers(rows, "cuConv", mhz),
        "The cuDNN study's tables 2 to 6": papers(rows, "cuDNN study", mhz),
        "Rows a block of cuConv": rows_a_block(rows, mhz),
        "Convolutions in CUDA: 512², one channel, one filter": post(rows),
    }


def papers(rows: Iterable[Row], paper: str, mhz: float) -> str:
    """One line a layer and algorithm: the paper's kernels on its V100, the kernels here, and cycles a channel of both.

    Parameters
    ----------
    rows : iterable of mapping
    paper : str
    mhz : float
        Highest clock of the multiprocessors of the device here.
    """
    known = {(row["layer"], row["dtype"], row["variant"]): row for row in rows if row["part"] == "papers"}
    head = ("table", "layer", "variant", "on the V100, µs", "here, µs", "cycles a channel, then", "now")
    lines = (_beside(printed, known, mhz) for printed in PRINTED if printed.paper == paper)
    return table(head, lines)


def _beside(printed: Printed, known: Mapping[tuple[str, str, str], Row], mhz: float) -> tuple[str, ...]:
    problem = printed.problem
    row = known.get((problem.short, str(printed.dtype), printed.variant), {"error": "not run"})
    then = " + ".join(f"{name} {us:.1f}" for name, us in printed.kernels.items())
    cycles_then = printed.total_us * V100_MHZ / problem.c
    return (
        f"{printed.table}",
        f"{printed.layer} {printed.dtype}",
        f"`{printed.variant}`",
        f"{then} = **{printed.total_us:.1f}**"
        if len(printed.kernels) > 1
        else f"{then.split()[0]} **{printed.total_us:.1f}**",
        said(row),
        number(cycles_then, 0),
        number(1e3 * total_ms(row) * mhz / problem.c, 0),
    )


def said(row: Row) -> str:
    """The kernels of a row with their times, blocks and occupancy; or why there are none."""
    if "stages" not in row:
        return str(row["error"])
    stages = [
        f"{_short(stage['name'])} {1e3 * stage['time_ms']:.1f}"
        + (f" ({stage['blocks']} blocks, {100 * stage['occupancy']:.0f} %)" if stage["blocks"] else "")
        for stage in row["stages"]
    ]
    return f"{' + '.join(stages)} = **{1e3 * total_ms(row):.1f}**" if len(stages) > 1 else stages[0]


def total_ms(row: Row) -> float:
    """Sum over the kernels; NaN where it did not run."""
    return sum(stage["time_ms"] for stage in row["stages"]) if "stages" in row else float("nan")


def _short(name: str) -> str:
    """The part of a name, mangled as C++ does, that tells kernels apart."""
    parts, rest = [], re.sub(r"^_ZN?", "", name) if name.startswith("_Z") else ""
    while length := re.match(r"I?(\d+)", rest):  # an argument of a template comes behind an I
        parts.append(rest[length.end() : length.end() + int(length[1])])
        rest = rest[length.end() + int(length[1]) :]
    known = [part for part in parts if not part.startswith("__")]
    last = known[-1] if known else name
    return last if len(last) <= 40 else f"{last[:37]}..."


def rows_a_block(rows: Iterable[Row], mhz: float) -> str:
    """The first stage of cuConv with 1, 4 and 16 filter rows a block, which is the paper's work fusion."""
    known = {(row["layer"], row["forced"]["filters"]): row for row in rows if row["part"] == "rows"}
    head = ("layer", "1 row", "4 rows", "16 rows", "sum of the planes", "cycles a channel of the best")
    return table(head, (_fused(layer, known, mhz) for layer in dict.fromkeys(layer for layer, _ in known)))


def _fused(layer: str, known: Mapping[tuple[str, int], Row], mhz: float) -> tuple[str, ...]:
    cases = [known[layer, count] for count in (1, 4, 16)]
    firsts = [row["stages"][0]["time_ms"] if "stages" in row else float("nan") for row in cases]
    planes = [row["stages"][1]["time_ms"] for row in cases if len(row.get("stages", ())) > 1]
    best = min(firsts)
    return (
        layer,
        *(f"**{1e3 * ms:.1f}**" if ms == best else number(1e3 * ms, 1) for ms in firsts),
        number(1e3 * min(planes), 1) if planes else "none",
        number(1e3 * best * mhz / ConvProblem.parse(layer).c, 0),
    )


def post(rows: Iterable[Row]) -> str:
    """The post's four kernels in its own setting, with the filter's size fixed at compile time and not."""
    known = {
        (row["layer"], row["variant"], row["forced"]["is_size_fixed"]): row for row in rows if row["part"] == "post"
    }
    head = (
        "layer",
        "kernel",
        "size at run time, µs",
        "at compile time, µs",
        "copy to the symbol, µs",
        "operations a byte",
    )
    return table(head, _post_lines(known))


def _post_lines(known: Mapping[tuple[str, str, int], Row]) -> Iterator[tuple[str, ...]]:
    for layer, variant in dict.fromkeys((layer, variant) for layer, variant, _ in known):
        times, copies = [], 0.0
        for is_size_fixed in (0, 1):
            stages = known[layer, variant, is_size_fixed].get("stages", ())
            times.append(sum(stage["time_ms"] for stage in stages if stage["blocks"]) or float("nan"))
            copies = sum(stage["time_ms"] for stage in stages if not stage["blocks"])
        intensity = operations_a_byte(variant, ConvProblem.parse(layer))
        yield (
            layer,
            variant.removeprefix("cuda.direct_"),
            *(number(1e3 * ms, 1) for ms in times),
            number(1e3 * copies, 1) if copies else "none",
            number(intensity),
        )


def operations_a_byte(variant: str, problem: ConvProblem) -> float:
    """Operations over the bytes that a kernel asks of global memory for one filter, as the post counts them."""
    products = problem.r * problem.s
    width, height = _TILE
    outputs = width * height
    halo = (width + problem.s - 1) * (height + problem.r - 1)
    elements = {
        "cuda.direct_naive": 2 * products * outputs,
        "cuda.direct_constant": products * outputs,
        "cuda.direct_tiled_halo": halo,
        "cuda.direct_tiled_cached": halo,
    }[variant]
    return 2 * products * outputs / (_FLOAT_BYTES * elements)
