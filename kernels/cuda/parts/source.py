"""A CUDA source of ours: its file, and everything that a launcher may compile it with."""

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
"""What sources of several families include."""
STORAGE_OF: Final = {
    DType.FLOAT32: "FLOAT32",
    DType.TF32: "FLOAT32",
    DType.FLOAT16: "FLOAT16",
    DType.BFLOAT16: "BFLOAT16",
}
STORAGES: Final = tuple(dict.fromkeys(STORAGE_OF.values()))
"""Types that x, weight and y may be stored in."""
ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100")
"""What every source is compiled for where there is no GPU, unless it is for one architecture alone."""

_INCLUDE: Final = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


def plain(_dtype: DType) -> Sequence[Defines]:
    """Definitions of a source that has none but its storage type."""
    return ({},)


@dataclass(frozen=True)
class BorneSpill:
    """A spill of a source that is known and borne.

    Parameters
    ----------
    kernel, arch : str
    most_bytes : int
        Stores or loads of a thread, whichever are more.
    reason : str
        Why it is borne.
    storage : str, optional
        Only there; empty: with every storage type.
    defines : tuple of (str, int)
        Only where these are defined so, among others.
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
        The file's, without its ending; no two families have the same.
    definitions : callable (dtype) -> sequence of dict
        What a launcher may define beside the storage type, for problems of this dtype; nothing where it never runs.
    architecture : str, optional
        The exact one that it is for, e.g. ``sm_90a``; the others are for any.
    spills : tuple of BorneSpill
        Every kernel that may spill, and why.
    """

    name: str
    definitions: Callable[[DType], Sequence[Defines]] = plain
    architecture: str | None = None
    spills: tuple[BorneSpill, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that it is for, among those we name."""
        return (self.architecture,) if self.architecture else ARCHITECTURES

    @property
    def takes_epilogue(self) -> bool:
        """Whether a launcher may define an epilogue beside the rest: whether it includes ``epilogue.cuh``."""
        return "epilogue.cuh" in _headers_of(self.name)

    @property
    def waits(self) -> bool:
        """Whether its kernels can wait for the one ahead of them: whether it includes ``overlap.cuh``."""
        return "overlap.cuh" in _headers_of(self.name)

    def instantiations(self, storage: str) -> tuple[Defines, ...]:
        """The definitions for every dtype that is stored so, each once."""
        return each_once(*(self.definitions(dtype) for dtype in DType if STORAGE_OF[dtype] == storage))

    def text(self) -> str:
        """One translation unit: the shared head, the file and its headers; line numbers are those of the files.

        A header lies beside its source, or in ``parts/``.
        """
        path = path_of(self.name)
        head, body = (PARTS / "storage.cuh").read_text(), path.read_text()

        def included(match: re.Match[str]) -> str:
            line = body.count("\n", 0, match.end()) + 2
            own = path.with_name(match[1])
            header = own if own.exists() else PARTS / match[1]
            return f'#line 1 "{match[1]}"\n{header.read_text()}\n#line {line} "{path.name}"'

        return f'{head}\n#line 1 "{path.name}"\n{_INCLUDE.sub(included, body)}'


@cache
def definitions_of(source: Source, dtype: DType) -> Sequence[Defines]:
    """A source's definitions, made once: launchers ask for them every time that they load a kernel."""
    return source.definitions(dtype)


@cache
def path_of(name: str) -> Path:
    """Where ``<name>.cu`` is: in the folder of its family."""
    (path,) = FOLDER.glob(f"*/{name}.cu")
    return path


@cache
def _headers_of(name: str) -> frozenset[str]:
    return frozenset(_INCLUDE.findall(path_of(name).read_text()))


def each_once(*groups: Iterable[Defines]) -> tuple[Defines, ...]:
    """Definitions in order, those that were there before left out."""
    return tuple({tuple(defines.items()): defines for group in groups for defines in group}.values())
