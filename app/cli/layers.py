"""Layers as people write them: a short form with options, a pasted Conv2d, and lists of them in a file."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from conv_advisor.app.wire.distinct import distinct
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import InvalidInput, InvalidLayerName, InvalidProblem
from conv_advisor.data.problem import ConvProblem, DType, Layout

Stride = Annotated[str | None, typer.Option(help="Stride: 2, or 2x1 for height and width.  [default: 1]")]
Padding = Annotated[
    str | None,
    typer.Option(
        help="Zeros around x: 1, 2x1 for height and width, 0,0,1,1 for top, left, bottom, right, same or valid.  "
        "[default: filter // 2]"
    ),
]
Dilation = Annotated[str | None, typer.Option(help="Dilation of the filter.  [default: 1]")]
Groups = Annotated[int | None, typer.Option(min=1, help="Groups of channels and filters.  [default: 1]")]
Bias = Annotated[bool, typer.Option("--bias", help="Add a bias, one value per filter.")]
Residual = Annotated[bool, typer.Option("--residual", help="Add a residual of y's shape.")]
OneActivation = Annotated[Activation, typer.Option("--activation", help="Activation, applied before y is rounded.")]
Input = Annotated[
    str | None, typer.Option("--input", help="Input shape of a layer given as Conv2d(...), such as 1x64x56x56.")
]

STANDARD_INPUT: Final = "-"
_MOST_BYTES: Final = 64 * 2**20
_PAIR: Final = re.compile(r"([0-9]{1,10})(?:[x×,]([0-9]{1,10}))?")


@dataclass(frozen=True)
class Written:
    """The options that go with layers on the command line.

    Parameters
    ----------
    dtype : DType
    layout : Layout
    changes : mapping of str to value
        Strides, padding, dilations, groups and what follows the convolution, as `app.wire.layers.problem_from` has it.
    shape : str or None
        The input of a pasted layer.
    """

    dtype: DType
    layout: Layout
    changes: Mapping[str, Any]
    shape: str | None

    def read(self, text: str) -> ConvProblem:
        """The problem of a layer that was typed or pasted.

        Raises
        ------
        InvalidInput, InvalidProblem, InvalidLayerName
        """
        from conv_advisor.app.wire.layers import problem_from
        from conv_advisor.app.wire.pasted import is_call

        if self.shape is None and is_call(text):
            raise InvalidInput("--input", None, "beside Conv2d(...) the shape of its input, such as 1x64x56x56")
        shape = {} if self.shape is None else {"input": self.shape}
        try:
            return problem_from({"layer": text, **shape}, self.common)
        except InvalidLayerName:
            from conv_advisor.data import networks

            if text not in networks.names():
                raise
            allowed = f"a layer; `conv-advisor plan {text}` plans this network, `conv-advisor networks {text}` lists it"
            raise InvalidInput("layer", text, allowed) from None

    @property
    def common(self) -> dict[str, Any]:
        """Parameters that hold for a layer that does not set its own."""
        return {"dtype": self.dtype, "layout": self.layout, **self.changes}


def ending(*, bias: bool, residual: bool, activation: Activation) -> dict[str, bool | Activation]:
    """The parts of an epilogue that the options name."""
    parts: dict[str, bool | Activation] = {"bias": bias, "residual": residual, "activation": activation}
    return {name: value for name, value in parts.items() if value and value is not Activation.NONE}


def written(
    dtype: DType,
    layout: Layout,
    stride: str | None,
    padding: str | None,
    dilation: str | None,
    groups: int | None,
    shape: str | None,
    **ending: bool | Activation,
) -> Written:
    """The options, read; bias, residual and activation by name.

    Raises
    ------
    InvalidInput
    """
    changes: dict[str, Any] = {} if groups is None else {"groups": groups}
    for option, text in (("stride", stride), ("dilation", dilation)):
        if text is not None:
            changes |= dict(zip((f"{option}_h", f"{option}_w"), _pair(option, text), strict=True))
    if padding is not None:
        changes["pads" if padding.count(",") == 3 else "padding"] = padding
    return Written(dtype, layout, changes | ending, shape)


def read_layers(source: str, defaults: Written) -> list[ConvProblem]:
    """The layers of a file, or of standard input.

    Parameters
    ----------
    source : str
        A path, or ``-``. Its lines are JSON objects of named parameters; or comma-separated values under a line of
        their names; or layers, each maybe followed by a dtype, and then a layout. In a file of the last kind, ``#``
        begins a comment.
    defaults : Written
        What holds for layers that do not set their own.

    Raises
    ------
    InvalidInput
        Naming the line.
    """
    lines = _lines(source)
    kind = _kind(lines)
    source_name = "standard input" if source == STANDARD_INPUT else Path(source).name
    problems = []
    for number, line in kind(lines):
        try:
            problems.append(line.read(defaults))
        except InvalidInput as error:
            field, value, allowed = error.args
            raise InvalidInput(f"{source_name} line {number}: {field}", value, allowed) from None
    if not problems:
        raise InvalidInput("--from", source, "a text with at least one layer")
    return problems


@dataclass(frozen=True)
class _Named:
    """A line of parameters by name."""

    text: str
    given: Mapping[str, Any]

    def read(self, defaults: Written) -> ConvProblem:
        from pydantic import ValidationError

        from conv_advisor.app.wire.layers import problem_from
        from conv_advisor.app.wire.schemas import LayerParameters, first_fault

        try:
            own = LayerParameters.model_validate(dict(self.given)).given()
        except ValidationError as error:
            raise InvalidProblem(*first_fault(error)) from None
        return problem_from(own, defaults.common)


@dataclass(frozen=True)
class _Typed:
    """A line with a layer, and maybe its dtype and layout."""

    text: str

    def read(self, defaults: Written) -> ConvProblem:
        from conv_advisor.app.wire.layers import problem_from
        from conv_advisor.app.wire.pasted import is_call

        if is_call(self.text):
            return defaults.read(self.text)
        words = self.text.split()
        if len(words) > 3:
            raise InvalidInput("layer", self.text, "a layer, a dtype, a layout")
        kind = dict(zip(("dtype", "layout"), words[1:], strict=False))
        return problem_from({"layer": words[0], **kind}, defaults.common)


def _kind(lines: Sequence[str]) -> Any:
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("{"):
        return _json_lines
    from conv_advisor.app.wire.schemas import LayerParameters

    names = {name.strip().lower() for name in first.split(",")}
    is_head = names <= LayerParameters.model_fields.keys() and ("," in first or names == {"layer"})
    return _csv_lines if is_head else _plain_lines


def _json_lines(lines: Sequence[str]) -> Iterator[tuple[int, _Named]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parameters = json.loads(line, object_pairs_hook=distinct)
        except ValueError:
            parameters = None
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error.field}", line, error.allowed) from None
        if not isinstance(parameters, dict):
            raise InvalidInput(f"line {number}", line, 'one JSON object, such as {"layer": "14-1-3-256-128"}')
        yield number, _Named(line.strip(), parameters)


def _csv_lines(lines: Sequence[str]) -> Iterator[tuple[int, _Named]]:
    rows = csv.reader(lines)
    head: list[str] = []
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        if not head:
            head = [name.strip().lower() for name in row]
            continue
        text = ",".join(row)
        if len(row) > len(head):
            raise InvalidInput(f"line {rows.line_num}", text, f"{len(head)} values, as the line of names has")
        parameters = {name: cell.strip() for name, cell in zip(head, row, strict=False) if cell.strip()}
        yield rows.line_num, _Named(text, parameters)


def _plain_lines(lines: Sequence[str]) -> Iterator[tuple[int, _Typed]]:
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            yield number, _Typed(text)


def _lines(source: str) -> list[str]:
    try:
        if source == STANDARD_INPUT:
            text = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InvalidInput("--from", source, f"at most {_MOST_BYTES} bytes")
        return text.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("--from", source, f"a readable text file, or - ({error})") from None


def _pair(option: str, text: str) -> tuple[int, int]:
    match = _PAIR.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"--{option}", text, "a number, or two of height and width, such as 2 or 2x1")
    first, second = match.groups()
    return int(first), int(second or first)
