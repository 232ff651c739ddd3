"""MkDocs hooks: the HTTP reference from the OpenAPI document, the command line's from the Typer application.

Both are made at every build and are nowhere kept. A link from a page to a file outside ``docs`` becomes plain code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_OUTSIDE: Final = re.compile(
    r"\[([^\]]*)\]\(((?:\.\./)+(?:README|CONTRIBUTING|benchmarks|kernels|data|app|deploy)[^)]*)\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the two generated pages."""
    from conv_advisor.app.cli import cli
    from conv_advisor.app.main import create_app
    from conv_advisor.app.settings import Settings

    pages = {
        "reference/http.md": http_reference(create_app(Settings()).openapi()),
        "reference/cli.md": cli_reference(typer.main.get_command(cli)),
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name a file of the repository that is not part of the site instead of linking to it."""
    return _OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2].lstrip('./')}`)", markdown)


def http_reference(document: dict[str, Any]) -> str:
    """Every operation of an OpenAPI document, with its parameters, its bodies and its answers, as Markdown."""
    lines = ["# HTTP", "", document["info"].get("description", "").strip(), ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += _operation(method, path, operation)
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", _text(schema), "", *_properties(schema)]
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {method.upper()} {path}", "", operation.get("description", ""), "")
    if parameters := operation.get("parameters"):
        rows = ((f"`{each['name']}`", each["in"], _type(each["schema"]), _text(each)) for each in parameters)
        yield from _table(("parameter", "in", "type", "meaning"), rows)
    if body := operation.get("requestBody"):
        yield from _table(
            ("body", "schema"), ((f"`{kind}`", _type(it["schema"])) for kind, it in body["content"].items())
        )
    yield from _table(("status", "meaning"), ((code, _text(it)) for code, it in operation["responses"].items()))


def _properties(schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    if properties := schema.get("properties"):
        rows = (
            (f"`{name}`", _type(field), "yes" if name in required else "", _text(field))
            for name, field in properties.items()
        )
        yield from _table(("field", "type", "required", "meaning"), rows)
    elif "enum" in schema:
        yield from (", ".join(f"`{value}`" for value in schema["enum"]), "")


def _type(schema: dict[str, Any]) -> str:
    """A schema's type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_type(option) for option in options)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def cli_reference(command: Any, name: str = "conv-advisor", level: int = 1) -> str:
    """A command, its arguments and options, and those below it, as Markdown."""
    lines = [f"{'#' * level} {name}", "", _cell(command.help or ""), ""]
    rows = [_option(parameter) for parameter in command.params]
    lines += _table(("option", "default", "meaning"), rows) if rows else []
    for below, each in getattr(command, "commands", {}).items():
        lines.append(cli_reference(each, f"{name} {below}", level=2))
    return "\n".join(lines)


def _option(parameter: Any) -> tuple[str, str, str]:
    is_argument = parameter.param_type_name == "argument"
    spelled = parameter.name.upper() if is_argument else ", ".join(parameter.opts)
    default = "" if parameter.default in (None, False) or is_argument else f"`{parameter.default}`"
    return f"`{spelled}`", default, _cell(getattr(parameter, "help", None) or "")


def _table(columns: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from (f"| {' | '.join(_cell(value) for value in row)} |" for row in rows)
    yield ""


def _text(value: dict[str, Any]) -> str:
    return _cell(value.get("description", ""))


def _cell(text: str) -> str:
    """Text on one line that ends no column and opens no element."""
    return " ".join(text.split()).replace("\\|", "|").replace("|", "\\|").replace("<", "&lt;")
