"""Arrays of a safetensors file where they lie: those that were written, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from conv_advisor.models.tree.in_place import arrays_in, read_whole

ARRAYS = {
    "halves": np.arange(6, dtype=np.float16).reshape(2, 3),
    "singles": np.arange(3, dtype=np.float32),
    "doubles": np.arange(3, dtype=np.float64),
    "integers": np.arange(5, dtype=np.int32),
    "none": np.empty((0, 4), np.float32),
}


def written(header: Any, data: bytes = bytes(16)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (4,), data_offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": data_offsets}}


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(save(ARRAYS))
    content = read_whole(tmp_path / "file")
    found = arrays_in(content)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
        assert not array.size or np.shares_memory(found[name], np.frombuffer(content, np.uint8))
        assert found[name].flags.aligned
        assert not found[name].size or not found[name].flags.writeable


def test_what_was_read_stays_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(save(ARRAYS))
    found = arrays_in(read_whole(file))
    file.write_bytes(b"")  # in place: memory that the file is mapped to would be gone, and the process with it
    assert np.array_equal(found["doubles"], ARRAYS["doubles"])
    assert bytes(read_whole(file)) == b""


def test_numbers_anywhere_are_read(tmp_path: Path) -> None:
    data = b"\0" + np.arange(4, dtype=np.float32).tobytes()
    found = arrays_in(written(entry(data_offsets=(1, 17)), data))["x"]
    assert found.tolist() == [0, 1, 2, 3]
    assert found.flags.aligned


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "its header ends at 8"),
        (b"\0\0\0", "its header ends at 8"),
        ((2**63).to_bytes(8, "little") + b"{}", "its header ends at"),
        (written(b"{"), "truncated"),
        (written(b"[]"), "Expected `object`"),
        (written({"x": []}), "Expected `object`"),
        (written(entry(dtype="F8_E4M3")), "its type is F8_E4M3"),
        (written(entry(shape=[-4])), ">= 0"),
        (written(entry(shape=[2**62, 4], data_offsets=[0, 2**66])), "its header is wrong"),
        (written(entry(data_offsets=[0, 12])), "are not the bytes of F32"),
        (written(entry(data_offsets=[4, 20])), "buffer is smaller"),
        (written(entry(data_offsets=[16, 0])), "are not the bytes of F32"),
        (written(entry(data_offsets=[-16, 0])), ">= 0"),
    ],
)
def test_a_file_that_lies_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        arrays_in(content)
