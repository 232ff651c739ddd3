"""Bytes that were valid once: bits flipped, ends cut off, lengths, sizes and names replaced, parts moved."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

_INTEGERS = (0, 1, 2, 7, 2**7, 2**8, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_NUMBERS = (*map(str, _INTEGERS), "-1", "-0", "1e308", "1e999", "0.5", "9" * 40, "9" * 5000, "NaN", "Infinity")
_TOKENS = (
    *(
        "null",
        "true",
        "[]",
        "{}",
        '""',
        "[[[[]]]]",
        "[" * 3000,
        '{"a":' * 2000,
        '"\\ud800"',
        '"\\u0000"',
        "[[1],[2,3]]",
    ),
    *_NUMBERS,
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_TOKEN = re.compile(rb'"[^"]{0,40}"|-?\d+(?:\.\d+)?|true|false|null|[\[\]{},:()]')
_HEAD_BYTES = 600
"""Where the header of every body that is altered ends; what follows are numbers, of which any are allowed."""

Mutation = Callable[[random.Random, bytearray], bytes | bytearray]


def mutated(rng: random.Random, body: bytes, donors: tuple[bytes, ...]) -> bytes:
    """The body after one to three mutations; parts of the donors may end up in it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutation = rng.choice(_MUTATIONS)
        altered = _spliced(rng, body, rng.choice(donors)) if mutation is None else mutation(rng, bytearray(body))
        body = bytes(altered)
    return body


def _bits_flipped(rng: random.Random, body: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 4)):
        if body:
            body[_place(rng, len(body))] ^= 1 << rng.randrange(8)
    return body


def _byte_replaced(rng: random.Random, body: bytearray) -> bytearray:
    if body:
        body[_place(rng, len(body))] = rng.choice((0, 0x20, 0x22, 0x2C, 0x2D, 0x30, 0x39, 0x7F, 0x80, 0xFF))
    return body


def _cut_off(rng: random.Random, body: bytearray) -> bytearray:
    return body[: _place(rng, len(body) + 1)]


def _lengthened(rng: random.Random, body: bytearray) -> bytearray:
    return body + rng.randbytes(rng.choice((1, 2, 8, 64, 1024)))


def _part_removed(rng: random.Random, body: bytearray) -> bytearray:
    start = _place(rng, len(body) + 1)
    return body[:start] + body[start + rng.randint(1, 64) :]


def _part_repeated(rng: random.Random, body: bytearray) -> bytearray:
    start = _place(rng, len(body) + 1)
    part = body[start : start + rng.randint(1, 64)]
    return body[:start] + part * rng.choice((2, 3, 50)) + body[start + len(part) :]


def _length_replaced(rng: random.Random, body: bytearray) -> bytearray:
    """Another number where a format keeps the length of its header: at 0 (safetensors) or at 8 (.npy)."""
    start, size = rng.choice(((0, 8), (8, 2), (8, 4)))
    value = rng.choice((*_INTEGERS, len(body), len(body) - 8, rng.randrange(2 * len(body) + 1)))
    body[start : start + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    return body


def _number_replaced(rng: random.Random, body: bytearray) -> bytearray:
    return _replaced(rng, body, _NUMBER, _NUMBERS)


def _token_replaced(rng: random.Random, body: bytearray) -> bytearray:
    return _replaced(rng, body, _TOKEN, _TOKENS)


def _header_altered(rng: random.Random, body: bytearray) -> bytes | bytearray:
    """Another value in the JSON that the body begins with, with a length before it that fits, as in safetensors."""
    length = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(bytes(body[8 : 8 + length]))
    except (ValueError, RecursionError):
        return body
    if not isinstance(header, dict) or not header:
        return body
    _alter(rng, header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


def _alter(rng: random.Random, value: Any) -> None:
    """Replace, remove or rename something in a JSON object, at any depth."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = rng.choice(keys)
    deeper = value[key]
    if isinstance(deeper, (dict, list)) and deeper and rng.random() < 0.7:
        _alter(rng, deeper)
    elif rng.random() < 0.2:
        del value[key]
    elif isinstance(value, dict) and rng.random() < 0.2:
        value[rng.choice(("x", "weight", "y", "__metadata__", "shape", "dtype", "stride", "pad", "groups"))] = deeper
    else:
        value[key] = rng.choice(
            (*_INTEGERS, -1, 0.5, None, True, "", "F64", "1", [], {}, [2**40] * 4, "\ud800", deeper)
        )


def _replaced(rng: random.Random, body: bytearray, pattern: re.Pattern[bytes], by: tuple[str, ...]) -> bytearray:
    found = list(pattern.finditer(bytes(body[:_HEAD_BYTES])))
    if found:
        match = rng.choice(found)
        body[match.start() : match.end()] = rng.choice(by).encode()
    return body


def _spliced(rng: random.Random, body: bytes, donor: bytes) -> bytes:
    return body[: rng.randrange(len(body) + 1)] + donor[rng.randrange(len(donor) + 1) :]


def _place(rng: random.Random, length: int) -> int:
    """Somewhere, mostly in the header."""
    return rng.randrange(min(length, _HEAD_BYTES) if rng.random() < 0.8 else length)


_MUTATIONS: tuple[Mutation | None, ...] = (
    *(_bits_flipped, _byte_replaced, _cut_off, _lengthened, _part_removed, _part_repeated, _length_replaced),
    *(_number_replaced, _number_replaced, _token_replaced, _token_replaced, _header_altered, _header_altered, None),
)
