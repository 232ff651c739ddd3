"""Tables and colours on any terminal: nothing wider than a line, nothing lost, nothing painted where nobody sees it."""

from __future__ import annotations

import io
import re
import sys

import pytest

from conv_advisor.app.cli import table
from conv_advisor.app.cli.table import Mark, Marked

COLUMNS = ("variant", "time", "time is", "slowdown", "workspace")
ROWS = [
    ("cuda.winograd_nonfused_4x4_3x3", "12.5 µs", Marked("predicted", Mark.UNSURE), "1.62×", "7.88 MiB"),
    ("cudnn.implicit_precomp_gemm_tc", "1,293 µs", "measured", "107× tied", "no"),
]
PAINT = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """Somewhere to write that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def shown(monkeypatch: pytest.MonkeyPatch, columns: int | None, stream: io.StringIO | None = None) -> list[str]:
    stream = stream or Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    table.write_table(COLUMNS, ROWS, right=(1,))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("columns", [200, 80, 60, 40, 20])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    lines = [PAINT.sub("", line) for line in shown(monkeypatch, columns)]
    assert max(map(len, lines)) <= columns
    together = re.sub(r"\s", "", "".join(lines))
    for row in ROWS:
        for cell in row[1:]:
            assert re.sub(r"\s", "", cell) in together
    if columns >= 80:
        assert [line.split("  ")[0] for line in lines] == ["variant", *(row[0] for row in ROWS)]


def test_an_error_is_folded_between_words_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "conv-advisor: unknown network 'resnet5'; did you mean 'resnet50'? known: " + ", ".join(["googlenet"] * 20)
    monkeypatch.setenv("COLUMNS", "80")
    for stream, most in ((Terminal(), 80), (io.StringIO(), len(error))):
        monkeypatch.setattr(sys, "stderr", stream)
        table.write_error(error)
        lines = stream.getvalue().splitlines()
        assert max(map(len, lines)) <= most
        assert " ".join(lines) == error
    assert len(lines) == 1


def test_long_names_are_folded_where_they_have_joints(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [PAINT.sub("", line)[:16].strip() for line in shown(monkeypatch, 60)]
    assert first[:3] == ["variant", "cuda.winograd_", "nonfused_4x4_3x3"]


def test_names_of_numbers_are_folded_before_a_table_becomes_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "24")
    table.write_table(("n", "against the default"), [("a", "1.5×"), ("b", "12×")], right=(1,))
    lines = [PAINT.sub("", line) for line in sys.stdout.getvalue().splitlines()]
    assert lines == ["n  against the default", "a                 1.5×", "b                  12×"]
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    table.write_table(("n", "against the default"), [("a", "1.5×"), ("b", "12×")], right=(1,))
    lines = [PAINT.sub("", line) for line in sys.stdout.getvalue().splitlines()]
    assert lines == ["n  against", "       the", "   default", "a     1.5×", "b      12×"]


def test_what_would_act_on_a_terminal_is_written_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that anybody wrote names its layers; a title that it sets, or a colour, is none of its business."""
    monkeypatch.setenv("NO_COLOR", "1")
    name = "conv\x1b]0;mine\x07\n\x9b31m\x7f"
    table.write_table(("name", "time"), [(name, "1"), (Marked("\x1b[2J", Mark.HEAD), "2")])
    table.write(f"{name} × µ")
    table.write_error(name)
    said = capsys.readouterr()
    assert "conv\\x1b]0;mine\\x07\\x0a\\x9b31m\\x7f" in said.out
    assert "\\x1b[2J" in said.out
    assert "× µ" in said.out
    assert all(each.isprintable() for each in (said.out + said.err).split("\n"))


def test_numbers_are_flush_right(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [PAINT.sub("", line) for line in shown(monkeypatch, 200)]
    assert len({line.index("µs") for line in lines[1:]}) == 1


def test_what_goes_into_a_pipe_is_neither_folded_nor_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, None, io.StringIO())
    assert len(lines) == 1 + len(ROWS)
    assert not PAINT.search("".join(lines))


@pytest.mark.parametrize(
    ("environment", "is_painted"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"NO_COLOR": ""}, True),
    ],
    ids=str,
)
def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_painted: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lines = "\n".join(shown(monkeypatch, 80))
    assert (f"\x1b[{Mark.UNSURE}mpredicted" in lines) is is_painted
    assert bool(PAINT.search(lines)) is is_painted


def test_colours_can_be_had_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert PAINT.search("\n".join(shown(monkeypatch, None, io.StringIO())))


def test_lines_of_text_are_folded_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "30")
    table.write(Marked("an answer of more words than go on one line", Mark.HEAD))
    lines = stream.getvalue().splitlines()
    assert [PAINT.sub("", line) for line in lines] == ["an answer of more words than", "go on one line"]
    assert all(line.startswith(f"\x1b[{Mark.HEAD}m") and line.endswith("\x1b[0m") for line in lines)
