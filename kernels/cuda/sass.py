"""The machine instructions of a cubin, and those among them that the assembler is known to encode wrongly."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_INSTRUCTION: Final = struct.Struct("<QQ")
"""16 bytes, on every architecture that we compile for."""
_OPCODE: Final = 0xFFF
_LOST_COPY: Final = 0xDAE
"""``LDGSTS`` that adds a uniform register to its target address; 0xFAE is the form that does not."""

_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_TEXT: Final = ".text."


def code_of(cubin: bytes) -> dict[str, bytes]:
    """Instructions of each kernel of a cubin, a 64-bit ELF file, by kernel name."""
    return dict(_kernels(cubin))


def _kernels(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 58)
    headers = [_SECTION.unpack_from(cubin, start + size * place) for place in range(count)]
    bodies = [cubin[offset : offset + length] for _, _, _, _, offset, length, *_ in headers]
    for (name_at, *_), body in zip(headers, bodies, strict=True):
        name = bodies[of_names][name_at:].partition(b"\0")[0].decode()
        if name.startswith(_TEXT):
            yield name.removeprefix(_TEXT), body


def lost_copies(code: bytes) -> int:
    """How many of a kernel's copies to shared memory name registers that no instruction wrote.

    ptxas 13.0 assembles some ``cp.async`` with a cache hint to ``LDGSTS [R13+UR0], desc[UR1][R48.64]`` and sets neither
    uniform register. On an H100 kernels with such copies ended in an illegal instruction. The assembler used this form
    in no other kernel of ours, so every instruction of this form counts.
    """
    return opcodes(code).count(_LOST_COPY)


def opcodes(code: bytes) -> list[int]:
    """The opcode of each instruction of a kernel, in order: the lowest twelve bits of its first word."""
    return [low & _OPCODE for low, _ in _INSTRUCTION.iter_unpack(code)]
