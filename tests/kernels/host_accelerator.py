"""Kernels that the tensor memory accelerator feeds, on a CPU: instructions become calls of `host_accelerator.h`."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, Final

HEADER: Final = Path(__file__).with_suffix(".h")
_INSTRUCTIONS: Final = {
    "mbarrier.init": "mbarrier_init",
    "mbarrier.arrive.expect_tx": "mbarrier_arrive_expect_tx",
    "mbarrier.arrive": "mbarrier_arrive",
    "mbarrier.try_wait": "mbarrier_try_wait",
    "cp.async.bulk.tensor.2d.shared": "cp_async_bulk_tensor_2d",
    "cp.async.bulk.tensor.3d.shared": "cp_async_bulk_tensor_3d",
    "cp.async.bulk.tensor.4d.shared": "cp_async_bulk_tensor_4d",
    "cp.async.cg": "cp_async_cg",
    "cp.async.ca": "cp_async_ca",
    "ldmatrix": "ldmatrix",
    "stmatrix": "stmatrix",
    "elect.sync": "elect_sync",
    "mov.u32": "mov_u32",
    "st.shared.u32": "st_shared_u32",
    "ld.shared.u16": "ld_shared_u16",
    "ld.shared.v2": "ld_shared_v2",
    "ld.shared.v4": "ld_shared_v4",
}
"""What each instruction is called there, the longer names first; others do nothing."""
_DYNAMIC: Final = "extern __shared__ __align__(1024) unsigned char shared[];"
_ON_HOST: Final = """extern __shared__ __align__(16) float dynamic_shared[];
unsigned char* const shared = (unsigned char*)dynamic_shared;"""
_OPERAND: Final = re.compile(r'"[=+&]*\w"\s*\(')


def translated(source: str) -> str:
    """A source for g++, without instructions."""
    assert _DYNAMIC in source
    text = re.sub(r"INSTRUCTION\(OF_SHARED\);", "host::multiply_add(d, from_a, from_b, is_added);", source)
    text = re.sub(r"INSTRUCTION\(OF_REGISTERS(_ADDED)?\);", ";", text)
    text = text.replace(_DYNAMIC, _ON_HOST)
    text = text.replace(
        "inline Address shared_address(const void* pointer) { return (Address)pointer; }",
        "inline Address shared_address(const void* pointer) { return (char*)pointer - host::shared_bytes(); }",
    )
    place = text.index('#line 1 "clusters.cuh"')
    text = f"{text[:place]}extern float dynamic_shared[];\n{HEADER.read_text()}{text[place:]}"
    done, at = [], 0
    for match in re.finditer(r"^(?!.*\\$)([^\n\"#]*?)\basm(?: volatile)?\(", text, re.M):
        if match.start() < at:
            continue
        end = _closed(text, match.end())
        done += [text[at : match.end(1)], _call(text[match.end() : end - 1])]
        at = end
    return "".join(done) + text[at:]


def _closed(text: str, place: int) -> int:
    """Behind the parenthesis that closes the one before a place."""
    depth, is_string = 1, False
    while depth:
        character = text[place]
        if character == '"':
            is_string = not is_string
        elif not is_string:
            depth += (character == "(") - (character == ")")
        place += 1
    return place


def _call(statement: str) -> str:
    """The call in an instruction's place, its operands in their order."""
    template = re.split(r'"\s*:|$', statement, maxsplit=1)[0]
    name = next((_INSTRUCTIONS[start] for start in _INSTRUCTIONS if start in template), "nothing")
    operands, place = [], 0
    while match := _OPERAND.search(statement, place):
        place = _closed(statement, match.end())
        operands.append(statement[match.end() : place - 1])
    return f"host::{name}({', '.join(operands)})"


class HostDriver:
    """Writes maps as `host_accelerator.h` reads them."""

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802 - the driver's name
        version._obj.value = 99_000
        return 0

    def cuTensorMapEncodeTiled(  # noqa: N802 - the driver's name
        self,
        target: Any,
        _type: int,
        _rank: int,
        address: Any,
        sizes: Any,
        strides: Any,
        box: Any,
        _steps: Any,
        _interleave: int,
        swizzle: int,
        *_rest: int,
    ) -> int:
        _write(target, 0, address.value, sizes, strides, (*box, 1, 1, 1)[:4], (0, 0), (0, 0), swizzle)
        return 0

    def cuTensorMapEncodeIm2col(  # noqa: N802 - the driver's name
        self,
        target: Any,
        _type: int,
        _rank: int,
        address: Any,
        sizes: Any,
        strides: Any,
        lower: Any,
        upper: Any,
        channels: Any,
        pixels: Any,
        steps: Any,
        _interleave: int,
        swizzle: int,
        *_rest: int,
    ) -> int:
        box = (channels.value, pixels.value, *list(steps)[1:3])
        _write(target, 1, address.value, sizes, strides, box, tuple(lower), tuple(upper), swizzle)
        return 0


def _write(target: Any, kind: int, address: int, sizes: Any, strides: Any, box: Any, *rest: Any) -> None:
    lower, upper, swizzle = rest
    corners = (ctypes.c_int32 * 4)(*lower, *upper)
    words = [kind, address, *(*sizes, 1, 1, 1)[:4], *(*strides, 0, 0, 0)[:3], *box]
    words += [*(ctypes.c_uint64 * 2).from_buffer(corners), 16 << swizzle]
    target._obj[:] = words
