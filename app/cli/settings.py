"""The command that shows the settings."""

from __future__ import annotations

import sys
from textwrap import fill
from typing import Annotated, Any

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import print_json

_SECRET = "********"  # noqa: S105 - shown in place of a secret


def settings(
    json_schema: Annotated[bool, typer.Option("--json-schema", help="Print the JSON Schema of the variables.")] = False,
) -> None:
    """Show every setting with its purpose and its current value.

    The output is a valid file of environment variables.
    """
    schema = settings_schema()
    if json_schema:
        print_json(schema)
        return
    current = load_settings()
    for name, field in schema["properties"].items():
        sys.stdout.write(f"{fill(field['description'], 78, initial_indent='# ', subsequent_indent='# ')}\n")
        sys.stdout.write(f"{name}={_shown(current, name)}\n\n")


def settings_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the service's environment, with one property for each variable."""
    import msgspec

    from conv_advisor.app.settings import PREFIX, READ_ELSEWHERE, Settings

    _, components = msgspec.json.schema_components([Settings], schema_hook=lambda kind: {"type": "string"})
    properties = components["Settings"]["properties"]
    for field in properties.values():
        if "anyOf" in field:  # a variable that is not set is absent, and not null
            field.update(field.pop("anyOf")[0])
            del field["default"]
        if "pattern" in field:
            field["pattern"] = field["pattern"].replace(r"\Z", "$")  # as JavaScript writes it
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The environment of conv-advisor",
        "type": "object",
        "properties": {f"{PREFIX}{name.upper()}": field for name, field in properties.items()},
        "patternProperties": {f"^(?!{PREFIX})": {}, f"^({'|'.join(READ_ELSEWHERE)})$": {}},
        "additionalProperties": False,
    }


def _shown(current: Any, variable: str) -> str:
    from conv_advisor.app.settings import PREFIX

    name = variable.removeprefix(PREFIX).lower()
    value = getattr(current, name)
    is_secret = value and not current.__dataclass_fields__[name].repr
    return _SECRET if is_secret else "" if value is None else str(value)
