"""What a compiled kernel takes of a multiprocessor, as ptxas says: `python -m conv_advisor.kernels.cuda.resources`."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from conv_advisor.data.epilogue import PLAIN, Epilogue
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.cuda.compile import compile_cubin
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.source import ARCHITECTURES, STORAGES, BorneSpill
from conv_advisor.kernels.cuda.sass import code_of, lost_copies
from conv_advisor.kernels.cuda.sources import SOURCES

TUNED: Final = "sm_90"
"""The tiles are sized for Hopper: it gets many instantiations, other architectures only the first and the last."""
MOST_CUTS: Final = 10
"""At most this many instantiations of a source and storage type are compiled for `TUNED`: all would take minutes."""

_KERNEL: Final = re.compile(r"Compiling entry function '(?P<kernel>\w+)' for '(?P<arch>\w+)'")
_MEMORY: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
_SHARED: Final = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Compilation:
    """One source with one set of definitions for one architecture.

    Parameters
    ----------
    source, storage, arch : str
    defines : tuple of (str, int)
    """

    source: str
    storage: str
    arch: str
    defines: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Resources:
    """The resources that one kernel of a compilation takes.

    Parameters
    ----------
    compilation : Compilation
    kernel : str
    registers : int
        Registers of one thread.
    shared_bytes : int
        Shared memory of one block, without the memory that a launch adds.
    stack_bytes, spill_store_bytes, spill_load_bytes : int
        Local memory of one thread.
    lost_copies : int
        Instructions that the assembler encoded wrongly (`sass.lost_copies`).
    """

    compilation: Compilation
    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    lost_copies: int = 0

    @property
    def spilled_bytes(self) -> int:
        """The larger of the bytes stored and the bytes loaded."""
        return max(self.spill_store_bytes, self.spill_load_bytes)


def covers(spill: BorneSpill, resources: Resources) -> bool:
    """Whether a borne spill of the source matches a kernel's spill and is at least as large."""
    build = resources.compilation
    return (
        (spill.kernel, spill.arch) == (resources.kernel, build.arch)
        and spill.storage in ("", build.storage)
        and set(spill.defines) <= set(build.defines)
        and resources.spilled_bytes <= spill.most_bytes
    )


def compilations(
    sources: Iterable[str] = tuple(SOURCES),
    archs: Sequence[str] = ARCHITECTURES,
    *,
    is_everything: bool = False,
    epilogue: Epilogue = PLAIN,
) -> list[Compilation]:
    """The compilations that check the sources for these architectures.

    Parameters
    ----------
    sources : iterable of str
    archs : sequence of str
        A source for one exact architecture, such as sm_90a, counts under the plain one.
    is_everything : bool
        Every instantiation for every architecture. Else two, or up to `MOST_CUTS` for `TUNED`: the first, the last, and
        others between them that differ by storage type.
    epilogue : Epilogue
        Compiled into all of them; sources that take no epilogue are then left out.
    """
    ended = tuple(defines_of(epilogue).items())
    return [
        Compilation(source, storage, arch, (*defines.items(), *ended))
        for source in sources
        if SOURCES[source].takes_epilogue or not ended
        for arch in SOURCES[source].architectures
        if arch.removesuffix("a") in archs or arch in archs
        for shift, storage in enumerate(STORAGES)
        for defines in _some(
            SOURCES[source].instantiations(storage),
            None if is_everything else MOST_CUTS if arch.startswith(TUNED) else 2,
            shift / len(STORAGES),
        )
    ]


def _some(everything: Sequence[dict[str, int]], most: int | None, shift: float) -> list[dict[str, int]]:
    """The first, the last, and others evenly spaced between them, moved by the fraction ``shift`` of the spacing."""
    if most is None or len(everything) <= most:
        return list(everything)
    step = (len(everything) - 1) / (most - 1)
    places = {0, len(everything) - 1} | {int((place + shift) * step) for place in range(1, most - 1)}
    return [everything[place] for place in sorted(places)]


def compile_one(compilation: Compilation) -> tuple[bytes, str, list[Resources]]:
    """Compile, and return the cubin, the compiler's log and the resources of each kernel."""
    cubin, log = compile_cubin(
        SOURCES[compilation.source], compilation.storage, dict(compilation.defines), compilation.arch
    )
    code = code_of(cubin)
    return (
        cubin,
        log,
        [replace(resources, lost_copies=lost_copies(code[resources.kernel])) for resources in parse(compilation, log)],
    )


def parse(compilation: Compilation, log: str) -> Iterator[Resources]:
    """Read the resources of each kernel from the log of ``ptxas -v``."""
    starts = [match.start() for match in _KERNEL.finditer(log)]
    for start, end in zip(starts, [*starts[1:], len(log)], strict=True):
        text = log[start:end]
        kernel, memory = _KERNEL.search(text), _MEMORY.search(text)
        registers, shared = _REGISTERS.search(text), _SHARED.search(text)
        if kernel is None or memory is None or registers is None:
            raise ValueError(f"ptxas says of {compilation} what is not understood: {text!r}")
        stack, stores, loads = map(int, memory.groups())
        shared_bytes = int(shared[1]) if shared else 0
        yield Resources(compilation, kernel["kernel"], int(registers[1]), shared_bytes, stack, stores, loads)


def unlisted_spills(kernels: Iterable[Resources]) -> list[Resources]:
    """The kernels whose spill is not listed by their source with a reason, or is larger than listed."""
    return [
        resources
        for resources in kernels
        if resources.spilled_bytes
        and not any(covers(spill, resources) for spill in SOURCES[resources.compilation.source].spills)
    ]


def with_lost_copies(kernels: Iterable[Resources]) -> list[Resources]:
    """The kernels that the assembler encoded wrongly."""
    return [resources for resources in kernels if resources.lost_copies]


def start(
    todo: Iterable[Compilation], pool: ThreadPoolExecutor
) -> dict[Compilation, Future[tuple[bytes, str, list[Resources]]]]:
    """Compile on a pool's threads: the compiler lets other threads run."""
    importlib.import_module("cuda.core")  # two threads that import it first at once fail
    return {compilation: pool.submit(compile_one, compilation) for compilation in todo}


def new_pool() -> ThreadPoolExecutor:
    """As many threads as there are cores for this process."""
    import cuda.core  # noqa: F401 - two threads that import it at once may each see half of it

    return ThreadPoolExecutor(available_cores(), "nvrtc")


def table(kernels: Iterable[Resources]) -> str:
    """One line per kernel and architecture: the ranges of its resources over storage types and definitions."""

    def group(resources: Resources) -> tuple[str, str, str]:
        return resources.compilation.source, resources.kernel, resources.compilation.arch

    def order(resources: Resources) -> tuple[int, str, int, str]:
        source, kernel, arch = group(resources)
        return list(SOURCES).index(source), kernel, len(arch), arch

    lines = [_LINE.format("source", "kernel", "arch", "cuts", "registers", "static shared", "stack", "spilled")]
    for (source, kernel, arch), members in groupby(sorted(kernels, key=order), key=group):
        cuts = list(members)
        lines.append(
            _LINE.format(
                source,
                kernel,
                arch,
                len(cuts),
                _range(resources.registers for resources in cuts),
                _range(resources.shared_bytes for resources in cuts),
                _range(resources.stack_bytes for resources in cuts),
                _range(resources.spilled_bytes for resources in cuts),
            )
        )
    return "\n".join(line.rstrip() for line in lines)


_LINE: Final = "{:21} {:27} {:7} {:>4} {:>10} {:>14} {:>8} {:>8}"


def _range(values: Iterable[int]) -> str:
    every = sorted(values)
    return f"{every[0]}" if every[0] == every[-1] else f"{every[0]}-{every[-1]}"


def report(kernels: Sequence[Resources]) -> str:
    """The table, then the borne spills with their reasons, then the unlisted spills and the lost copies."""
    lines = [table(kernels), "Bytes of a thread, shared memory of a block; a launch may add shared memory of its own."]
    for spill in (spill for source in SOURCES.values() for spill in source.spills):
        where = ", ".join(filter(None, (spill.arch, spill.storage, _defined(spill.defines))))
        lines.append(f"borne: {spill.kernel} ({where}) spills up to {spill.most_bytes} bytes: {spill.reason}")
    lines += [f"UNLISTED SPILL: {describe(resources)}" for resources in unlisted_spills(kernels)]
    lines += [f"LOST COPIES: {resources.lost_copies} of {_place(resources)}" for resources in with_lost_copies(kernels)]
    return "\n".join(lines)


def describe(resources: Resources) -> str:
    """One kernel that spills, in words."""
    return f"{_place(resources)}: {resources.spill_store_bytes} bytes stored, {resources.spill_load_bytes} loaded"


def _place(resources: Resources) -> str:
    build = resources.compilation
    settings = " ".join(filter(None, (build.arch, build.storage, _defined(build.defines))))
    return f"{build.source}.cu {resources.kernel}, {settings}"


def _defined(defines: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{macro}={value}" for macro, value in defines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the table, and return 1 where a kernel has an unlisted spill or is assembled wrongly, else 0."""
    parser = argparse.ArgumentParser(prog="python -m conv_advisor.kernels.cuda.resources", description=__doc__)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=f"of {', '.join(SOURCES)}; default all")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="default all; may be repeated")
    parser.add_argument("--everything", action="store_true", help=f"every cut, not at most {MOST_CUTS}; takes minutes")
    parser.add_argument("--epilogue", type=Epilogue.parse, default=PLAIN, help="e.g. bias-residual-relu; default none")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.sources) - set(SOURCES)
    if unknown:
        parser.error(f"no source is called {', '.join(sorted(unknown))}")
    sources, archs = chosen.sources or SOURCES, chosen.arch or ARCHITECTURES
    todo = compilations(sources, archs, is_everything=chosen.everything, epilogue=chosen.epilogue)
    with new_pool() as pool:
        kernels = [resources for future in start(todo, pool).values() for resources in future.result()[2]]
    sys.stdout.write(report(kernels) + "\n")
    return 1 if unlisted_spills(kernels) or with_lost_copies(kernels) else 0


if __name__ == "__main__":
    sys.exit(main())
