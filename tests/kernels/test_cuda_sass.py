"""Machine code is read from cubins, and what the assembler makes wrongly is found in it."""

from __future__ import annotations

import struct

from conv_advisor.kernels.cuda.sass import code_of, lost_copies

# As ptxas 13.0 assembled two copies with a cache hint of one 1x1 kernel for sm_90a, by nvdisasm 13.5:
COPY = (0x0000000010137FAE, 0x0005E20009101C56)
"""``LDGSTS.E.BYPASS.128 [R19], desc[UR22][R16.64], P2``"""
LOST_COPY = (0x00000000300D7DAE, 0x0003F4000B901C40)
"""``LDGSTS.E.BYPASS.128 [R13+UR0], desc[UR1][R48.64]``"""


def code(*instructions: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", *each) for each in instructions)


def elf(**sections: bytes) -> bytes:
    """A 64-bit ELF file of these sections, and of the one that has their names."""
    names, bodies = b"\0", []
    for name, body in (*sections.items(), ("names", b"")):
        bodies.append((len(names), body))
        names += f"{'.text.' if name != 'names' else '.'}{name}\0".encode()
    bodies[-1] = (bodies[-1][0], names)
    headers, content = b"", b""
    for name_at, body in bodies:
        headers += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, 64 + len(content), len(body), 0, 0, 0, 0)
        content += body
    head = b"\x7fELF".ljust(40, b"\0") + struct.pack("<Q", 64 + len(content)) + bytes(10)
    return head + struct.pack("<HHH", 64, len(bodies), len(bodies) - 1) + content + headers


def test_the_code_of_each_kernel_is_found() -> None:
    cubin = elf(pointwise=code(COPY, LOST_COPY), im2col=code(COPY))
    assert code_of(cubin) == {"pointwise": code(COPY, LOST_COPY), "im2col": code(COPY)}


def test_copies_that_lost_their_registers_are_counted() -> None:
    assert lost_copies(code(COPY, LOST_COPY, COPY, LOST_COPY)) == 2
    assert lost_copies(code(COPY, COPY)) == 0
