"""Tensors in and out: safetensors that tell the truth, safetensors that lie, and lists."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from conv_advisor.app.wire.safetensors import (
    MAX_HEADER_BYTES,
    STORED,
    from_lists,
    read_safetensors,
    to_lists,
    write_safetensors,
)
from conv_advisor.data.errors import InvalidTensor

X = {"dtype": "F32", "shape": [1, 1, 2, 2], "data_offsets": [0, 16]}
WEIGHT = {"dtype": "F32", "shape": [1, 1, 1, 1], "data_offsets": [16, 20]}


def body(header: Any, data: bytes = bytes(20)) -> np.ndarray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return np.frombuffer(len(text).to_bytes(8, "little") + text + data, np.uint8)


def read(content: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    return read_safetensors(content, ("x", "weight"))


@pytest.mark.parametrize("dtype", STORED.values(), ids=list(STORED))
def test_what_the_library_writes_is_read_without_a_copy(dtype: np.dtype) -> None:
    x = np.arange(24).reshape(1, 2, 3, 4).astype(dtype)
    weight = -np.arange(4).reshape(1, 4, 1, 1).astype(dtype)
    content = np.frombuffer(save({"x": x, "weight": weight}, {"pad_h": "1"}), np.uint8)
    tensors, metadata = read(content)
    assert metadata == {"pad_h": "1"}
    assert np.shares_memory(tensors["x"], content)
    np.testing.assert_array_equal(tensors["x"], x)
    np.testing.assert_array_equal(tensors["weight"], weight)
    assert tensors["x"].dtype == dtype


@pytest.mark.parametrize("dtype", STORED.values(), ids=list(STORED))
def test_what_is_written_is_what_the_library_reads(dtype: np.dtype) -> None:
    y = np.array([1.5, -np.inf, np.nan, 3]).reshape(1, 1, 2, 2).astype(dtype)
    ((name, entry),) = deserialize(b"".join(write_safetensors(y, {"variant": "cpu.direct"})))
    assert (name, entry["shape"]) == ("y", [1, 1, 2, 2])
    assert STORED[entry["dtype"]] == dtype
    assert bytes(entry["data"]) == y.tobytes()


LIES: dict[str, tuple[Any, str]] = {
    "offsets_beyond_the_body": ({"x": X, "weight": WEIGHT | {"data_offsets": [16, 2**40]}}, "data_offsets"),
    "offsets_turned_round": ({"x": X | {"data_offsets": [16, 0]}, "weight": WEIGHT}, "data_offsets"),
    "negative_offsets": ({"x": X | {"data_offsets": [-16, 0]}, "weight": WEIGHT}, "data_offsets"),
    "shape_larger_than_its_bytes": ({"x": X | {"shape": [2**20, 2**20, 1, 1]}, "weight": WEIGHT}, "data_offsets"),
    "shape_smaller_than_its_bytes": ({"x": X | {"shape": [1, 1, 1, 1]}, "weight": WEIGHT}, "data_offsets"),
    "shape_that_overflows": ({"x": X | {"shape": [2**62, 2**62, 2**62, 2**62]}, "weight": WEIGHT}, "shape"),
    "negative_shape": ({"x": X | {"shape": [-1, -1, 2, 2]}, "weight": WEIGHT}, "shape"),
    "shape_of_truths": ({"x": X | {"shape": [True, True, 2, 2]}, "weight": WEIGHT}, "shape"),
    "shape_of_fractions": ({"x": X | {"shape": [1.0, 1, 2, 2]}, "weight": WEIGHT}, "shape"),
    "three_dimensions": ({"x": X | {"shape": [1, 2, 2]}, "weight": WEIGHT}, "shape"),
    "unknown_dtype": ({"x": X | {"dtype": "F64"}, "weight": WEIGHT}, "dtype"),
    "dtype_that_is_a_list": ({"x": X | {"dtype": ["F32"]}, "weight": WEIGHT}, "dtype"),
    "overlap": ({"x": X, "weight": WEIGHT | {"data_offsets": [12, 16]}}, "data_offsets"),
    "gap": ({"x": X | {"shape": [1, 1, 1, 2], "data_offsets": [0, 8]}, "weight": WEIGHT}, "data_offsets"),
    "rest": (
        {"x": X | {"shape": [1, 1, 1, 1], "data_offsets": [0, 4]}, "weight": WEIGHT | {"data_offsets": [4, 8]}},
        "data_offsets",
    ),
    "missing_field": ({"x": {"dtype": "F32", "shape": [1, 1, 2, 2]}, "weight": WEIGHT}, "x"),
    "additional_field": ({"x": X | {"extra": 1}, "weight": WEIGHT}, "x"),
    "missing_tensor": ({"x": X}, "header"),
    "additional_tensor": ({"x": X, "weight": WEIGHT, "bias": WEIGHT}, "header"),
    "metadata_of_numbers": ({"x": X, "weight": WEIGHT, "__metadata__": {"pad_h": 1}}, "__metadata__"),
    "metadata_of_lists": ({"x": X, "weight": WEIGHT, "__metadata__": ["pad_h"]}, "__metadata__"),
    "name_twice": (b'{"x":1,"x":2}', "header"),
    "no_object": ([1, 2], "header"),
    "no_json": (b"{'x'", "header"),
    "no_text": (b"\xff\xfe\xff", "header"),
    "deep": (b"[" * 50_000, "header"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_header_is_refused_by_name(name: str) -> None:
    header, field = LIES[name]
    with pytest.raises(InvalidTensor) as refused:
        read(body(header))
    assert field in refused.value.field


@pytest.mark.parametrize("length", [2**63, MAX_HEADER_BYTES + 1, 21, 2**64 - 1])
def test_a_header_longer_than_the_body_or_the_limit_is_refused_unread(length: int) -> None:
    content = np.frombuffer(length.to_bytes(8, "little") + b"{}" + bytes(18), np.uint8)
    with pytest.raises(InvalidTensor, match="header length"):
        read(content)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_body_too_short_for_a_header_is_refused(size: int) -> None:
    with pytest.raises(InvalidTensor, match=f"{size} bytes"):
        read(np.zeros(size, np.uint8))


@given(st.data())
def test_a_header_is_accepted_only_if_the_library_accepts_it(data: st.DataObject) -> None:
    size, offset = st.integers(0, 3), st.integers(0, 24)
    header = {
        name: {
            "dtype": data.draw(st.sampled_from(["F32", "F16", "BF16", "I8", "F99"])),
            "shape": data.draw(st.lists(size, min_size=3, max_size=5)),
            "data_offsets": data.draw(st.lists(offset, min_size=2, max_size=2)),
        }
        for name in ("x", "weight")
    }
    content = body(header, bytes(data.draw(offset)))
    try:
        tensors, _ = read(content)
    except InvalidTensor:
        return
    try:
        found = dict(deserialize(content.tobytes()))
    except SafetensorError as error:
        raise AssertionError(f"{header} was accepted, and the library says {error}") from error
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        name: entry["shape"] for name, entry in found.items()
    }


def test_lists_carry_what_json_has_no_number_for() -> None:
    lists = [[[["NaN", None, "Infinity", "-Infinity"], [1, 2.5, 1e400, -3]]]]
    array = from_lists("x", lists, np.dtype(np.float32))
    np.testing.assert_array_equal(array, [[[[np.nan, np.nan, np.inf, -np.inf], [1, 2.5, np.inf, -3]]]])
    assert to_lists(array) == [[[["NaN", "NaN", "Infinity", "-Infinity"], [1, 2.5, "Infinity", -3]]]]


def test_a_number_beyond_the_type_is_infinite_in_it() -> None:
    assert math.isinf(from_lists("x", [[[[1e6]]]], np.dtype(np.float16)).item())
    assert to_lists(np.full((1, 1, 1, 1), 1.5, ml_dtypes.bfloat16)) == [[[[1.5]]]]


@pytest.mark.parametrize(
    "lists",
    [[[[[1, 2], [3]]]], [[[["one"]]]], [[[1]]], [[[[[1]]]]], "text", 5, {"a": 1}, [[[[{"a": 1}]]]], [[[[[1], 2]]]]],
    ids=str,
)
def test_lists_that_are_no_tensor_are_refused(lists: Any) -> None:
    with pytest.raises(InvalidTensor, match="weight"):
        from_lists("weight", lists, np.dtype(np.float32))


@pytest.mark.parametrize("size", [0, -1, 2**31, 2**63, 10**30])
def test_a_size_that_no_tensor_has_is_refused_before_an_array_is_made(size: int) -> None:
    shape = [0, size, 2**31 - 1, 2**31 - 1]
    empty = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    with pytest.raises(InvalidTensor) as caught:
        read(body({"x": empty, "weight": {**WEIGHT, "data_offsets": [0, 4]}}, bytes(4)))
    assert caught.value.field == "x.shape"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_a_header_is_utf_8_without_a_byte_order_mark(encoding: str) -> None:
    with pytest.raises(InvalidTensor, match="UTF-8, without a byte order mark") as caught:
        read(body(json.dumps({"x": X, "weight": WEIGHT}).encode(encoding)))
    assert caught.value.field == "header"


@pytest.mark.parametrize("value", ["1.5", "1_000", " 1", "nan", "inf", True, False, {}, "", "Infinity "])
@pytest.mark.parametrize("place", ["alone", "beside"])
def test_what_is_no_number_is_named(value: Any, place: str) -> None:
    with pytest.raises(InvalidTensor) as caught:
        from_lists("x", [[[[value] if place == "alone" else [1.5, value]]]], np.dtype(np.float32))
    assert caught.value.field == "x"
    assert caught.value.value == repr(value)


def test_what_json_lacks_has_its_names() -> None:
    found = from_lists("x", [[[[1, 2.5, None, "NaN", "Infinity", "-Infinity"]]]], np.dtype(np.float32))
    np.testing.assert_array_equal(found.ravel(), [1, 2.5, np.nan, np.nan, np.inf, -np.inf])
