"""Build the documentation as a site: ``python .ci/docs.py``; into ``--site``, from pages completed in ``--pages``.

The pages of ``docs`` are completed by what is made at every build and nowhere kept: the figures, from the measurements
that ship; the reference of the command line, by Typer; that of HTTP, from the OpenAPI document; and the product's
colours, from its own style sheet.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT: Final = Path(__file__).parent.parent
STATIC: Final = ROOT / "app" / "web" / "static"


def main() -> None:
    """Complete the pages and build the site, strictly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=Path, default=ROOT / "build" / "pages", help="is emptied first")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site")
    chosen = parser.parse_args()
    complete(chosen.pages)
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(chosen.pages), site_dir=str(chosen.site), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)


def complete(pages: Path) -> None:
    """Copy the pages of the repository into a folder and add what is made."""
    from conv_advisor.app.main import create_app
    from conv_advisor.app.settings import Settings

    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    shutil.copy(STATIC / "icon.svg", pages)
    (pages / "colours.css").write_text(colours((STATIC / "page.css").read_text()))
    (pages / "reference" / "http.md").write_text(http_reference(create_app(Settings()).openapi()))
    commands = ("typer", "conv_advisor.app.cli", "utils", "docs", "--name", "conv-advisor")
    for command in (
        (*commands, "--output", pages / "reference" / "cli.md"),
        ("benchmarks.plots", "--figures", pages),
    ):
        subprocess.run((sys.executable, "-m", *command), cwd=ROOT, check=True)  # noqa: S603 - our own words


def colours(sheet: str) -> str:
    """The rules of the page's style sheet that name its colours, light and dark: those before the first element's."""
    return sheet.partition("\n* {")[0]


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


if __name__ == "__main__":
    main()
