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
"""The tiles are sized for Hopper: many instantiations are compiled for it, the first and last for the others."""
MOST_CUTS: Final = 10
"""Instantiations of a source with one storage type that are compiled for `TUNED`: all of them take minutes."""

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
    """What one kernel of a compilation takes.

    Parameters
    ----------
    compilation : Compilation
    kernel : str
    registers : int
        What one thread takes.
    shared_bytes : int
        What one block takes, without what a launch adds.
    stack_bytes, spill_store_bytes, spill_load_bytes : int
        What one thread takes in local memory.
    lost_copies : int
        Instructions that the assembler made wrongly (`sass.lost_copies`).
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
        """The larger of what is stored and what is loaded."""
        return max(self.spill_store_bytes, self.spill_load_bytes)


def covers(spill: BorneSpill, found: Resources) -> bool:
    """Whether a borne spill of its source is the one that was found, and no more than it."""
    at = found.compilation
    return (
        (spill.kernel, spill.arch) == (found.kernel, at.arch)
        and spill.storage in ("", at.storage)
        and set(spill.defines) <= set(at.defines)
        and found.spilled_bytes <= spill.most_bytes
    )


def compilations(
    sources: Iterable[str] = tuple(SOURCES),
    archs: Sequence[str] = ARCHITECTURES,
    *,
    is_everything: bool = False,
    epilogue: Epilogue = PLAIN,
) -> list[Compilation]:
    """What is compiled to check the sources for these architectures.

    Parameters
    ----------
    sources : iterable of str
    archs : sequence of str
        A source for one exact architecture, such as sm_90a, counts under the plain one.
    is_everything : bool
        Every instantiation for every architecture. Else two of them, for `TUNED` up to `MOST_CUTS`: the first and last,
        and in between others for each storage type.
    epilogue : Epilogue
        What all are compiled with beside that; sources that take none are then left out.
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
    """The first, the last, and others between them at even distances, moved by a part of the distance."""
    if most is None or len(everything) <= most:
        return list(everything)
    step = (len(everything) - 1) / (most - 1)
    places = {0, len(everything) - 1} | {int((place + shift) * step) for place in range(1, most - 1)}
    return [everything[place] for place in sorted(places)]


def compile_one(compilation: Compilation) -> tuple[bytes, str, list[Resources]]:
    """Compile; the cubin, the compiler's log and what each kernel takes."""
    cubin, log = compile_cubin(
        SOURCES[compilation.source], compilation.storage, dict(compilation.defines), compilation.arch
    )
    code = code_of(cubin)
    return cubin, log, [replace(each, lost_copies=lost_copies(code[each.kernel])) for each in parse(compilation, log)]


def parse(compilation: Compilation, log: str) -> Iterator[Resources]:
    """Read what ``ptxas -v`` says of each kernel."""
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


def unlisted_spills(found: Iterable[Resources]) -> list[Resources]:
    """The kernels that spill and that their sources do not list with a reason, or that spill more than is listed."""
    return [
        each
        for each in found
        if each.spilled_bytes and not any(covers(spill, each) for spill in SOURCES[each.compilation.source].spills)
    ]


def with_lost_copies(found: Iterable[Resources]) -> list[Resources]:
    """The kernels that the assembler made wrongly."""
    return [each for each in found if each.lost_copies]


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


def table(found: Iterable[Resources]) -> str:
    """One line a kernel and architecture: the range over storage types and definitions, and who spills, and why."""

    def group(each: Resources) -> tuple[str, str, str]:
        return each.compilation.source, each.kernel, each.compilation.arch

    def order(each: Resources) -> tuple[int, str, int, str]:
        source, kernel, arch = group(each)
        return list(SOURCES).index(source), kernel, len(arch), arch

    lines = [_LINE.format("source", "kernel", "arch", "cuts", "registers", "static shared", "stack", "spilled")]
    for (source, kernel, arch), same in groupby(sorted(found, key=order), key=group):
        each = list(same)
        lines.append(
            _LINE.format(
                source,
                kernel,
                arch,
                len(each),
                _range(one.registers for one in each),
                _range(one.shared_bytes for one in each),
                _range(one.stack_bytes for one in each),
                _range(one.spilled_bytes for one in each),
            )
        )
    return "\n".join(line.rstrip() for line in lines)


_LINE: Final = "{:21} {:27} {:7} {:>4} {:>10} {:>14} {:>8} {:>8}"


def _range(values: Iterable[int]) -> str:
    every = sorted(values)
    return f"{every[0]}" if every[0] == every[-1] else f"{every[0]}-{every[-1]}"


def report(found: Sequence[Resources]) -> str:
    """The table, then the spills that are borne with their reasons, then those that are not."""
    lines = [table(found), "Bytes of a thread, shared memory of a block; a launch may add shared memory of its own."]
    for spill in (spill for source in SOURCES.values() for spill in source.spills):
        where = ", ".join(filter(None, (spill.arch, spill.storage, _defined(spill.defines))))
        lines.append(f"borne: {spill.kernel} ({where}) spills up to {spill.most_bytes} bytes: {spill.reason}")
    lines += [f"UNLISTED SPILL: {describe(each)}" for each in unlisted_spills(found)]
    lines += [f"LOST COPIES: {each.lost_copies} of {_place(each)}" for each in with_lost_copies(found)]
    return "\n".join(lines)


def describe(each: Resources) -> str:
    """One kernel that spills, in words."""
    return f"{_place(each)}: {each.spill_store_bytes} bytes stored, {each.spill_load_bytes} loaded"


def _place(each: Resources) -> str:
    at = each.compilation
    return f"{at.source}.cu {each.kernel}, {' '.join(filter(None, (at.arch, at.storage, _defined(at.defines))))}"


def _defined(defines: tuple[tuple[str, int], ...]) -> str:
    return " ".join(f"{macro}={value}" for macro, value in defines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the table, and fail where a kernel spills unlisted or is assembled wrongly; the exit status."""
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
        found = [each for future in start(todo, pool).values() for each in future.result()[2]]
    sys.stdout.write(report(found) + "\n")
    return 1 if unlisted_spills(found) or with_lost_copies(found) else 0


if __name__ == "__main__":
    sys.exit(main())
