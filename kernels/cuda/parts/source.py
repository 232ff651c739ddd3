"""A CUDA source of ours: its file, and all definitions that a launcher may compile it with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from conv_advisor.data.problem import DType

Defines = dict[str, int]
"""Values of macros."""

FOLDER: Final = Path(__file__).parents[1]
PARTS: Final = FOLDER / "parts"
"""Folder of headers that sources of several families include."""
STORAGE_OF: Final = {
    DType.FLOAT32: "FLOAT32",
    DType.TF32: "FLOAT32",
    DType.FLOAT16: "FLOAT16",
    DType.BFLOAT16: "BFLOAT16",
}
STORAGES: Final = tuple(dict.fromkeys(STORAGE_OF.values()))
"""Types that x, weight and y may be stored in."""
ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100")
"""Architectures that every source is compiled for without a GPU, unless it is for one architecture only."""

_INCLUDE: Final = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


def plain(_dtype: DType) -> Sequence[Defines]:
    """Definitions of a source that depends only on its storage type."""
    return ({},)


@dataclass(frozen=True)
class BorneSpill:
    """A register spill of a source that is known and accepted.

    Parameters
    ----------
    kernel, arch : str
    most_bytes : int
        Bytes that a thread stores or loads, whichever is more.
    reason : str
        Why it is accepted.
    storage : str, optional
        The storage type with which it occurs; empty: every storage type.
    defines : tuple of (str, int)
        It occurs only where these macros, among others, have these values.
    """

    kernel: str
    arch: str
    most_bytes: int
    reason: str
    storage: str = ""
    defines: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Source:
    """One ``.cu`` file.

    Parameters
    ----------
    name : str
        The file's name without its suffix; unique across families.
    definitions : callable (dtype) -> sequence of dict
        Sets of definitions that a launcher may add for problems of this dtype; empty where it never runs.
    architecture : str, optional
        The exact architecture that it is for, e.g. ``sm_90a``; None: any.
    spills : tuple of BorneSpill
        Every kernel that may spill, and why.
    """

    name: str
    definitions: Callable[[DType], Sequence[Defines]] = plain
    architecture: str | None = None
    spills: tuple[BorneSpill, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that it is compiled for without a GPU."""
        return (self.architecture,) if self.architecture else ARCHITECTURES

    @property
    def takes_epilogue(self) -> bool:
        """Whether a launcher may add definitions of an epilogue: whether it includes ``epilogue.cuh``."""
        return "epilogue.cuh" in _headers_of(self.name)

    @property
    def waits(self) -> bool:
        """Whether its kernels can wait for the kernel before them: whether it includes ``overlap.cuh``."""
        return "overlap.cuh" in _headers_of(self.name)

    def instantiations(self, storage: str) -> tuple[Defines, ...]:
        """The definitions for every dtype of this storage type, each once."""
        return each_once(*(self.definitions(dtype) for dtype in DType if STORAGE_OF[dtype] == storage))

    def text(self) -> str:
        """One translation unit: the shared head, the file and its headers; line numbers are those of the files.

        A header lies beside its source, or in ``parts/``.
        """
        path = path_of(self.name)
        head, body = (PARTS / "storage.cuh").read_text(), path.read_text()

        def included(match: re.Match[str]) -> str:
            line = body.count("\n", 0, match.end()) + 2
            neighbour = path.with_name(match[1])
            header = neighbour if neighbour.exists() else PARTS / match[1]
            return f'#line 1 "{match[1]}"\n{header.read_text()}\n#line {line} "{path.name}"'

        return f'{head}\n#line 1 "{path.name}"\n{_INCLUDE.sub(included, body)}'


@cache
def definitions_of(source: Source, dtype: DType) -> Sequence[Defines]:
    """A source's definitions, cached: launchers need them every time that they load a kernel."""
    return source.definitions(dtype)


@cache
def path_of(name: str) -> Path:
    """Path of ``<name>.cu``, in the folder of its family."""
    (path,) = FOLDER.glob(f"*/{name}.cu")
    return path


@cache
def _headers_of(name: str) -> frozenset[str]:
    return frozenset(_INCLUDE.findall(path_of(name).read_text()))


def each_once(*groups: Iterable[Defines]) -> tuple[Defines, ...]:
    """Definitions in order, without duplicates."""
    return tuple({tuple(defines.items()): defines for group in groups for defines in group}.values())
