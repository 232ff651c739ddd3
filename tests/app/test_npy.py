"""Tensors as .npy: what NumPy writes, and headers that lie."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conv_advisor.app.wire.npy import MAX_HEADER_BYTES, read_npy, write_npy
from conv_advisor.data.errors import InvalidTensor

DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
X = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)


def saved(*arrays: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    """Arrays one after the other, as NumPy writes them."""
    file = io.BytesIO()
    for array in arrays:
        np.lib.format.write_array(file, array, version)
    return file.getvalue()


def read(content: bytes, *names: str) -> dict[str, np.ndarray]:
    return read_npy(np.frombuffer(content, np.uint8), names or ("x",))


def written(header: str, data: bytes = bytes(96), version: int = 1) -> bytes:
    """An array with this header."""
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_what_numpy_writes_is_read_without_a_copy(dtype: np.dtype, version: tuple[int, int]) -> None:
    x, weight = X.astype(dtype), -np.arange(4).reshape(2, 2, 1, 1).astype(dtype)
    content = np.frombuffer(saved(x, weight, version=version), np.uint8)
    tensors = read_npy(content, ("x", "weight"))
    for name, expected in (("x", x), ("weight", weight)):
        assert np.shares_memory(tensors[name], content)
        assert tensors[name].dtype == dtype
        np.testing.assert_array_equal(tensors[name], expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_written_is_what_numpy_reads_and_writes(dtype: np.dtype) -> None:
    y = np.array([1.5, -np.inf, np.nan, 3]).reshape(1, 1, 2, 2).astype(dtype)
    content = b"".join(write_npy(y[:, :, ::-1]))
    found = np.load(io.BytesIO(content), allow_pickle=False)
    assert found.tobytes() == y[:, :, ::-1].tobytes()
    assert found.shape == y.shape
    assert len(content) % 64 == y.nbytes % 64
    assert read(content)["x"].tobytes() == y[:, :, ::-1].tobytes()


LIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "x"),
    "no_magic": (b"PK\x03\x04" + bytes(100), "x"),
    "cut_in_the_magic": (b"\x93NUM", "x"),
    "cut_in_the_header": (saved(X)[:60], "header"),
    "cut_in_the_data": (saved(X)[:-1], "x.shape"),
    "bytes_after_the_last": (saved(X) + b"\0", "body"),
    "none_of_one_size_and_huge_others": (
        written(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {10**9}, {10**9}, {10**9}), }}", b""),
        "x.shape",
    ),
    "too_large_a_number": (
        written(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**30}, 1, 1, 1), }}"),
        "x.shape",
    ),
    "truth_values": (written("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2, 3, 4), }"), "x.shape"),
    "deep": (written("{'descr': " + "-" * 900 + "1}"), "header"),
    "brackets": (written("(" * 900), "header"),
    "another_version": (b"\x93NUMPY\x04\x00" + saved(X)[8:], "x"),
    "a_header_of_4_GiB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), "header"),
    "a_long_header": (written(" " * (MAX_HEADER_BYTES + 1)), "header"),
    "objects": (written("{'descr': '|O', 'fortran_order': False, 'shape': (1, 2, 3, 4), }"), "x.dtype"),
    "big_endian": (written("{'descr': '>f4', 'fortran_order': False, 'shape': (1, 2, 3, 4), }"), "x.dtype"),
    "float64": (saved(X.astype(np.float64)), "x.dtype"),
    "integers": (saved(X.astype(np.int32)), "x.dtype"),
    "fields": (written("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 2, 3, 4), }"), "x.dtype"),
    "columns_first": (saved(np.asfortranarray(X)), "fortran_order"),
    "three_sizes": (saved(X[0]), "x.shape"),
    "2_to_the_40": (
        written(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**20}, {2**20}, 1, 1), }}"),
        "shape",
    ),
    "negative": (written("{'descr': '<f4', 'fortran_order': False, 'shape': (1, -2, 3, 4), }"), "x.shape"),
    "code": (written("{'descr': '<f4', 'fortran_order': exit(), 'shape': (1, 2, 3, 4), }"), "header"),
    "no_text": (written("") + b"\xff" * 50, "header"),
}


@pytest.mark.parametrize(("content", "field"), LIES.values(), ids=list(LIES))
def test_a_header_that_lies_is_named(content: bytes, field: str) -> None:
    with pytest.raises(InvalidTensor) as caught:
        read(content)
    assert field in caught.value.field


def test_the_types_that_are_taken_are_named_as_people_know_them() -> None:
    with pytest.raises(InvalidTensor) as caught:
        read(saved(X.astype(np.float64)))
    assert str(caught.value) == (
        "x.dtype is 'float64'; allowed: float32, float16, or bfloat16 as two opaque bytes (V2); little-endian"
    )


def test_a_second_tensor_must_be_there() -> None:
    with pytest.raises(InvalidTensor, match="weight is 'missing'"):
        read(saved(X), "x", "weight")


@given(st.data())
def test_a_changed_byte_is_refused_or_changes_nothing_but_what_it_says(data: Any) -> None:
    content = bytearray(saved(X))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 127))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(content))["x"]
    except InvalidTensor:
        return
    assert found.nbytes == X.nbytes
    assert found.ndim == 4
