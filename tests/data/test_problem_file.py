"""Lists of problems in text files."""

from __future__ import annotations

from pathlib import Path

import pytest

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.problem_file import read_problems


def test_lines_in_both_forms_with_and_without_dtype_and_layout(tmp_path: Path) -> None:
    long = ConvProblem(2, 8, 17, 9, 16, 1, 7, 1, 1, 0, 3, 1, 1, 8)
    file = tmp_path / "mine.txt"
    file.write_text(f"14-1-3-8-8 float16 nhwc  # one\n\n7-2-1-8-8\n7-2-1-8-8 tf32\n{long.short} bfloat16 nchw\n")
    assert read_problems(file, [DType.TF32], list(Layout)) == [
        ConvProblem.parse("14-1-3-8-8", dtype="float16", layout="nhwc"),
        *(ConvProblem.parse("7-2-1-8-8", dtype="tf32", layout=layout) for layout in Layout),
        ConvProblem.parse(long.short, dtype="bfloat16", layout="nchw"),
    ]


@pytest.mark.parametrize("line", ["14-1-3-8", "14-1-3-8-8 float8", "14-1-3-8-8 float16 nchw16"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(f"14-1-3-8-8\n{line}\n")
    with pytest.raises(InvalidInput, match=r"mine\.txt line 2"):
        read_problems(file, [DType.TF32], list(Layout))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    for name in ("absent.txt", "binary.txt"):
        with pytest.raises(InvalidInput, match=name):
            read_problems(tmp_path / name, [DType.TF32], list(Layout))
