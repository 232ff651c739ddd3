"""What the command line reads without Typer's reading is what Typer would make of it."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.core import TyperArgument, TyperOption

from conv_advisor.app.cli import cli
from conv_advisor.data.problem import DType, Layout

ROOT: Any = typer.main.get_command(cli)
COMMANDS = dict(ROOT.commands)


def parameters(command: Any) -> dict[str, Any]:
    """A command's parameters by name, ours."""
    return {each.name: each for each in command.get_params(context(command))}


def context(command: Any) -> Any:
    """What Typer reads words in."""
    return command.make_context(command.name, [], resilient_parsing=True)


def theirs(parameter: Any, command: Any, value: Any) -> Any:
    """What Typer makes of a value."""
    kind = TyperOption if isinstance(parameter, TyperOption) else TyperArgument
    return kind.process_value(parameter, context(command), value)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_default_is_taken_as_typer_reads_it(name: str) -> None:
    command = COMMANDS[name]
    for parameter in parameters(command).values():
        if parameter.required:
            continue
        value = parameter.get_default(context(command))
        ours = parameter.process_value(context(command), value)
        assert ours == theirs(parameter, command, value) or (value is None and not ours), (name, parameter.name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dtype", "fp16", DType.FLOAT16),
        ("layout", "channels_last", Layout.NHWC),
        ("device", "nvidia-h200", "nvidia-h200"),
        ("layer", ("14-1-3-256-128", "7-1-1-64-64"), ["14-1-3-256-128", "7-1-1-64-64"]),
        ("neighbours", "3", 3),
        ("max_slowdown", "1.5", 1.5),
        ("only", "cudnn", "cudnn"),
        ("as_json", True, True),
    ],
)
def test_a_word_is_taken_as_typer_reads_it(name: str, value: Any, expected: Any) -> None:
    command = COMMANDS["advise"]
    parameter = parameters(command)[name]
    assert parameter.process_value(context(command), value) == expected == theirs(parameter, command, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dtype", "fp17"), ("neighbours", "51"), ("neighbours", "0"), ("neighbours", "x"), ("only", "nobody")],
)
def test_a_word_that_means_nothing_is_refused_by_its_value(name: str, value: str) -> None:
    command = COMMANDS["advise"]
    parameter = parameters(command)[name]
    with pytest.raises(typer.BadParameter):
        theirs(parameter, command, value)
    with pytest.raises(typer.BadParameter, match=repr(value)) as caught:
        parameter.process_value(context(command), value)
    assert "Value error" not in str(caught.value)


def test_what_is_required_is_missed() -> None:
    command = COMMANDS["convolve"]
    parameter = parameters(command)["layer"]
    with pytest.raises(typer.BadParameter.__base__, match="layer"):  # MissingParameter, which Typer does not name
        parameter.process_value(context(command), None)
